package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

type kubelet struct {
	*process
	events chan event
}

// startKubelet returns when the plugin manager is about to run.
func (s *site) startKubelet() *kubelet {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	reader, writer := io.Pipe()
	k := &kubelet{
		process: s.start("kubelet", writer, self, "kubelet", s.registry),
		events:  make(chan event, 1000),
	}
	go func() {
		<-k.done
		writer.Close()
	}()
	go func() {
		defer close(k.events)
		for lines := json.NewDecoder(reader); ; {
			var e event
			if lines.Decode(&e) != nil {
				return
			}
			k.events <- e
		}
	}()
	k.expect("started")
	return k
}

// next waits for the kubelet's next event.
func (k *kubelet) next() event {
	k.t.Helper()
	select {
	case e, open := <-k.events:
		if !open {
			k.t.Fatal("the kubelet has ended")
		}
		k.step("kubelet: %v", e)
		return e
	case <-time.After(patience):
		k.t.Fatalf("the kubelet did nothing for %v", patience)
	}
	panic("unreachable")
}

// expect wants exactly these events next, each without error, and returns the last.
func (k *kubelet) expect(kinds ...string) event {
	k.t.Helper()
	var e event
	for _, kind := range kinds {
		if e = k.next(); e.Kind != kind || e.Err != "" {
			k.t.Fatalf("kubelet: %v, want %s without error", e, kind)
		}
	}
	return e
}

// expectFailure wants the driver validated and its registration to fail next.
func (k *kubelet) expectFailure() {
	k.t.Helper()
	k.expect("validate")
	if e := k.next(); e.Kind != "register" || e.Err == "" {
		k.t.Fatalf("kubelet: %v, want register with an error", e)
	}
}

// expectRegistered wants the driver validated and registered next.
func (k *kubelet) expectRegistered() {
	k.t.Helper()
	if e := k.expect("validate", "register"); !e.holdsDriver() {
		k.t.Fatalf("kubelet: %v, want %s with node id %s", e, driverName, nodeID)
	}
}

// registers wants the registrar to be told of the registration as well: a
// kubelet that cannot tell deregisters.
func (k *kubelet) registers(r *process) {
	k.t.Helper()
	k.expectRegistered()
	r.logs("Received GetInfo call")
	r.logs("Received NotifyRegistrationStatus call", "plugin_registered:true")
}

// expectDeregistered wants the driver deregistered next.
func (k *kubelet) expectDeregistered() {
	k.t.Helper()
	if e := k.expect("deregister"); len(e.CSINode) != 0 {
		k.t.Fatalf("kubelet: %v, want an empty CSINode", e)
	}
}

// quiet wants no event for that long.
func (k *kubelet) quiet(pause time.Duration) {
	k.t.Helper()
	select {
	case e, open := <-k.events:
		k.t.Fatalf("kubelet: %v (running: %v), want nothing for %v", e, open, pause)
	case <-time.After(pause):
		k.step("kubelet: nothing for %v", pause)
	}
}

// settles waits until the driver is registered and stays so for the pause.
func (k *kubelet) settles(pause time.Duration) {
	k.t.Helper()
	for e := k.next(); ; {
		select {
		case next, open := <-k.events:
			if !open {
				k.t.Fatal("the kubelet has ended")
			}
			e = next
			k.step("kubelet: %v", e)
		case <-time.After(pause):
			if e.Err == "" && e.holdsDriver() {
				k.step("kubelet: nothing for %v", pause)
				return
			}
			e = k.next()
		}
	}
}

func (e event) holdsDriver() bool { return e.CSINode[driverName] == nodeID }

func (e event) String() string {
	text := e.Kind
	if e.Driver != "" {
		text += fmt.Sprintf(" %s at %s", e.Driver, e.Endpoint)
	}
	if e.Err != "" {
		text += fmt.Sprintf(", error %q", e.Err)
	}
	return text + fmt.Sprintf(", CSINode %v", e.CSINode)
}
