package kubelet

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

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

// count is how many times stderr has the text by now.
func (p *process) count(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.stderr.String(), text)
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
