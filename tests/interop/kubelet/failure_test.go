package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// failsOnce fails at its first call.
func failsOnce() func() error {
	var called atomic.Bool
	return func() error {
		if called.Swap(true) {
			return nil
		}
		return errors.New("not yet")
	}
}

func TestEndsWhenTheKubeletRefuses(t *testing.T) {
	s := newScenario(t, "ends without a trace when the kubelet cannot reach the driver, and registers once the path is right")
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar("--kubelet-registration-path=" + filepath.Join(s.dir, "nothing-here.sock"))
	k.expectFailure()
	r.logs("Received NotifyRegistrationStatus call", "plugin registration failed with err")
	r.logs("Registration process failed with error, restarting registration container")
	r.exits(1)
	s.wantNoSocket()
	if !triesAgain {
		// What failed to register has counted as registered.
		k.expectDeregistered()
	}
	k.registers(s.startRegistrar())
	k.quiet(3 * time.Second)
}

func TestEndsWhenNodeGetInfoFails(t *testing.T) {
	s := newScenario(t, "ends when NodeGetInfo fails once, and registers at its restart")
	s.startDriverWith(failsOnce())
	k := s.startKubelet()
	r := s.startRegistrar()
	k.expectFailure()
	r.logs("Registration process failed with error, restarting registration container")
	r.exits(1)
	r = s.startRegistrar()
	k.settles(4 * time.Second)
	r.wantRunning()
}

func TestEndsWhileAnotherSocketHoldsItsName(t *testing.T) {
	s := newScenario(t, "ends while another socket holds its name, and registers once that is gone")
	s.startDriver()
	k := s.startKubelet()
	other := filepath.Join(s.registry, "other-reg.sock")
	s.startStandIn(other, nil)
	k.expectRegistered()
	r := s.startRegistrar()
	if e := k.next(); e.Kind != "validate" || e.Err == "" {
		t.Fatalf("kubelet: %v, want validate with an error", e)
	}
	r.logs("Received NotifyRegistrationStatus call", "Another driver with the same name is already registered")
	r.exits(1)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	r = s.startRegistrar()
	k.settles(4 * time.Second)
	r.wantRunning()
}

func TestRegistersAfterASlowNodeGetInfo(t *testing.T) {
	s := newScenario(t, "registers after a NodeGetInfo of 30 s")
	s.startDriverWith(func() error {
		time.Sleep(30 * time.Second)
		return nil
	})
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	k.quiet(3 * time.Second)
	r.wantRunning()
}

// The kubelet tells the outcome to whoever has the socket by then, if it can.
func TestRegistersWhenRestartedDuringNodeGetInfo(t *testing.T) {
	s := newScenario(t, "registers when restarted during NodeGetInfo")
	called, answer := make(chan struct{}, 10), make(chan struct{})
	s.startDriverWith(func() error {
		called <- struct{}{}
		<-answer
		return nil
	})
	k := s.startKubelet()
	r := s.startRegistrar()
	k.expect("validate")
	<-called
	r.signal(syscall.SIGTERM)
	r.exits(0)
	s.wantNoSocket()
	r = s.startRegistrar()
	r.logs("Registration Server started")
	close(answer)
	k.settles(4 * time.Second)
	r.wantRunning()
}

// The tests above mean little if the kubelet does not treat failures as they
// assume. A server in the registrar's place, which does not end, shows it.
func TestTheKubeletTreatsAFailedRegistrationAsKnown(t *testing.T) {
	s := newScenario(t, "the kubelet treats a failed registration as known of its minor")
	s.startDriverWith(failsOnce())
	k := s.startKubelet()
	s.startStandIn(s.socket, nil)
	k.expectFailure()
	if triesAgain {
		k.expectRegistered()
		return
	}
	k.quiet(5 * time.Second)
	if err := os.Remove(s.socket); err != nil {
		t.Fatal(err)
	}
	s.startStandIn(s.socket, nil)
	k.expectDeregistered()
	k.expectRegistered()
}

func TestTheKubeletTreatsARefusedStatusAsKnown(t *testing.T) {
	s := newScenario(t, "the kubelet treats a status that was refused as known of its minor")
	s.startDriver()
	k := s.startKubelet()
	s.startStandIn(s.socket, failsOnce())
	k.expectRegistered()
	if triesAgain {
		k.expectDeregistered()
		k.expectRegistered()
	}
	k.quiet(5 * time.Second)
}

func (s *site) startStandIn(socket string, notified func() error) {
	s.t.Helper()
	seen := make(chan string, 100)
	s.serve(socket, func(server *grpc.Server) {
		registerapi.RegisterRegistrationServer(server, standIn{endpoint: s.csi, seen: seen, notified: notified})
	})
}
