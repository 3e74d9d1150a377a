// Package node proves a registrar on a real Kubernetes node.
package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

var (
	// registrarBin is the registrar under test.
	registrarBin = os.Getenv("REGISTRAR_BIN")
	// driverBin is csi-driver-host-path, or empty for the stand-in.
	driverBin = os.Getenv("CSI_DRIVER_HOST_PATH")
)

// What the first process of the namespaces gets from the one that makes them.
const (
	versionVariable   = "NODE_KUBERNETES"
	kubeletVariable   = "NODE_KUBELET"
	apiserverVariable = "NODE_APISERVER"
	cniVariable       = "NODE_CNI"
	cgroupVariable    = "NODE_CGROUP"
)

func TestMain(m *testing.M) {
	// The images of the pods hold the test binary, too.
	if len(os.Args) > 1 && os.Args[1] == "pause" {
		awaitTermination()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "driver" {
		exit(runDriver(os.Args[2:]))
	}
	if os.Getenv(versionVariable) != "" {
		if err := furnish(); err != nil {
			exit(err)
		}
		os.Exit(m.Run())
	}
	exit(runInNamespaces())
}

func exit(err error) {
	var ended *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &ended):
		os.Exit(ended.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// runInNamespaces runs the tests in namespaces of their own, with which all
// processes, mounts and interfaces of the node end.
func runInNamespaces() error {
	// A skipped proof would look like a proof.
	if info, err := os.Stat(registrarBin); err != nil || info.IsDir() {
		return fmt.Errorf("REGISTRAR_BIN must be the absolute path of the registrar to test, not %q", registrarBin)
	}
	version, err := output("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	cni, missing := prerequisites()
	if missing != "" {
		skip(version, missing, scenarios...)
		return nil
	}
	cgroup := fmt.Sprintf("registrar-interop-%d", os.Getpid())
	defer removeCgroups(cgroup)
	if err := makeCgroups(cgroup); err != nil {
		skip(version, err.Error(), scenarios...)
		return nil
	}
	kubelet, err := build("kubelet")
	if err != nil {
		return err
	}
	apiserver, err := build("kube-apiserver")
	if err != nil {
		return err
	}

	// The death signal comes when the thread ends that started the child.
	runtime.LockOSThread()
	inside := exec.Command("/proc/self/exe", os.Args[1:]...)
	inside.Env = append(os.Environ(),
		versionVariable+"="+version,
		kubeletVariable+"="+kubelet,
		apiserverVariable+"="+apiserver,
		cniVariable+"="+cni,
		cgroupVariable+"="+cgroup)
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := inside.Start(); err != nil {
		skip(version, err.Error(), scenarios...)
		return nil
	}
	return inside.Wait()
}

// skip says why scenarios do not run.
func skip(version, reason string, skipped ...scenario) {
	for _, s := range skipped {
		report(version, s.name, "skipped", reason)
	}
}

// prerequisites returns the folder of the CNI plugins, or what is missing.
func prerequisites() (cni, missing string) {
	if os.Geteuid() != 0 {
		return "", "needs root"
	}
	for _, name := range []string{"etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip"} {
		if _, err := exec.LookPath(name); err != nil {
			return "", name + " is not installed"
		}
	}
	for _, dir := range []string{"/opt/cni/bin", "/usr/lib/cni"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir, ""
		}
	}
	return "", "the CNI plugins are not installed"
}

// build returns the path of a tool of go.mod in Go's build cache.
func build(tool string) (string, error) {
	cmd := exec.Command("go", "tool", "-n", tool)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return text(cmd)
}

func output(name string, args ...string) (string, error) {
	return text(exec.Command(name, args...))
}

// text is what the command prints, without the last line's end.
func text(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return "", fmt.Errorf("%v: %v\n%s", cmd.Args, err, ended.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// cgroups are the folders of the cgroup, one in each hierarchy.
func cgroups(name string) []string {
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{filepath.Join(root, name)}
	}
	hierarchies, _ := filepath.Glob(root + "/*/cgroup.procs")
	for i, file := range hierarchies {
		hierarchies[i] = filepath.Join(filepath.Dir(file), name)
	}
	return hierarchies
}

func makeCgroups(name string) error {
	for _, dir := range cgroups(name) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroups(name string) {
	var dirs []string
	for _, top := range cgroups(name) {
		filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	for _, dir := range slices.Backward(dirs) {
		if err := syscall.Rmdir(dir); err != nil {
			fmt.Fprintf(os.Stderr, "remove %s: %v\n", dir, err)
		}
	}
}

// tunables are the kernel settings of the whole machine that the kubelet wants
// to have. It finds these values and so leaves the real ones alone.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// furnish prepares the new namespaces.
func furnish() error {
	mounts := []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		// Bidirectional mounts of pods need it.
		{"none", "/", "", syscall.MS_REC | syscall.MS_SHARED},
		{"proc", "/proc", "proc", 0},
		// All state, at the usual places.
		{"tmpfs", "/run", "tmpfs", 0},
		{"tmpfs", "/var/lib", "tmpfs", 0},
		{"tmpfs", "/var/log", "tmpfs", 0},
	}
	for _, m := range mounts {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	for name, value := range tunables {
		file := "/run/" + filepath.Base(name)
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", name, err)
		}
	}
	for _, arguments := range []string{
		"link set lo up",
		"link add pods0 type bridge",
		"address add " + nodeAddress + "/24 dev pods0",
		"link set pods0 up",
	} {
		if _, err := output("ip", strings.Fields(arguments)...); err != nil {
			return err
		}
	}
	return nil
}
