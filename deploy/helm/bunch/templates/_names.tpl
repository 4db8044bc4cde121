{{- define "bunch.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "bunch.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "bunch.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* By which the pods of a role are found: (dict "root" $ "role" "web" "pool" ""). They never change. */ -}}
{{- define "bunch.selector" -}}
app.kubernetes.io/name: bunch
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- with .pool }}
bunch.dev/pool: {{ . }}
{{- end }}
{{- end }}

{{- define "bunch.labels" -}}
{{ include "bunch.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- /* Of a role: (dict "root" $ "role" "web"). */ -}}
{{- define "bunch.image" -}}
{{- $image := .root.Values.image }}
{{- $slim := and (ne .role "worker") (or $image.slim.repository $image.slim.tag $image.slim.digest) }}
{{- $which := ternary $image.slim $image (not (empty $slim)) }}
{{- $repository := $which.repository | default $image.repository }}
{{- if $which.digest }}{{ $repository }}@{{ $which.digest }}{{ else }}{{ $repository }}:{{ $which.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Pools by their names, each with the values of `worker` where it has none of its own, as JSON. The name "" is that
of the only Deployment of a chart without pools. */ -}}
{{- define "bunch.pools" -}}
{{- $pools := dict }}
{{- range $name, $own := .Values.pools }}
{{- $_ := set $pools $name (mergeOverwrite (deepCopy $.Values.worker) ($own | default dict)) }}
{{- end }}
{{- if not $pools }}{{ $_ := set $pools "" .Values.worker }}{{ end }}
{{- $pools | toJson }}
{{- end }}
