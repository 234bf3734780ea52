{{/* Names of objects without a namespace end in that of the release, as in config/another-namespace. */}}
{{- define "nodewright.suffix" -}}
{{- if eq .Release.Namespace "kube-system" }}
{{- fail "namespace kube-system: its policy lets Nodewright write no Secret but bootstrap tokens, so it needs another namespace" }}
{{- end -}}
{{- if ne .Release.Namespace "nodewright-system" }}-{{ .Release.Namespace }}{{ end -}}
{{- end -}}

{{/* The labels of Helm. app.kubernetes.io/instance is none of them: by it config/guard knows the namespace of an installation. */}}
{{- define "nodewright.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version) }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The reference of an image, of a list of the image and the root. */}}
{{- define "nodewright.image" -}}
{{- $image := first . -}}
{{- $tag := $image.tag -}}
{{- if not (or $image.tag $image.digest) }}{{ $tag = (last .).Chart.AppVersion }}{{ end -}}
{{ $image.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end -}}
