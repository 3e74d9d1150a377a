package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

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
