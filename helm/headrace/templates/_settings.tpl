{{/* What the settings file's sections come to where the file leaves something out. Go templates know
no defaults of ours, so `files/` has them, written by `python -m deployments.tools.chart`. */}}

{{/* The gateway's settings as the other templates need them, in JSON. */}}
{{- define "headrace.gateway" -}}
{{- $g := .Values.gateway -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $w := dict -}}
{{- range $name, $default := $defaults.gateway }}{{ $_ := set $w $name (dig $name $default $g) }}{{ end -}}
{{- range $section := list "limits" "log" }}{{ range $name, $default := index $defaults.gateway $section }}
{{- $_ := set $w $name (dig $section $name $default $g) }}{{ end }}{{ end -}}
{{- $host := dig "host" "0.0.0.0" $g -}}
{{- $tls := default dict $w.tls -}}
{{- $cors := default dict $w.cors -}}
{{- $grpc := dict "port" "" "idle_s" "" -}}
{{- if kindIs "map" $w.grpc }}{{ range $name, $default := $defaults.grpc }}{{ $_ := set $grpc $name (dig $name $default $w.grpc) }}{{ end }}
{{- $grpc = dict "port" (int64 $grpc.port | toString) "idle_s" (ceil $grpc.idle_s | int64) "tls" $grpc.tls }}{{ end -}}
{{- $dynamic := dict
  "HEADRACE_LOG_LEVEL" $w.level
  "HEADRACE_LOG_FORMAT" $w.format
  "HEADRACE_HAPROXY_HEADERS_S" (ceil $w.headers_timeout_s | int64)
  "HEADRACE_HAPROXY_BODY_S" (ceil $w.body_timeout_s | int64)
  "HEADRACE_HAPROXY_MAX_BODY_BYTES" (int64 $w.max_body_bytes)
  "HEADRACE_HAPROXY_SOURCE_CONNECTIONS" (int64 $w.connections_per_source)
  "HEADRACE_HAPROXY_TRUSTED_PROXIES" (join " " $w.trusted_proxies)
  "HEADRACE_HAPROXY_MAX_REQUESTS" (int64 $w.max_requests)
  "HEADRACE_HAPROXY_THREADS" (int64 $w.haproxy_threads)
  "HEADRACE_HAPROXY_COMPRESSION" (ternary 1 0 $w.compression)
  "HEADRACE_HAPROXY_GRPC_IDLE_S" $grpc.idle_s
  "HEADRACE_HAPROXY_PATH_PREFIX" (default "" $w.path_prefix)
  "HEADRACE_HAPROXY_CORS_ORIGINS" (dig "origins" list $cors | join " ")
  "HEADRACE_HAPROXY_CORS_CREDENTIALS" (ternary 1 0 (dig "credentials" false $cors))
-}}
{{- $environment := dict
  "RAY_SERVE_HAPROXY_STATS_PORT" (int64 $w.haproxy_stats_port)
  "RAY_SERVE_HAPROXY_METRICS_PORT" (int64 $w.haproxy_metrics_port)
  "HEADRACE_HAPROXY_HOST" $host
  "HEADRACE_HAPROXY_ADMIN_HOST" $w.haproxy_admin_host
  "HEADRACE_HAPROXY_CERTIFICATE" (dig "certificate" "" $tls)
  "HEADRACE_HAPROXY_KEY" (dig "key" "" $tls)
  "HEADRACE_HAPROXY_CLIENT_CA" (dig "client_ca" "" $tls | default "")
  "HEADRACE_HAPROXY_CLIENT_CA_OPERATORS" (ternary 1 0 (eq (dig "client_ca_for" "" $tls) "operators"))
  "HEADRACE_HAPROXY_REPLAY" (ternary 1 0 $w.replay)
  "HEADRACE_HAPROXY_GRPC_PORT" $grpc.port
  "HEADRACE_HAPROXY_GRPC_TLS" (ternary 1 0 (dig "tls" true $grpc))
  "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" $defaults.hard_stop_s
  "RAY_SERVE_PORT_QUARANTINE_S" (add 90 (max (divf $defaults.generate_timeout_ms 1000 | int64) (floor $w.drain_s | int64)))
-}}
{{- range $each := list $environment $dynamic }}{{ range $name, $value := $each }}{{ $_ := set $each $name (toString $value) }}{{ end }}{{ end }}
{{- range $name, $value := dict
  "public_path" (default "/" $w.path_prefix)
  "per_node" $w.replicas_per_node
  "nodes" (divf $w.replicas $w.replicas_per_node | ceil)
  "haproxy_is_reached" (not (or (has $w.haproxy_admin_host (list "localhost" "::1" "[::1]")) (hasPrefix "127." $w.haproxy_admin_host)))
  "host" $host
  "serve_host" (ternary "::" "0.0.0.0" (contains ":" $host))
  "keep_alive_s" (ceil $w.keep_alive_s)
  "grpc_port" $grpc.port
  "channel" (dig "channel" dict $g)
  "environment" $environment
  "dynamic" $dynamic -}}
{{ $_ := set $w $name $value }}{{ end -}}
{{- toJson $w -}}
{{- end }}

