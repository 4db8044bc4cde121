{{- /* bunch.toml as a dict, in JSON; empty where the file is in the image. */ -}}
{{- define "bunch.toml" -}}
{{- $toml := dict }}
{{- with .Values.config.inline }}
{{- $toml = fromToml . }}
{{- if hasKey $toml "Error" }}{{ fail (printf "config.inline is not TOML: %s" (get $toml "Error")) }}{{ end }}
{{- end }}
{{- $toml | toJson }}
{{- end }}

{{- /* What no schema can say. */ -}}
{{- define "bunch.check" -}}
{{- if eq (empty .Values.config.inline) (empty .Values.config.path) }}
{{- fail "set exactly one of config.inline and config.path (config.inline: \"\" takes the chart's own away)" }}
{{- end }}
{{- if and (contains "keys" .Values.auth) (not .Values.secrets.databaseUrl.name) }}
{{- fail "auth: keys needs a database that outlives the pods: set secrets.databaseUrl" }}
{{- end }}
{{- if and .Values.flower.enabled (not .Values.secrets.flowerBasicAuth.name) }}
{{- fail "flower listens in the cluster, so it needs a password: set secrets.flowerBasicAuth" }}
{{- end }}
{{- if and .Values.keda.enabled (eq .Values.keda.trigger "prometheus") (not .Values.keda.serverAddress) }}
{{- fail "keda.trigger: prometheus needs keda.serverAddress" }}
{{- end }}
{{- $toml := include "bunch.toml" . | fromJson }}
{{- if .Values.config.inline }}
{{- $there := keys ($toml.pools | default dict) | sortAlpha | join ", " }}
{{- $here := keys .Values.pools | sortAlpha | join ", " }}
{{- if and (ne $there $here) (or $there $here) }}
{{- fail (printf "pools has (%s), and [pools] of config.inline has (%s): each needs the other, or its models have no worker" $here $there) }}
{{- end }}
{{- end }}
{{- range $name, $pool := include "bunch.pools" . | fromJson }}
{{- if gt (int $pool.scale.min) (int $pool.scale.max) }}
{{- fail (printf "scale.min of the pool %q is above its scale.max" $name) }}
{{- end }}
{{- if and $.Values.keda.enabled (not (int $pool.scale.min)) (eq (toString $.Values.settings.METRICS) "off") }}
{{- fail "scale.min: 0 needs settings.METRICS on: only the metrics tell of a request that was refused for want of a worker" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Seconds that a process may drain: the environment goes over the file, the file over Bunch's default. */ -}}
{{- define "bunch.gracefulSeconds" -}}
{{- $toml := include "bunch.toml" . | fromJson }}
{{- $ms := .Values.settings.GRACEFUL_TIMEOUT_MS | default ($toml.server | default dict).graceful_timeout_ms | default 30000 }}
{{- divf (int $ms) 1000 | ceil | int }}
{{- end }}

{{- /* The largest of a key in milliseconds of all models and their versions, in seconds: (dict "root" $ "key" "timeout_ms" "default" 3000
"seconds" 0). `seconds`, where it is not 0, is what a person says instead. */ -}}
{{- define "bunch.longestSeconds" -}}
{{- $longest := 0 }}
{{- $default := .default }}
{{- $key := .key }}
{{- range $name, $model := (include "bunch.toml" .root | fromJson).models }}
{{- $longest = max $longest (int (get $model $key | default $default)) }}
{{- range $version, $own := $model.versions }}
{{- $longest = max $longest (int (get $own $key | default 0)) }}
{{- end }}
{{- end }}
{{- .seconds | default (divf ($longest | default .default) 1000 | ceil) | int }}
{{- end }}

{{- /* Who holds which secret: the same as HOLDERS of config/secrets/secret_settings.py. */ -}}
{{- define "bunch.secretsOf" -}}
{{- $fronts := list "redisUrl" "brokerUrl" "blobUrl" "serviceToken" "jwtSecret" "messageSecret" "messageSecretPrevious" "otlpHeaders" }}
{{- dict
  "web" $fronts
  "grpc" $fronts
  "worker" (list "redisUrl" "brokerUrl" "blobUrl" "messageSecret" "messageSecretPrevious" "otlpHeaders")
  "ops" (list "redisUrl" "brokerUrl" "blobUrl" "databaseUrl" "callbackSecret")
  "flower" (list "redisUrl" "brokerUrl" "flowerBasicAuth")
  "autoscale" (list "redisUrl" "brokerUrl")
| toJson }}
{{- end }}
