package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// image is a container image without a registry.
type image struct {
	name       string
	entrypoint []string
	files      map[string]string // from the path in the image to the path here
}

// newImage is one that runs a program of this machine.
func newImage(name, path, source string, args ...string) image {
	i := image{name: name, entrypoint: append([]string{path}, args...), files: make(map[string]string)}
	i.add(path, source)
	return i
}

// add adds a program and the libraries it is linked with.
func (i *image) add(path, source string) {
	i.files[path] = source
	// It fails for a static program.
	libraries, _ := exec.Command("ldd", source).Output()
	for _, word := range strings.Fields(string(libraries)) {
		if strings.HasPrefix(word, "/") {
			i.files[word] = word
		}
	}
}

// archive is the image in the form of `docker save`.
func (i *image) archive() ([]byte, error) {
	contents := make(map[string][]byte)
	for path, source := range i.files {
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		contents[strings.TrimPrefix(path, "/")] = content
	}
	layer, err := pack(contents)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"os":           runtime.GOOS,
		"architecture": runtime.GOARCH,
		"config":       map[string]any{"Entrypoint": i.entrypoint, "Env": []string{"PATH=/usr/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": "config.json", "RepoTags": []string{i.name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	return pack(map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest})
}

func pack(files map[string][]byte) ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: path, Size: int64(len(files[path])), Mode: 0o755}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(files[path]); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return buffer.Bytes(), err
}