{{/* Serve's environment in JSON: `pod`, all that stands before `ray start`; `config`, what a Serve
config can still say (docs/cluster.md, "Environment"). What running processes take up of their
gateways is in no pod, where a change of it would start another cluster. */}}
{{- define "headrace.environment" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $pod := deepCopy $gateway.environment -}}
{{- $config := merge (deepCopy $gateway.environment) $gateway.dynamic -}}
{{- range $name, $each := .Files.Get "files/environment.json" | fromJson }}
{{- $_ := set $pod $name $each.value }}
{{- if $each.in_config }}{{ $_ := set $config $name $each.value }}{{ end }}
{{- end }}
{{- $_ := set $pod "RAY_SERVE_HAPROXY_BINARY_PATH" .Values.image.haproxy }}
{{- dict "pod" $pod "config" $config | toJson -}}
{{- end }}

{{/* From a model's settings to those that the replicas of each group start with: {"views": [{"group",
"after_s", "max_length", "settings"}]}, of group "" where there are none. */}}
{{- define "headrace.views" -}}
{{- $replicas := dig "replicas" dict . -}}
{{- $views := list -}}
{{- $model := . -}}
{{- range $group := dig "groups" list $replicas }}
{{- $own := omit (deepCopy $replicas) "groups" }}
{{- if or (hasKey $group "count") (hasKey $group "min") (hasKey $group "max") }}
{{- $own = omit $own "count" "min" "max" }}
{{- end }}
{{- range list "count" "min" "max" "cost_per_hour" "slots" "num_cpus" "num_gpus" "memory_mib" "resources" "labels" "threads" }}
{{- if hasKey $group . }}{{ $_ := set $own . (index $group .) }}{{ end }}
{{- end }}
{{- $view := omit (deepCopy $model) "replicas" }}
{{- range list "runtime" "precision" "options" }}
{{- if hasKey $group . }}{{ $_ := set $view . (index $group .) }}{{ end }}
{{- end }}
{{- if hasKey $group "lengths" }}
{{- $lengths := set (deepCopy (dig "lengths" dict $view)) "max" $group.lengths.max }}
{{- if kindIs "slice" (dig "buckets" "" $lengths) }}
{{- $edges := list }}
{{- range $lengths.buckets }}{{ if lt (int64 .) (int64 $group.lengths.max) }}{{ $edges = append $edges . }}{{ end }}{{ end }}
{{- $_ := set $lengths "buckets" (append $edges $group.lengths.max) }}
{{- end }}
{{- $_ := set $view "lengths" $lengths }}
{{- end }}
{{- if hasKey $group "batch" }}{{ $_ := set $view "batch" (merge (deepCopy $group.batch) (dig "batch" dict $view)) }}{{ end }}
{{- if $own }}{{ $_ := set $view "replicas" $own }}{{ end }}
{{- $after_s := divf (dig "overflow" "after_ms" 0 $group) 1000 }}
{{- $each := dict "group" $group.name "after_s" $after_s "settings" $view }}
{{- with dig "lengths" "max" nil $group }}{{ $_ := set $each "max_length" . }}{{ end }}
{{- $views = append $views $each }}
{{- end }}
{{- if not $views }}
{{- $views = list (dict "group" "" "after_s" 0 "settings" $model) }}
{{- end }}
{{- dict "views" $views | toJson -}}
{{- end }}

{{/* What of a model's settings shapes a replica. */}}
{{- define "headrace.shaping" -}}
{{- $shaping := omit (deepCopy .) "replicas" "scaling" -}}
{{- $own := omit (dig "replicas" dict .) "count" "min" "max" "spare" "survive" "priority" "cost_per_hour" "num_cpus" "num_gpus" "memory_mib" "resources" "labels" "surge_percent" "start_timeout_s" "groups" -}}
{{- if $own }}{{ $_ := set $shaping "replicas" $own }}{{ end }}
{{- toJson $shaping -}}
{{- end }}
