package node

import (
	"context"
	"flag"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

func awaitTermination() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	<-signals
}

// driver stands in for csi-driver-host-path. Its volumes are empty folders.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	name, node string
}

// runDriver takes the flags of csi-driver-host-path.
func runDriver(args []string) error {
	var d driver
	flags := flag.NewFlagSet("driver", flag.ExitOnError)
	flags.StringVar(&d.name, "drivername", "", "")
	flags.StringVar(&d.node, "nodeid", "", "")
	endpoint := flags.String("endpoint", "", "")
	flags.Int("v", 0, "")
	flags.Parse(args)

	path := strings.TrimPrefix(*endpoint, "unix://")
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	go func() {
		awaitTermination()
		server.Stop()
	}()
	return server.Serve(listener)
}

func (d driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "0"}, nil
}

func (d driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(request.TargetPath, 0o755)
}

func (d driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(request.TargetPath)
}
