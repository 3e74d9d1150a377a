//go:build kubelet_1_34

package kubelet

import (
	_ "embed"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// triesAgain: before 1.36 a kubelet leaves a registration that failed until the
// socket is made anew, and keeps one that it cannot tell the registrar of.
const triesAgain = false

//go:embed kubernetes-1.34.mod
var moduleFile string

func runManager(manager pluginmanager.PluginManager) { manager.Run(nil, nil) }

func (o *observer) ValidatePlugin(driver, endpoint string, versions []string) error {
	return o.report("validate", driver, endpoint, o.PluginHandler.ValidatePlugin(driver, endpoint, versions))
}

func (o *observer) RegisterPlugin(driver, endpoint string, versions []string, timeout *time.Duration) error {
	return o.report("register", driver, endpoint, o.PluginHandler.RegisterPlugin(driver, endpoint, versions, timeout))
}

func (o *observer) DeRegisterPlugin(driver, endpoint string) {
	o.PluginHandler.DeRegisterPlugin(driver, endpoint)
	o.report("deregister", driver, endpoint, nil)
}
