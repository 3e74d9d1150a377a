package kubelet

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
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
