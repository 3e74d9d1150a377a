// Package kubelet proves a registrar against the kubelet's own plugin manager.
package kubelet

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// peer is the kubelet under test, in the interoperability matrix. A test binary
// does not know the versions of its modules.
var peer = "kubelet " + regexp.MustCompile(`k8s\.io/kubernetes v(\S+)`).FindStringSubmatch(moduleFile)[1]

// registrarBin is the registrar under test.
var registrarBin = os.Getenv("REGISTRAR_BIN")

func TestMain(m *testing.M) {
	// The test binary is also the kubelet: the CSI handler keeps its drivers in
	// a global, so only a new process is a restarted kubelet.
	if len(os.Args) == 3 && os.Args[1] == "kubelet" {
		runKubelet(os.Args[2])
		os.Exit(1)
	}
	// A skipped proof would look like a proof.
	if info, err := os.Stat(registrarBin); err != nil || info.IsDir() {
		fmt.Fprintf(os.Stderr, "REGISTRAR_BIN must be the absolute path of the registrar to test, not %q\n", registrarBin)
		os.Exit(2)
	}
	os.Exit(m.Run())
}
