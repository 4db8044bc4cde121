{{- /* What the pods of all roles have in common: (dict "root" $ "role" "web" "pool" "" "values" .Values.web
"grace" 45 "environment" (list …)). Containers are added below it. */ -}}
{{- define "bunch.template" -}}
metadata:
  labels:
    {{- include "bunch.selector" . | nindent 4 }}
    app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
    {{- with .root.Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    {{- if .root.Values.config.inline }}
    bunch.dev/config: {{ .root.Values.config.inline | sha256sum }}
    {{- end }}
    {{- with .root.Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "bunch.serviceAccount" .root }}
  automountServiceAccountToken: false
  # Variables that Kubernetes makes of Services are no settings.
  enableServiceLinks: false
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets: {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .grace }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .tolerations | default .values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "bunch.selector" . | nindent 10 }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: home
      {{- if .homeClaim }}
      persistentVolumeClaim: {claimName: {{ .homeClaim }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- if .root.Values.config.inline }}
    - name: config
      configMap: {name: {{ include "bunch.fullname" .root }}}
    {{- end }}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- $root := .root }}
          {{- range get (include "bunch.secretsOf" .root | fromJson) .role }}
          {{- $secret := get $root.Values.secrets . }}
          {{- if $secret.name }}
          - secret:
              name: {{ $secret.name }}
              items: [{key: {{ $secret.key }}, path: {{ snakecase . }}}]
          {{- end }}
          {{- end }}
    {{- with .root.Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}

{{- /* What the container of a role has besides its arguments, ports and probes. */ -}}
{{- define "bunch.container" -}}
name: {{ .role }}
image: {{ include "bunch.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- .resources | default .values.resources | toYaml | nindent 2 }}
env:
  - {name: BUNCH_CONFIG, value: {{ .root.Values.config.path | default "/etc/bunch/bunch.toml" }}}
  - {name: BUNCH_STATE_DIR, value: /tmp/bunch}
  - {name: HOME, value: /home/bunch}
  - {name: XDG_CACHE_HOME, value: /home/bunch/.cache}
  - {name: BUNCH_AUTH, value: {{ .root.Values.auth | quote }}}
  {{- if not (hasKey .root.Values.settings "LOG_FORMAT") }}
  - {name: BUNCH_LOG_FORMAT, value: json}
  {{- end }}
  {{- range $name, $value := .root.Values.settings }}
  - {name: BUNCH_{{ $name }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
  {{- end }}
  {{- $root := .root }}
  {{- range get (include "bunch.secretsOf" .root | fromJson) .role }}
  {{- if (get $root.Values.secrets .).name }}
  - {name: BUNCH_{{ snakecase . | upper }}_FILE, value: /etc/bunch-secrets/{{ snakecase . }}}
  {{- end }}
  {{- end }}
  {{- range .environment }}
  - {name: {{ .name }}, value: {{ .value | quote }}}
  {{- end }}
  {{- with .values.env }}{{ toYaml . | nindent 2 }}{{ end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: home, mountPath: /home/bunch}
  {{- if .root.Values.config.inline }}
  - {name: config, mountPath: /etc/bunch, readOnly: true}
  {{- end }}
  - {name: secrets, mountPath: /etc/bunch-secrets, readOnly: true}
  {{- with .root.Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- /* Probes of a role without a port: `bunch health`, a quarter of a second of a core each. */ -}}
{{- define "bunch.execProbes" -}}
{{- $health := concat .root.Values.image.command (list "health" .role) }}
# Until the first beat. A model that loads for long is a matter of readiness: the worker beats meanwhile.
startupProbe:
  exec: {command: {{ toJson $health }}}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 36
livenessProbe:
  exec: {command: {{ toJson $health }}}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
readinessProbe:
  exec: {command: {{ append $health "--ready" | toJson }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}

{{- define "bunch.disruptionBudget" -}}
{{- if .root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "bunch.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .root.Values.podDisruptionBudget.maxUnavailable }}
  # A pod that is not ready serves nobody, and must not keep a node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "bunch.selector" . | nindent 6 }}
{{- end }}
{{- end }}
