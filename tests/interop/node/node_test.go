package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	deploy     = "../../../deploy/"
	registrar  = "node-driver-registrar"
	pauseImage = "localhost/pause:0"
)

type scenario struct {
	name string
	run  func(*cluster)
}

// scenarios run in this order on one node. The example's pod lives from the
// second to the one that takes it away.
var scenarios = []scenario{
	{"starts a node", (*cluster).start},
	{"runs from the example's manifest as a pod", (*cluster).runsFromTheExample},
	{"lists the driver in CSINode", (*cluster).listed},
	{"its probes make the pod ready", (*cluster).readyByItsProbes},
	{"mounts a volume of the driver", (*cluster).mountsAVolume},
	{"lists it with a restarted kubelet", (*cluster).listedByARestartedKubelet},
	{"lists it when a killed container is back", (*cluster).listedAfterSIGKILL},
	{"takes it away when the registrar ends", (*cluster).takenAwayWithItsPod},
	{"lists it again", (*cluster).listedAgain},
	{"its exec probe makes the pod ready", (*cluster).readyByItsExecProbe},
	{"leaves the kubelet's refusal as termination message", (*cluster).leavesTheRefusal},
}

// report prints the result of a scenario for whoever collects them.
func report(version, scenario, result, rest string) {
	fmt.Printf("interop\tnode %s\t%s\t%s\t%s\n", strings.TrimPrefix(version, "v"), scenario, result, rest)
}

func TestNode(t *testing.T) {
	version := os.Getenv(versionVariable)
	t.Cleanup(func() { showLogs(t) })
	c := &cluster{began: time.Now()}
	for i, s := range scenarios {
		began := time.Now()
		ok := t.Run(s.name, func(t *testing.T) {
			c.T = t
			s.run(c)
		})
		result := "ok"
		if !ok {
			result = "FAILED"
		}
		report(version, s.name, result, fmt.Sprintf("%.1f", time.Since(began).Seconds()))
		if i == 0 && !ok {
			skip(version, "there is no node", scenarios[1:]...)
			return
		}
	}
}

func (c *cluster) runsFromTheExample() {
	driver := decode[storagev1.CSIDriver](c, deploy+"example/csidriver.yaml")
	if _, err := c.StorageV1().CSIDrivers().Create(context.Background(), driver, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.create(c.example())
	c.podIs("runs", c.example(), running)
}

func (c *cluster) listed() {
	c.waitForCSINode(true)
}

func (c *cluster) readyByItsProbes() {
	c.podIs("is ready, without a restart", c.example(), func(pod *corev1.Pod) bool {
		return ready(pod) && statusOf(pod, registrar).RestartCount == 0
	})
}

func (c *cluster) mountsAVolume() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "consumer", Namespace: "kube-system"}}
	pod.Spec.NodeName = nodeName
	pod.Spec.Containers = []corev1.Container{{
		Name: "pause", Image: pauseImage, VolumeMounts: []corev1.VolumeMount{{Name: "volume", MountPath: "/volume"}},
	}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "volume", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: c.driverName()},
	}}}
	c.createForNow(pod)
	c.podIs("runs", pod, running)
}

func (c *cluster) listedByARestartedKubelet() {
	c.stopKubelet()
	c.forgetCSINode()
	c.startKubelet()
	c.waitForCSINode(true)
}

func (c *cluster) listedAfterSIGKILL() {
	var id string
	c.podIs("runs", c.example(), func(pod *corev1.Pod) bool {
		id = strings.TrimPrefix(statusOf(pod, registrar).ContainerID, "containerd://")
		return running(pod)
	})
	c.forgetCSINode()
	if _, err := output("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", id); err != nil {
		c.Fatal(err)
	}
	c.step("%s: SIGKILL", registrar)
	c.waitForCSINode(true)
	c.podIs("was restarted once", c.example(), func(pod *corev1.Pod) bool {
		return running(pod) && statusOf(pod, registrar).RestartCount == 1
	})
}

func (c *cluster) takenAwayWithItsPod() {
	c.delete(c.example())
	c.waitForCSINode(false)
	c.waitUntilGone(c.example())
}

func (c *cluster) listedAgain() {
	c.createForNow(c.example())
	c.waitForCSINode(true)
}

func (c *cluster) readyByItsExecProbe() {
	pod := c.example()
	sidecar := container(pod, registrar)
	patch := decode[appsv1.DaemonSet](c, deploy+"exec-probe.yaml")
	sidecar.ReadinessProbe = patch.Spec.Template.Spec.Containers[0].ReadinessProbe
	*c.registrationPath(sidecar.ReadinessProbe.Exec.Command) = *c.registrationPath(sidecar.Args)
	c.createForNow(pod)
	c.waitForCSINode(true)
	c.podIs("is ready", pod, ready)
}

func (c *cluster) leavesTheRefusal() {
	pod := c.example()
	*c.registrationPath(container(pod, registrar).Args) = "--kubelet-registration-path=/var/lib/kubelet/plugins/other/csi.sock"
	c.createForNow(pod)
	c.podIs("has ended once", pod, func(pod *corev1.Pod) bool {
		ended := statusOf(pod, registrar).LastTerminationState.Terminated
		if ended == nil {
			return false
		}
		c.step("exit code %d, message %q", ended.ExitCode, ended.Message)
		return ended.ExitCode == 1 && strings.Contains(ended.Message, "plugin registration failed")
	})
}
