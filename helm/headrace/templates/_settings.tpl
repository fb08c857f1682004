{{/* What the settings file's sections come to where the file leaves something out. Go templates know
no defaults of ours, so `files/` has them, written by `python -m deployments.tools.chart`. */}}

{{/* The gateway's settings as the other templates need them, in JSON. */}}
{{- define "headrace.gateway" -}}
{{- $g := .Values.gateway -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $d := $defaults.gateway -}}
{{- $host := dig "host" "0.0.0.0" $g -}}
{{- $every := ternary "::" "0.0.0.0" (contains ":" $host) -}}
{{- $replicas := dig "replicas" $d.replicas $g -}}
{{- $per_node := dig "replicas_per_node" $d.replicas_per_node $g -}}
{{- $num_cpus := dig "num_cpus" $d.num_cpus $g -}}
{{- $admin_host := dig "haproxy_admin_host" $d.haproxy_admin_host $g -}}
{{- $tls := dig "tls" dict $g | default dict -}}
{{- $cors := dig "cors" dict $g | default dict -}}
{{- $prefix := dig "path_prefix" "" $g | default "" -}}
{{- $dynamic := dict
  "HEADRACE_LOG_LEVEL" (dig "log" "level" $d.log.level $g)
  "HEADRACE_LOG_FORMAT" (dig "log" "format" $d.log.format $g)
  "HEADRACE_HAPROXY_HEADERS_S" (dig "limits" "headers_timeout_s" $d.limits.headers_timeout_s $g | ceil | int64)
  "HEADRACE_HAPROXY_BODY_S" (dig "limits" "body_timeout_s" $d.limits.body_timeout_s $g | ceil | int64)
  "HEADRACE_HAPROXY_MAX_BODY_BYTES" (dig "limits" "max_body_bytes" $d.limits.max_body_bytes $g | int64)
  "HEADRACE_HAPROXY_SOURCE_CONNECTIONS" (dig "limits" "connections_per_source" $d.limits.connections_per_source $g | int64)
  "HEADRACE_HAPROXY_TRUSTED_PROXIES" (dig "trusted_proxies" $d.trusted_proxies $g | join " ")
  "HEADRACE_HAPROXY_MAX_REQUESTS" (dig "limits" "max_requests" $d.limits.max_requests $g | int64)
  "HEADRACE_HAPROXY_THREADS" (dig "haproxy_threads" $d.haproxy_threads $g | int64)
  "HEADRACE_HAPROXY_COMPRESSION" (ternary 1 0 (dig "compression" $d.compression $g))
  "HEADRACE_HAPROXY_PATH_PREFIX" $prefix
  "HEADRACE_HAPROXY_CORS_ORIGINS" (dig "origins" list $cors | join " ")
  "HEADRACE_HAPROXY_CORS_CREDENTIALS" (ternary 1 0 (dig "credentials" false $cors))
-}}
{{- $haproxy := dict
  "RAY_SERVE_HAPROXY_STATS_PORT" (dig "haproxy_stats_port" $d.haproxy_stats_port $g | int64)
  "RAY_SERVE_HAPROXY_METRICS_PORT" (dig "haproxy_metrics_port" $d.haproxy_metrics_port $g | int64)
  "HEADRACE_HAPROXY_HOST" $host
  "HEADRACE_HAPROXY_ADMIN_HOST" $admin_host
  "HEADRACE_HAPROXY_CERTIFICATE" (dig "certificate" "" $tls)
  "HEADRACE_HAPROXY_KEY" (dig "key" "" $tls)
  "HEADRACE_HAPROXY_CLIENT_CA" (dig "client_ca" "" $tls | default "")
  "HEADRACE_HAPROXY_CLIENT_CA_OPERATORS" (ternary 1 0 (eq (dig "client_ca_for" "" $tls) "operators"))
  "HEADRACE_HAPROXY_REPLAY" (ternary 1 0 (dig "replay" $d.replay $g))
  "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S" $defaults.hard_stop_s
  "RAY_SERVE_PORT_QUARANTINE_S" (add 90 (max (divf $defaults.generate_timeout_ms 1000 | int64) (dig "drain_s" $d.drain_s $g | floor | int64)))
-}}
{{- $environment := dict -}}
{{- range $name, $value := $haproxy }}{{ $_ := set $environment $name (toString $value) }}{{ end }}
{{- range $name, $value := $dynamic }}{{ $_ := set $dynamic $name (toString $value) }}{{ end }}
{{- dict
  "replicas" $replicas
  "per_node" $per_node
  "nodes" (divf $replicas $per_node | ceil)
  "num_cpus" $num_cpus
  "labels" (dig "labels" dict $g)
  "port" (dig "port" $d.port $g)
  "public_path" (default "/" $prefix)
  "metrics_port" (dig "metrics_port" $d.metrics_port $g)
  "haproxy_is_reached" (not (or (has $admin_host (list "localhost" "::1" "[::1]")) (hasPrefix "127." $admin_host)))
  "haproxy_metrics_port" (dig "haproxy_metrics_port" $d.haproxy_metrics_port $g)
  "haproxy_stats_port" (dig "haproxy_stats_port" $d.haproxy_stats_port $g)
  "host" $host
  "serve_host" $every
  "keep_alive_s" (dig "keep_alive_s" $d.keep_alive_s $g | ceil)
  "drain_s" (dig "drain_s" $d.drain_s $g)
  "priorities" (dig "priorities" $d.priorities $g)
  "tenants_path" (dig "tenants_path" nil $g)
  "channel" (dig "channel" dict $g)
  "environment" $environment
  "dynamic" $dynamic
  | toJson -}}
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
