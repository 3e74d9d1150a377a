package kubelet

import (
	"context"
	"encoding/json"
	"os"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
)

const nodeName = "node-1"

// event is one line of the kubelet process's stdout.
type event struct {
	Kind     string `json:"kind"` // started, validate, register or deregister
	Driver   string `json:"driver,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Err      string `json:"err,omitempty"`
	// CSINode maps driver name to node id, as the API server holds it after the event.
	CSINode map[string]string `json:"csinode"`
}

// runKubelet is the part of a kubelet that registers CSI drivers, over a fake
// API server with one Node. It returns only when the registry cannot be watched.
func runKubelet(registry string) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	// Init hands the host to the registration handler, which is a global of the csi package.
	if err := csi.ProbeVolumePlugins()[0].Init(newHost(client)); err != nil {
		panic(err)
	}
	observed := &observer{PluginHandler: csi.PluginHandler, client: client}
	manager := pluginmanager.NewPluginManager(registry, &record.FakeRecorder{})
	manager.AddHandler(registerapi.CSIPlugin, observed)
	observed.report("started", "", "", nil)
	runManager(manager)
}

// observer reports what the plugin manager asks of the real CSI handler. Its
// methods stand with each minor's signatures.
type observer struct {
	cache.PluginHandler
	client clientset.Interface
	// turn keeps a driver that is registered beside others from reporting an
	// older CSINode after a newer one.
	turn sync.Mutex
}

// report writes the event and returns its error.
func (o *observer) report(kind, driver, endpoint string, result error) error {
	o.turn.Lock()
	defer o.turn.Unlock()
	e := event{Kind: kind, Driver: driver, Endpoint: endpoint, CSINode: map[string]string{}}
	if result != nil {
		e.Err = result.Error()
	}
	node, err := o.client.StorageV1().CSINodes().Get(context.Background(), nodeName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		panic(err)
	}
	if err == nil {
		for _, driver := range node.Spec.Drivers {
			e.CSINode[driver.Name] = driver.NodeID
		}
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(line, '\n'))
	return result
}

// host is as much of the kubelet as the CSI plugin needs for registration. A
// call to any other method is a nil dereference.
type host struct {
	volume.VolumeHost
	volume.KubeletVolumeHost
	client    clientset.Interface
	informers informers.SharedInformerFactory
}

func newHost(client clientset.Interface) *host {
	return &host{client: client, informers: informers.NewSharedInformerFactory(client, 0)}
}

func (h *host) GetKubeClient() clientset.Interface                  { return h.client }
func (h *host) GetNodeName() types.NodeName                         { return nodeName }
func (h *host) GetInformerFactory() informers.SharedInformerFactory { return h.informers }
func (h *host) CSIDriverLister() storagelisters.CSIDriverLister {
	return h.informers.Storage().V1().CSIDrivers().Lister()
}
func (h *host) CSIDriversSynced() toolscache.InformerSynced { return func() bool { return true } }
func (h *host) WaitForCacheSync() error                     { return nil }
func (h *host) SetKubeletError(error)                       {}
func (h *host) GetServiceAccountTokenFunc() func(namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return nil
}
