//go:build !kubelet_1_34

package kubelet

import (
	"context"
	_ "embed"
	"time"

	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// triesAgain: since 1.36 a kubelet tries a registration again that failed, and
// takes one back that it cannot tell the registrar of.
const triesAgain = true

//go:embed go.mod
var moduleFile string

func runManager(manager pluginmanager.PluginManager) { manager.Run(context.Background(), nil, nil) }

func (o *observer) ValidatePlugin(ctx context.Context, driver, endpoint string, versions []string) error {
	return o.report("validate", driver, endpoint, o.PluginHandler.ValidatePlugin(ctx, driver, endpoint, versions))
}

func (o *observer) RegisterPlugin(ctx context.Context, driver, endpoint string, versions []string, timeout *time.Duration) error {
	return o.report("register", driver, endpoint, o.PluginHandler.RegisterPlugin(ctx, driver, endpoint, versions, timeout))
}

func (o *observer) DeRegisterPlugin(ctx context.Context, driver, endpoint string) {
	o.PluginHandler.DeRegisterPlugin(ctx, driver, endpoint)
	o.report("deregister", driver, endpoint, nil)
}
