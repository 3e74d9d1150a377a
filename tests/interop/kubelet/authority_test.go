package kubelet

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kubelets built with a grpc-go from before 2023 send the path as it is.
func TestAcceptsTheRawPathAsAuthority(t *testing.T) {
	s := newScenario(t, "accepts the raw path as authority")
	s.startDriver()
	r := s.startRegistrar()
	r.logs("Registration Server started")
	client := s.dial(grpc.WithAuthority(s.socket))
	s.getInfo(client)
	s.notify(client)
	r.logs("Received NotifyRegistrationStatus call", "plugin_registered:true")
	r.wantRunning()
}

// The other tests mean little if the kubelet sends an authority that every
// HTTP/2 library takes. A server in the registrar's place looks.
func TestTheKubeletSendsItsPathAsAuthority(t *testing.T) {
	s := newScenario(t, "the kubelet sends its path as authority")
	s.startDriver()
	seen := make(chan string, 100)
	s.serve(s.socket, func(server *grpc.Server) {
		registerapi.RegisterRegistrationServer(server, standIn{endpoint: s.csi, seen: seen})
	})
	k := s.startKubelet()
	k.expectRegistered()
	want := strings.ReplaceAll(s.socket, "/", "%2F")
	s.wantCall(seen, "GetInfo :authority "+want)
	s.wantCall(seen, "NotifyRegistrationStatus :authority "+want)
	// What dial sends in the kubelet's name is the same.
	s.getInfo(s.dial())
	s.wantCall(seen, "GetInfo :authority "+want)
}

func (s *site) wantCall(seen <-chan string, want string) {
	s.t.Helper()
	select {
	case got := <-seen:
		s.step("stand-in: called by %s", got)
		if got != want {
			s.t.Fatalf("want %s", want)
		}
	case <-time.After(10 * time.Second):
		s.t.Fatalf("no call, want %s", want)
	}
}

// standIn serves in the registrar's place and tells what authority it was called by.
type standIn struct {
	registerapi.UnimplementedRegistrationServer
	endpoint string
	seen     chan<- string
	notified func() error // what NotifyRegistrationStatus answers
}

func (r standIn) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	r.tell(ctx, "GetInfo")
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r standIn) NotifyRegistrationStatus(ctx context.Context, _ *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.tell(ctx, "NotifyRegistrationStatus")
	if r.notified != nil {
		if err := r.notified(); err != nil {
			return nil, err
		}
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (r standIn) tell(ctx context.Context, method string) {
	headers, _ := metadata.FromIncomingContext(ctx)
	r.seen <- method + " :authority " + strings.Join(headers[":authority"], ",")
}

// dial connects to the registrar the way the kubelet does: by the bare path,
// from which grpc derives the authority unless an option names one.
func (s *site) dial(options ...grpc.DialOption) registerapi.RegistrationClient {
	s.t.Helper()
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	conn, err := grpc.NewClient("passthrough:///"+s.socket, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return registerapi.NewRegistrationClient(conn)
}

func (s *site) getInfo(client registerapi.RegistrationClient) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		s.t.Fatal("GetInfo: ", err)
	}
	if info.Type != registerapi.CSIPlugin || info.Name != driverName || info.Endpoint != s.csi {
		s.t.Fatalf("GetInfo: %v", info)
	}
	s.step("client: GetInfo: %v", info)
}

func (s *site) notify(client registerapi.RegistrationClient) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		s.t.Fatal("NotifyRegistrationStatus: ", err)
	}
	s.step("client: NotifyRegistrationStatus: ok")
}
