package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
)

func TestRegistersTheDriver(t *testing.T) {
	s := newScenario(t, "registers the driver with a kubelet that started before")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	k.quiet(3 * time.Second)
}

func TestRegistersWithAKubeletThatStartsLater(t *testing.T) {
	s := newScenario(t, "registers the driver with a kubelet that starts later")
	s.startDriver()
	r := s.startRegistrar()
	r.logs("Registration Server started")
	k := s.startKubelet()
	k.registers(r)
	k.quiet(3 * time.Second)
}

func TestRegistersWithAKubeletThatStartsWhileItWaitsForTheDriver(t *testing.T) {
	s := newScenario(t, "registers the driver with a kubelet that starts while it waits for the driver")
	r := s.startRegistrar()
	r.logs(s.csi)
	k := s.startKubelet()
	k.quiet(3 * time.Second)
	s.startDriver()
	k.registers(r)
	k.quiet(3 * time.Second)
}

func TestRegisters20DriversAtOnce(t *testing.T) {
	s := newScenario(t, "registers 20 drivers of one node at once")
	k := s.startKubelet()
	var registrars []*process
	for i := range 20 {
		socket := filepath.Join(s.dir, fmt.Sprintf("csi-%d.sock", i))
		s.startDriverAs(fmt.Sprintf("interop-%d.csi.k8s.io", i), socket, func() error { return nil })
		registrars = append(registrars, s.startRegistrar("--csi-address="+socket, "--kubelet-registration-path="+socket))
	}
	// Each is validated and registered once.
	var e event
	for range 2 * len(registrars) {
		if e = k.next(); e.Err != "" {
			t.Fatalf("kubelet: %v, want no error", e)
		}
	}
	if len(e.CSINode) != len(registrars) {
		t.Fatalf("kubelet: %v, want %d drivers", e, len(registrars))
	}
	for _, r := range registrars {
		r.logs("Received NotifyRegistrationStatus call", "plugin_registered:true")
	}
	k.quiet(3 * time.Second)
}

func TestSIGTERMDeregisters(t *testing.T) {
	s := newScenario(t, "is deregistered at SIGTERM")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	r.signal(syscall.SIGTERM)
	r.exits(0)
	s.wantNoSocket()
	k.expectDeregistered()
}

func TestSIGKILLKeepsTheDriverUntilTheRestart(t *testing.T) {
	s := newScenario(t, "stays registered at SIGKILL, and is registered anew at its restart")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	r.signal(syscall.SIGKILL)
	r.exits(-1)
	k.quiet(4 * time.Second)
	r = s.startRegistrar()
	k.expectDeregistered()
	k.registers(r)
}

func TestRegistersWithARestartedKubelet(t *testing.T) {
	s := newScenario(t, "registers with a restarted kubelet")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	k.signal(syscall.SIGKILL)
	k.exits(-1)
	k = s.startKubelet()
	k.registers(r)
	r.wantRunning()
}

// RESTARTS is how many seconds the kubelet lives only a second each, 60 by default.
func TestOutlivesAKubeletThatRestartsEverySecond(t *testing.T) {
	s := newScenario(t, "registers with a kubelet that restarted each second for a minute, and leaks no descriptor")
	s.startDriver()
	r := s.startRegistrar()
	r.logs("Registration Server started")
	before := r.descriptors()
	seconds := time.Tick(time.Second)
	for range number(t, "RESTARTS", 60) {
		k := s.startKubelet()
		<-seconds
		k.kill()
	}
	k := s.startKubelet()
	k.registers(r)
	k.quiet(3 * time.Second)
	r.wantRunning()
	k.kill()
	for deadline := time.Now().Add(10 * time.Second); r.descriptors() > before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before the first kubelet", r.descriptors(), before)
		}
	}
}

func TestRegistersOverADeadSocketTheKubeletIsDialling(t *testing.T) {
	s := newScenario(t, "registers over a dead socket that the kubelet is dialling")
	s.startDriver()
	r := s.startRegistrar()
	r.logs("Registration Server started")
	r.signal(syscall.SIGKILL)
	r.exits(-1)
	k := s.startKubelet()
	k.quiet(3 * time.Second)
	r = s.startRegistrar()
	// The pending dial may reach the new socket before the kubelet has seen it
	// as new; then it registers, deregisters and registers.
	k.settles(4 * time.Second)
	r.wantRunning()
}

// number is that of the environment variable, where there is one.
func number(t *testing.T, variable string, otherwise int) int {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(variable, ": ", err)
	}
	return n
}

// Each deletion takes the kubelet two of its seconds: one to deregister the
// driver, one to register it. DELETIONS is how many there are, 20 by default.
func TestRegistersAgainWhenItsSocketIsDeleted(t *testing.T) {
	s := newScenario(t, "registers again each time that its socket is deleted")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	for i := range number(t, "DELETIONS", 20) {
		if err := os.Remove(s.socket); err != nil {
			t.Fatal(err)
		}
		s.step("socket deleted, %d", i+1)
		k.expectDeregistered()
		k.registers(r)
	}
	k.quiet(3 * time.Second)
	r.wantRunning()
}

// A kubelet reports the end of an attempt to whoever holds the socket by then,
// which may be a registrar that started in between.
func TestTakesAStatusBeforeAnyGetInfo(t *testing.T) {
	s := newScenario(t, "takes a status before any GetInfo")
	s.startDriver()
	r := s.startRegistrar()
	r.logs("Registration Server started")
	s.notify(s.dial())
	r.wantRunning()
	s.getInfo(s.dial())
	r.logs("Received GetInfo call")
	k := s.startKubelet()
	k.registers(r)
}

// A watch ends with the directory, and the kubelet starts none for a new one.
func TestServesInARegistryDirectoryMadeAnew(t *testing.T) {
	s := newScenario(t, "serves in a registry directory made anew, and registers when the kubelet restarts")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	if err := os.RemoveAll(s.registry); err != nil {
		t.Fatal(err)
	}
	s.step("registry removed")
	k.expectDeregistered()
	s.makeRegistry()
	s.step("registry made anew")
	s.getInfo(s.dial(grpc.WithDefaultCallOptions(grpc.WaitForReady(true))))
	k.quiet(3 * time.Second)
	k.kill()
	k = s.startKubelet()
	k.registers(r)
	r.wantRunning()
}

// takeOver has a driver registered by one instance, then by a later one.
func (s *site) takeOver() (k *kubelet, earlier, later *process) {
	s.t.Helper()
	s.startDriver()
	k = s.startKubelet()
	earlier = s.startRegistrar()
	k.registers(earlier)
	later = s.startRegistrar()
	k.expectDeregistered()
	k.registers(later)
	return k, earlier, later
}

func TestALaterInstanceTakesOver(t *testing.T) {
	s := newScenario(t, "a later instance takes over, and the earlier one goes without a trace")
	k, earlier, later := s.takeOver()
	earlier.signal(syscall.SIGTERM)
	earlier.exits(0)
	k.quiet(3 * time.Second)
	later.signal(syscall.SIGTERM)
	later.exits(0)
	s.wantNoSocket()
	k.expectDeregistered()
}

func TestAnEarlierInstanceTakesOverAgain(t *testing.T) {
	s := newScenario(t, "an earlier instance takes over again when the later one goes")
	k, earlier, later := s.takeOver()
	later.signal(syscall.SIGTERM)
	later.exits(0)
	k.expectDeregistered()
	k.registers(earlier)
	k.quiet(3 * time.Second)
	earlier.wantRunning()
}
