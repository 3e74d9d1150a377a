package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
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

func decode[T any](c *cluster, path string) *T {
	c.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		c.Fatal(err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		c.Fatalf("%s: %v", path, err)
	}
	return object
}

// example is the pod of the example's DaemonSet, bound to the node.
func (c *cluster) example() *corev1.Pod {
	c.Helper()
	set := decode[appsv1.DaemonSet](c, deploy+"example/daemonset.yaml")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: set.Name, Namespace: set.Namespace, Labels: set.Spec.Template.Labels},
		Spec:       set.Spec.Template.Spec,
	}
	pod.Spec.NodeName = nodeName
	return pod
}

func container(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// images are those that the example names, and the pause image. With them no
// registry is asked.
func (c *cluster) images() []image {
	c.Helper()
	self, err := os.Executable()
	if err != nil {
		c.Fatal(err)
	}
	pod := c.example()
	driver := newImage(container(pod, "hostpath").Image, "/node", self, "driver")
	if driverBin != "" {
		driver = newImage(driver.name, "/hostpathplugin", driverBin)
		for _, tool := range []string{"/usr/bin/mount", "/usr/bin/umount", "/usr/bin/findmnt"} {
			driver.add(tool, tool)
		}
	}
	return []image{
		newImage(container(pod, registrar).Image, "/csi-node-driver-registrar", registrarBin),
		newImage(pauseImage, "/node", self, "pause"),
		driver,
	}
}

func (c *cluster) create(pod *corev1.Pod) {
	c.Helper()
	// the namespace comes a moment after the server
	c.eventually(pod.Name+": created", func() (bool, string) {
		_, err := c.CoreV1().Pods(pod.Namespace).Create(context.Background(), pod, metav1.CreateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			c.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

// podIs waits until the condition holds for the pod.
func (c *cluster) podIs(what string, pod *corev1.Pod, condition func(*corev1.Pod) bool) {
	c.Helper()
	c.eventually(pod.Name+" "+what, func() (bool, string) {
		now, err := c.CoreV1().Pods(pod.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		status, _ := json.Marshal(now.Status)
		return condition(now), string(status)
	})
}

// createForNow ends the pod with the scenario.
func (c *cluster) createForNow(pod *corev1.Pod) {
	c.Helper()
	c.create(pod)
	c.Cleanup(func() {
		c.delete(pod)
		c.waitUntilGone(pod)
	})
}

func (c *cluster) delete(pod *corev1.Pod) {
	c.Helper()
	if err := c.CoreV1().Pods(pod.Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	c.step("%s: deletion asked for", pod.Name)
}

func (c *cluster) waitUntilGone(pod *corev1.Pod) {
	c.Helper()
	c.eventually(pod.Name+" is gone", func() (bool, string) {
		_, err := c.CoreV1().Pods(pod.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

func running(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running == nil {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func statusOf(pod *corev1.Pod, name string) corev1.ContainerStatus {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == name {
			return status
		}
	}
	return corev1.ContainerStatus{}
}

// driverName is the name that the example's CSIDriver has.
func (c *cluster) driverName() string {
	c.Helper()
	return decode[storagev1.CSIDriver](c, deploy+"example/csidriver.yaml").Name
}

// waitForCSINode waits until the driver is listed, with the node's name as its
// id, or is not listed.
func (c *cluster) waitForCSINode(want bool) {
	c.Helper()
	name := c.driverName()
	c.eventually(fmt.Sprintf("CSINode lists %s: %v", name, want), func() (bool, string) {
		node, err := c.StorageV1().CSINodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, driver := range node.Spec.Drivers {
			if driver.Name == name {
				return want && driver.NodeID == nodeName, fmt.Sprint(node.Spec.Drivers)
			}
		}
		return !want, fmt.Sprint(node.Spec.Drivers)
	})
}

// forgetCSINode leaves it to a new registration that the driver is listed.
func (c *cluster) forgetCSINode() {
	c.Helper()
	if err := c.StorageV1().CSINodes().Delete(context.Background(), nodeName, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	c.step("CSINode: deleted")
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

// registrationPath is the argument with the driver's socket as the kubelet sees it.
func (c *cluster) registrationPath(args []string) *string {
	c.Helper()
	for i := range args {
		if strings.HasPrefix(args[i], "--kubelet-registration-path=") {
			return &args[i]
		}
	}
	c.Fatalf("no --kubelet-registration-path in %q", args)
	return nil
}
