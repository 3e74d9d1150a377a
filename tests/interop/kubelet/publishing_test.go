package kubelet

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	// recreations that the kubelet is shown, of each way to publish.
	recreations = 15
	// dials of a watcher that has one try for each new socket.
	dials = 2000
)

// ways to replace the socket at a path.
var ways = []struct {
	name    string
	publish func(path string) (*net.UnixListener, error)
}{
	{"unlink, bind, listen", func(path string) (*net.UnixListener, error) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		return listen(path)
	}},
	{"unlink, bind hidden, listen, link, unlink hidden", linked(0)},
	{"the same, 0.2 ms after listen", linked(200 * time.Microsecond)},
	{"bind hidden, listen, rename over", func(path string) (*net.UnixListener, error) {
		listener, err := listen(hidden(path))
		if err != nil {
			return nil, err
		}
		return listener, os.Rename(hidden(path), path)
	}},
}

func linked(pause time.Duration) func(path string) (*net.UnixListener, error) {
	return func(path string) (*net.UnixListener, error) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		listener, err := listen(hidden(path))
		if err != nil {
			return nil, err
		}
		time.Sleep(pause)
		if err := os.Link(hidden(path), path); err != nil {
			return nil, err
		}
		return listener, os.Remove(hidden(path))
	}
}

func hidden(path string) string { return filepath.Join(filepath.Dir(path), ".hidden") }

func listen(path string) (*net.UnixListener, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener.(*net.UnixListener), nil
}

func measures(t *testing.T) {
	if os.Getenv("PUBLISHING") == "" {
		t.Skip("a measurement, with PUBLISHING=1")
	}
}

// TestPublishingToTheKubelet measures how long CSINode is without the driver
// when its socket is replaced, in each way, and how often the kubelet complains.
func TestPublishingToTheKubelet(t *testing.T) {
	measures(t)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			s := newSite(t)
			s.startDriver()
			server := grpc.NewServer()
			t.Cleanup(server.Stop)
			seen := make(chan string, 10*recreations)
			registerapi.RegisterRegistrationServer(server, standIn{endpoint: s.csi, seen: seen})
			k := s.startKubelet()
			listener, err := listen(s.socket)
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(listener)
			k.expectRegistered()
			var without, until []time.Duration
			for i := range recreations {
				// Each time at another moment of the kubelet's second.
				time.Sleep(time.Second + time.Duration(i)*time.Second/recreations)
				began := time.Now()
				next, err := way.publish(s.socket)
				if err != nil {
					t.Fatal(err)
				}
				go server.Serve(next)
				listener.Close()
				listener = next
				k.expectDeregistered()
				gone := time.Now()
				k.expectRegistered()
				without = append(without, time.Since(gone))
				until = append(until, time.Since(began))
			}
			errors := k.count("Error when handling create event")
			t.Logf("| %s | %s | %s | %d of %d |", way.name, spread(without), spread(until), errors, recreations)
		})
	}
}

func spread(times []time.Duration) string {
	slices.Sort(times)
	at := func(i int) float64 { return times[i].Seconds() }
	return fmt.Sprintf("%.2f s (%.2f–%.2f)", at(len(times)/2), at(0), at(len(times)-1))
}

// TestPublishingToAWatcherWithOneTry counts what a watcher gets that dials at
// the event that shows a new socket, and not again.
func TestPublishingToAWatcherWithOneTry(t *testing.T) {
	measures(t)
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x-reg.sock")
			listener, err := listen(path)
			if err != nil {
				t.Fatal(err)
			}
			outcomes := watch(t, path)
			count := map[string]int{}
			for range dials {
				next, err := way.publish(path)
				if err != nil {
					t.Fatal(err)
				}
				listener.Close()
				listener = next
				select {
				case outcome := <-outcomes:
					count[outcome]++
				case <-time.After(time.Second):
					count["no event"]++
				}
			}
			var cells []string
			for outcome, n := range count {
				cells = append(cells, fmt.Sprintf("%s: %d", outcome, n))
			}
			slices.Sort(cells)
			t.Logf("| %s | %s |", way.name, strings.Join(cells, ", "))
		})
	}
}

// watch dials the path at once at each event that shows a new file there, and
// tells the event and what came of the dial.
func watch(t *testing.T, path string) <-chan string {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	mask := map[uint32]string{unix.IN_CREATE: "IN_CREATE", unix.IN_MOVED_TO: "IN_MOVED_TO"}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	outcomes := make(chan string, dials)
	go func() {
		runtime.LockOSThread()
		buffer := make([]byte, 4096)
		for {
			n, err := unix.Read(fd, buffer)
			if err != nil {
				return
			}
			for events := buffer[:n]; len(events) > 0; {
				event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
				end := unix.SizeofInotifyEvent + int(event.Len)
				name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:end], "\x00"))
				if name == filepath.Base(path) {
					outcomes <- fmt.Sprintf("%s, %s", mask[event.Mask], dialOnce(path))
				}
				events = events[end:]
			}
		}
	}()
	return outcomes
}

func dialOnce(path string) string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err.Error()
	}
	return "connected"
}
