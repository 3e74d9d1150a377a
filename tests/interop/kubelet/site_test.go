package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

const (
	driverName = "interop.csi.k8s.io"
	nodeID     = "node-id-of-the-driver"

	// patience outlasts a dial that the plugin manager gives up, 10 s, and the
	// back-off of several failures in a row.
	patience = time.Minute
)

// site is one node: a directory with the driver's socket and the kubelet's
// plugin registry. Everything started on it ends with its test.
type site struct {
	t        *testing.T
	scenario string
	began    time.Time
	dir      string
	csi      string // socket of the CSI driver
	registry string
	socket   string // where the registrar's socket belongs
}

// newSite has a directory of its own directly below the temporary one, because
// a socket path holds 107 bytes.
func newSite(t *testing.T) *site {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ndr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{t: t, began: time.Now(), dir: dir, csi: filepath.Join(dir, "csi.sock"), registry: filepath.Join(dir, "plugins_registry")}
	s.socket = filepath.Join(s.registry, driverName+"-reg.sock")
	s.makeRegistry()
	return s
}

// newScenario is a site whose test is a line of the interoperability matrix.
func newScenario(t *testing.T, scenario string) *site {
	s := newSite(t)
	s.scenario = scenario
	t.Cleanup(func() {
		result := "ok"
		if t.Failed() {
			result = "FAILED"
		} else if t.Skipped() {
			result = "skipped"
		}
		fmt.Printf("interop\t%s\t%s\t%s\t%.1f\n", peer, s.scenario, result, time.Since(s.began).Seconds())
	})
	return s
}

func (s *site) makeRegistry() {
	s.t.Helper()
	if err := os.Mkdir(s.registry, 0o755); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) step(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%6.2fs  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *site) wantNoSocket() {
	s.t.Helper()
	if _, err := os.Lstat(s.socket); !os.IsNotExist(err) {
		s.t.Fatalf("%s is still there (%v)", s.socket, err)
	}
	s.step("registrar: its socket is gone")
}

// mockDriver is the CSI driver of Kubernetes' own e2e tests, with a node id
// that differs from the driver name, and a NodeGetInfo that can be held up.
type mockDriver struct {
	service.Service
	before func() error
}

func (d mockDriver) NodeGetInfo(ctx context.Context, req *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if err := d.before(); err != nil {
		return nil, err
	}
	info, err := d.Service.NodeGetInfo(ctx, req)
	info.NodeId = nodeID
	return info, err
}

func (s *site) startDriver() {
	s.t.Helper()
	s.startDriverWith(func() error { return nil })
}

// startDriverWith runs before in each NodeGetInfo, which fails with its error.
func (s *site) startDriverWith(before func() error) {
	s.t.Helper()
	s.startDriverAs(driverName, s.csi, before)
}

func (s *site) startDriverAs(name, socket string, before func() error) {
	s.t.Helper()
	driver := mockDriver{service.New(service.Config{DriverName: name}), before}
	s.serve(socket, func(server *grpc.Server) {
		csi.RegisterIdentityServer(server, driver)
		csi.RegisterNodeServer(server, driver)
	})
}

func (s *site) serve(path string, register func(*grpc.Server)) {
	s.t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	go server.Serve(listener)
	s.t.Cleanup(server.Stop)
}

// process is a child with what it wrote to stderr.
type process struct {
	*site
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	stderr bytes.Buffer
	read   int // bytes of stderr that logs has passed
}

// Write takes the child's stderr.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(text)
}

func (s *site) start(name string, stdout io.Writer, argv ...string) *process {
	s.t.Helper()
	p := &process{site: s, name: name, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = stdout, p
	// Cleanup does not run when go test's own time limit strikes.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.step("%s: started, pid %d", name, p.cmd.Process.Pid)
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("stderr of %s, pid %d:\n%s", name, p.cmd.Process.Pid, p.stderr.String())
		}
	})
	return p
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	p.step("%s: %v", p.name, signal)
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// kill is SIGKILL, without complaint about a process that has ended.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

func (p *process) wantRunning() {
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("%s has ended: %v", p.name, p.cmd.ProcessState)
	default:
		p.step("%s: still runs", p.name)
	}
}

// descriptors is how many files the process holds open.
func (p *process) descriptors() int {
	p.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(open)
}

// exits waits for the end of the process and wants this exit code; -1 is an
// end by signal.
func (p *process) exits(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.t.Fatalf("%s has not ended", p.name)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("%s: %v, want exit code %d", p.name, p.cmd.ProcessState, code)
	}
	p.step("%s: %v", p.name, p.cmd.ProcessState)
}

// logs waits for a line of stderr with all the parts, after the line that the
// last call found.
func (p *process) logs(parts ...string) {
	p.t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		var ended bool
		select {
		case <-p.done:
			ended = true
		case <-deadline:
			p.t.Fatalf("%s has not logged %q", p.name, parts)
		case <-time.After(20 * time.Millisecond):
		}
		if p.find(parts) {
			return
		}
		if ended {
			p.t.Fatalf("%s has ended, %v, and not logged %q", p.name, p.cmd.ProcessState, parts)
		}
	}
}

func (p *process) find(parts []string) bool {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(p.stderr.String()[p.read:]) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		p.read += len(line)
		if containsAll(line, parts) {
			p.step("%s: %s", p.name, strings.TrimSpace(line))
			return true
		}
	}
	return false
}

func containsAll(line string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(line, part) {
			return false
		}
	}
	return true
}

// startRegistrar lets the given flags override the usual ones.
func (s *site) startRegistrar(flags ...string) *process {
	s.t.Helper()
	argv := []string{registrarBin,
		"--v=5",
		"--csi-address=" + s.csi,
		"--kubelet-registration-path=" + s.csi,
		"--plugin-registration-path=" + s.registry}
	return s.start("registrar", nil, append(argv, flags...)...)
}

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
