package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// startHostPath runs the csi-driver-host-path that the environment variable names.
func (s *site) startHostPath(variable string) *process {
	s.t.Helper()
	binary := os.Getenv(variable)
	if binary == "" {
		s.t.Skipf("needs a build of csi-driver-host-path in %s", variable)
	}
	return s.start("driver", nil, binary,
		"--drivername="+driverName,
		"--nodeid="+nodeID,
		"--endpoint=unix://"+s.csi,
		"--statedir="+filepath.Join(s.dir, "state"))
}

// driverVersion waits for the driver and asks it.
func (s *site) driverVersion() string {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.csi, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		s.t.Fatal("GetPluginInfo: ", err)
	}
	s.step("driver: GetPluginInfo: %v", info)
	return info.VendorVersion
}

func TestRegistersHostPath(t *testing.T) {
	s := newScenario(t, "registers csi-driver-host-path")
	s.startHostPath("CSI_DRIVER_HOST_PATH")
	s.scenario += " " + s.driverVersion()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	k.kill()
	k = s.startKubelet()
	k.registers(r)
	r.signal(syscall.SIGTERM)
	r.exits(0)
	k.expectDeregistered()
}

// Built without a version, it answers GetPluginInfo with UNAVAILABLE, for ever.
func TestNamesTheWordsOfAHostPathWithoutVersion(t *testing.T) {
	s := newScenario(t, "asks a csi-driver-host-path without version again, then ends with its words")
	s.startHostPath("CSI_DRIVER_HOST_PATH_UNVERSIONED")
	r := s.startRegistrar("--startup-timeout=5s")
	r.logs("Error retrieving CSI driver name, retrying", "Driver is missing version")
	r.logs("Error retreiving CSI driver name", "Driver is missing version")
	r.exits(1)
	s.wantNoSocket()
}
