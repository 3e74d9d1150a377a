package kubelet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func TestRegistersTheDriver(t *testing.T) {
	s := newSite(t)
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	k.quiet(3 * time.Second)
}

func TestSIGTERMDeregisters(t *testing.T) {
	s := newSite(t)
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
	s := newSite(t)
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
	s := newSite(t)
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

func TestRegistersOverADeadSocketTheKubeletIsDialling(t *testing.T) {
	s := newSite(t)
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

// Each deletion takes the kubelet two of its seconds: one to deregister the
// driver, one to register it. DELETIONS is how many there are, 20 by default.
func TestRegistersAgainWhenItsSocketIsDeleted(t *testing.T) {
	s := newSite(t)
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrar()
	k.registers(r)
	deletions := 20
	if text := os.Getenv("DELETIONS"); text != "" {
		var err error
		if deletions, err = strconv.Atoi(text); err != nil {
			t.Fatal("DELETIONS: ", err)
		}
	}
	for i := range deletions {
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

func TestEndsWhenTheKubeletRefuses(t *testing.T) {
	s := newSite(t)
	s.startDriver()
	k := s.startKubelet()
	r := s.startRegistrarFor(filepath.Join(filepath.Dir(s.csi), "nothing-here.sock"))
	k.expect("validate")
	if e := k.next(); e.Kind != "register" || e.Err == "" {
		t.Fatalf("kubelet: %v, want register with an error", e)
	}
	r.exits(1)
	r.logs("Received NotifyRegistrationStatus call", "plugin registration failed with err")
	r.logs("Registration process failed with error, restarting registration container")
	s.wantNoSocket()

	r = s.startRegistrar()
	k.registers(r)
}

// A kubelet reports the end of an attempt to whoever holds the socket by then,
// which may be a registrar that started in between.
func TestTakesAStatusBeforeAnyGetInfo(t *testing.T) {
	s := newSite(t)
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

// Kubelets built with a grpc-go from before 2023 send the path as it is.
func TestAcceptsTheRawPathAsAuthority(t *testing.T) {
	s := newSite(t)
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
	s := newSite(t)
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
}

func (r standIn) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	r.tell(ctx, "GetInfo")
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r standIn) NotifyRegistrationStatus(ctx context.Context, _ *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.tell(ctx, "NotifyRegistrationStatus")
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
