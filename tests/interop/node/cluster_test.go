package node

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	nodeName    = "node"
	nodeAddress = "10.244.0.1" // the gateway of the pods
	state       = "/var/lib/interop"
	token       = "token"

	// patience outlasts a busy machine and the kubelet's back-off.
	patience = 2 * time.Minute
)

// files are what the programs read, below the state folder. Ports and names
// are the node's own in its namespaces.
var files = map[string]string{
	"tokens.csv": token + `,admin,1,"system:masters"` + "\n",

	"kubeconfig": `apiVersion: v1
kind: Config
clusters:
  - name: cluster
    cluster: { server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true }
users:
  - name: user
    user: { token: ` + token + ` }
contexts:
  - name: context
    context: { cluster: cluster, user: user }
current-context: context
`,

	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /` + os.Getenv(cgroupVariable) + `
failCgroupV1: false
failSwapOn: false
authentication: { webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
# however full the disk may be
evictionHard: { memory.available: 0% }
imageGCHighThresholdPercent: 100
`,

	"containerd.toml": `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
# for a root without CAP_SYS_RESOURCE
restrict_oom_score_adj = true
cni = { bin_dir = "` + os.Getenv(cniVariable) + `", conf_dir = "` + state + `/cni" }
`,

	"cni/pods.conflist": `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
	"type": "bridge", "bridge": "pods0", "isGateway": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}
}]}
`,
}

// cluster is an API server with one node.
type cluster struct {
	*testing.T // of the scenario that runs
	*kubernetes.Clientset
	began   time.Time
	kubelet *exec.Cmd
}

// start returns when the kubelet says that the node is ready.
func (c *cluster) start() {
	config := &rest.Config{Host: "https://127.0.0.1:6443", BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	var err error
	if c.Clientset, err = kubernetes.NewForConfig(config); err != nil {
		c.Fatal(err)
	}
	for name, content := range files {
		c.write(name, []byte(content))
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		c.Fatal(err)
	}
	c.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))

	c.spawn("etcd", "--data-dir="+state+"/etcd")
	c.spawn("containerd", "--config="+state+"/containerd.toml")
	c.spawn(os.Getenv(apiserverVariable),
		"--etcd-servers=http://127.0.0.1:2379",
		"--cert-dir="+state+"/certificates",
		"--advertise-address="+nodeAddress,
		"--endpoint-reconciler-type=none",
		"--authorization-mode=AlwaysAllow",
		"--allow-privileged",
		"--token-auth-file="+state+"/tokens.csv",
		// there is no controller that makes accounts
		"--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://cluster",
		"--service-account-key-file="+state+"/key.pem",
		"--service-account-signing-key-file="+state+"/key.pem")
	c.importImages()
	c.eventually("the API server is ready", func() (bool, string) {
		var status int
		err := c.Discovery().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).StatusCode(&status).Error()
		return status == http.StatusOK, fmt.Sprint(err)
	})
	c.startKubelet()
	c.eventually("the node is ready", func() (bool, string) {
		node, err := c.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status == corev1.ConditionTrue, condition.Message
			}
		}
		return false, "no condition"
	})
}

func (c *cluster) startKubelet() {
	c.Helper()
	c.kubelet = c.spawn(os.Getenv(kubeletVariable),
		"--config="+state+"/kubelet.yaml",
		"--kubeconfig="+state+"/kubeconfig",
		"--hostname-override="+nodeName,
		"--node-ip="+nodeAddress,
		"--v=2")
}

func (c *cluster) stopKubelet() {
	c.Helper()
	if err := c.kubelet.Process.Signal(syscall.SIGTERM); err != nil {
		c.Fatal(err)
	}
	c.kubelet.Wait()
	c.step("the kubelet has ended: %v", c.kubelet.ProcessState)
}

func (c *cluster) write(name string, content []byte) string {
	c.Helper()
	path := filepath.Join(state, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.Fatal(err)
	}
	return path
}

// spawn starts a program that ends with the namespaces, with its output in
// a file of its name.
func (c *cluster) spawn(program string, args ...string) *exec.Cmd {
	c.Helper()
	log, err := os.OpenFile(filepath.Join("/var/log", filepath.Base(program)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.step("%s: started", filepath.Base(program))
	return cmd
}

// showLogs prints the end of each log after a failure.
func showLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	programs, _ := filepath.Glob("/var/log/*.log")
	containers, _ := filepath.Glob("/var/log/pods/*/*/*.log")
	for _, log := range append(programs, containers...) {
		content, _ := os.ReadFile(log)
		t.Logf("%s:\n%s", log, content[max(0, len(content)-10_000):])
	}
}

func (c *cluster) importImages() {
	c.Helper()
	c.eventually("containerd answers", func() (bool, string) {
		_, err := output("ctr", "version")
		return err == nil, fmt.Sprint(err)
	})
	for _, i := range c.images() {
		archive, err := i.archive()
		if err != nil {
			c.Fatal(err)
		}
		path := c.write("image.tar", archive)
		if _, err := output("ctr", "--namespace=k8s.io", "images", "import", path); err != nil {
			c.Fatal(err)
		}
		c.step("%s: imported, %d MB", i.name, len(archive)>>20)
	}
}

func (c *cluster) step(format string, args ...any) {
	c.Helper()
	c.Logf("%6.2fs  %s", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// eventually waits for the condition, which also tells how things stand.
func (c *cluster) eventually(what string, condition func() (bool, string)) {
	c.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		holds, found := condition()
		if holds {
			c.step("%s", what)
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("not within %v: %s; %s", patience, what, found)
		}
	}
}
