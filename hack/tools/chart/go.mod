// Makes the Helm chart of config/chart from the kustomize folders of config, compares the objects of both, and makes JSON
// schemas for kubeconform. hack/chart.sh and hack/test-chart.sh run it.
module nodewright.dev/hack/tools/chart

go 1.26.0

require go.yaml.in/yaml/v3 v3.0.4
