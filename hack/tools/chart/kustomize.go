package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kustomize renders folders of config.
type kustomize struct {
	kubectl, config string
}

// render renders an overlay of folders of config with components of config, and components of this program's folder `values`.
// Paths of the latter begin with `values/`.
func (k kustomize) render(namespace string, resources, components []string) ([]*node, error) {
	overlay, err := os.MkdirTemp("", "chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(overlay)
	// kustomize takes relative paths alone, and resolves links.
	if overlay, err = filepath.EvalSymlinks(overlay); err != nil {
		return nil, err
	}
	config, err := filepath.EvalSymlinks(k.config)
	if err != nil {
		return nil, err
	}
	if config, err = filepath.Abs(config); err != nil {
		return nil, err
	}
	paths := func(of []string) (string, error) {
		var list []string
		for _, path := range of {
			from := config
			if strings.HasPrefix(path, "values/") {
				from = filepath.Join(config, "../hack/tools/chart")
			}
			relative, err := filepath.Rel(overlay, filepath.Join(from, path))
			if err != nil {
				return "", err
			}
			list = append(list, relative)
		}
		return strings.Join(list, ", "), nil
	}
	text := ""
	for field, of := range map[string][]string{"resources": resources, "components": components} {
		list, err := paths(of)
		if err != nil {
			return nil, err
		}
		text += fmt.Sprintf("%s: [%s]\n", field, list)
	}
	if namespace != "" {
		transformer, err := paths([]string{"another-namespace"})
		if err != nil {
			return nil, err
		}
		text += fmt.Sprintf("namespace: %s\ntransformers: [%s]\n", namespace, transformer)
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	var problem strings.Builder
	command := exec.Command(k.kubectl, "kustomize", overlay)
	command.Stderr = &problem
	rendered, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl kustomize with %s: %w: %s", text, err, problem.String())
	}
	return parse(rendered)
}
