{{/* The list of Serve applications that the values mean: deployments/control/serve_config.py in Go
templates. What shapes a replica passes through as it was written; a test holds this against
`headrace build` of the same settings. JSON, because Go's YAML writes some numbers so that others
read text. */}}

{{- define "headrace.serveConfig" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $applications := list (include "headrace.gatewayApplication" . | fromJson) (include "headrace.controlApplication" . | fromJson) -}}
{{- $root := . -}}
{{- range $name, $model := .Values.models }}
{{- $each := dict "name" $name "model" $model "root" $root }}
{{- $applications = append $applications (include "headrace.modelApplication" $each | fromJson) }}
{{- end }}
{{- if hasKey .Values.scaling "pool" }}
{{- $applications = append $applications (include "headrace.poolApplication" . | fromJson) }}
{{- end }}
{{- dict
  "controller_options" (dict "runtime_env" (dict "env_vars" (include "headrace.environment" . | fromJson).config))
  "proxy_location" "EveryNode"
  "http_options" (dict "host" $gateway.serve_host "port" $gateway.port "keep_alive_timeout_s" $gateway.keep_alive_s)
  "logging_config" (dict "enable_access_log" false "encoding" "JSON")
  "applications" $applications
  | toPrettyJson -}}
{{- end }}

{{- define "headrace.gatewayApplication" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $written := omit .Values.gateway "replicas" "num_cpus" "replicas_per_node" "labels" "port" "tenants_path" -}}
{{- $_ := set $written "host" $gateway.host -}}
{{- $options := dict "num_cpus" $gateway.num_cpus -}}
{{- if $gateway.labels }}{{ $_ := set $options "label_selector" $gateway.labels }}{{ end -}}
{{- dict
  "name" "gateway" "route_prefix" "/"
  "import_path" "deployments.gateway.application:gateway"
  "args" (dict "settings" $written "tenants_path" $gateway.tenants_path)
  "deployments" (list (dict
    "name" "gateway" "num_replicas" $gateway.replicas
    "graceful_shutdown_timeout_s" (addf $gateway.drain_s $defaults.grace_s $defaults.deregister_s)
    "ray_actor_options" $options
    "max_replicas_per_node" $gateway.per_node))
  | toJson -}}
{{- end }}

{{- define "headrace.controlApplication" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $taken_up := dict
  "tenants" .Values.tenants
  "controllers" (dict "frozen" (dig "frozen" false .Values.controllers)) -}}
{{- if .Values.operators }}{{ $_ := set $taken_up "operators" .Values.operators }}{{ end -}}
{{- $block := dict "format" 1 "scaling" (include "headrace.scaled" . | fromJson) -}}
{{- if not $gateway.tenants_path }}
{{- $_ := set $block "tenants" $taken_up }}
{{- $_ := set $block "priorities" $gateway.priorities }}
{{- with dig "auth" nil .Values.gateway }}{{ $_ := set $block "auth" . }}{{ end }}
{{- end }}
{{- dict
  "name" "headrace-control"
  "route_prefix" nil
  "import_path" "deployments.control.application:control"
  "args" dict
  "deployments" (list (dict "name" "control" "user_config" $block))
  | toJson -}}
{{- end }}

{{/* What the autoscaler is told of; with a pool, all that its replicas need. */}}
{{- define "headrace.scaled" -}}
{{- $models := .Values.models -}}
{{- $scaled := dict -}}
{{- if hasKey .Values.scaling "pool" }}
{{- $gateway := pick .Values.gateway "channel" "replay" }}
{{- if $gateway }}{{ $_ := set $scaled "gateway" $gateway }}{{ end }}
{{- else }}
{{- $models = dict }}
{{- range $name, $model := .Values.models }}
{{- $read := pick $model "runtime" "source" "task" "slo" "replicas" "scaling" }}
{{- range dig "replicas" "groups" list $model }}
{{- if and (hasKey . "lengths") (hasKey $model "lengths") }}{{ $_ := set $read "lengths" $model.lengths }}{{ end }}
{{- end }}
{{- $_ := set $models $name $read }}
{{- end }}
{{- end }}
{{- $_ := set $scaled "models" $models }}
{{- if .Values.scaling }}{{ $_ := set $scaled "scaling" .Values.scaling }}{{ end }}
{{- toJson $scaled -}}
{{- end }}

{{/* Of a dict of the model's name, its settings and the chart's root. */}}
{{- define "headrace.modelApplication" -}}
{{- $gateway := include "headrace.gateway" .root | fromJson -}}
{{- $views := (include "headrace.views" .model | fromJson).views -}}
{{- $root := .root -}}
{{- $args := dict
  "name" .name
  "settings" (include "headrace.shaping" .model | fromJson)
  "channel" $gateway.channel -}}
{{- $groups := list -}}
{{- $deployments := list -}}
{{- range $views }}
{{- $shaping := include "headrace.shaping" .settings | fromJson }}
{{- $group := dict "name" .group "settings" $shaping "after_s" .after_s }}
{{- with .max_length }}{{ $_ := set $group "max_length" . }}{{ end }}
{{- $groups = append $groups $group }}
{{- $each := dict "view" . "root" $root }}
{{- $deployments = append $deployments (include "headrace.replicas" $each | fromJson) }}
{{- end }}
{{- if dig "replicas" "groups" list .model }}{{ $_ := set $args "groups" $groups }}{{ end -}}
{{- dict
  "name" (printf "model-%s" .name)
  "route_prefix" nil
  "import_path" "deployments.replica.application:model"
  "args" $args
  "autoscaling_policy" (dict "policy_function" "deployments.control.scaling.copy_targets:CopyTargets")
  "deployments" $deployments
  | toJson -}}
{{- end }}

{{/* The deployment of a group's replicas. */}}
{{- define "headrace.replicas" -}}
{{- $d := .root.Files.Get "files/defaults.json" | fromJson -}}
{{- $settings := .view.settings -}}
{{- $replicas := dig "replicas" dict $settings -}}
{{- $times := include "headrace.times" (dict "root" .root "settings" $settings) | fromJson -}}
{{- $count := dig "count" 1 $replicas -}}
{{- $least := ternary 0 (dig "min" $count $replicas) (dig "optional" false $settings) -}}
{{- $most := dig "max" (maxf $count (dig "min" 1 $replicas)) $replicas -}}
{{- $options := dict
  "num_cpus" (dig "num_cpus" $d.replicas.num_cpus $replicas)
  "num_gpus" (dig "num_gpus" $d.replicas.num_gpus $replicas) -}}
{{- with dig "memory_mib" nil $replicas }}{{ $_ := set $options "memory" (mul 1048576 (int64 .)) }}{{ end }}
{{- with dig "resources" nil $replicas }}{{ $_ := set $options "resources" . }}{{ end }}
{{- with dig "labels" nil $replicas }}{{ $_ := set $options "label_selector" . }}{{ end }}
{{- dict
  "name" (ternary (printf "model-%s" .view.group) "model" (ne .view.group ""))
  "autoscaling_config" (include "headrace.bounds" (list $least $most) | fromJson)
  "max_surge_percent" (dig "surge_percent" $d.replicas.surge_percent $replicas)
  "ray_actor_options" $options
  "graceful_shutdown_timeout_s" $times.drain_s
  "health_check_timeout_s" $d.replica_health_s
  | toJson -}}
{{- end }}

{{/* The replicas that become any of the pool's models: what they import for them, and the slowest
model's time to drain. */}}
{{- define "headrace.poolApplication" -}}
{{- $d := .Files.Get "files/defaults.json" | fromJson -}}
{{- $pool := .Values.scaling.pool -}}
{{- $named := dig "models" $d.pool.models $pool -}}
{{- $gpus := dig "num_gpus" $d.pool.num_gpus $pool -}}
{{- $runtimes := list -}}{{- $engines := list -}}{{- $drain_s := $d.grace_s -}}{{- $root := . -}}
{{- range $name, $model := .Values.models }}
{{- $chosen := or (kindIs "string" $named) (has $name $named) }}
{{- if and $chosen (eq (include "headrace.poolable" (dict "model" $model "gpus" $gpus)) "yes") }}
{{- $times := include "headrace.times" (dict "root" $root "settings" $model) | fromJson }}
{{- if ne (dig "task" "" $model) "generate" }}{{ $runtimes = append $runtimes $model.runtime }}
{{- else if ne $model.runtime "vllm" }}{{ $engines = append $engines $model.runtime }}{{ end }}
{{- $drain_s = maxf $drain_s $times.drain_s }}
{{- end }}{{ end }}
{{- $options := dict "num_cpus" (dig "num_cpus" $d.pool.num_cpus $pool) "num_gpus" $gpus -}}
{{- with dig "resources" nil $pool }}{{ $_ := set $options "resources" . }}{{ end }}
{{- $args := dict
  "runtimes" ($runtimes | uniq | sortAlpha)
  "memory_bytes" (mul 1048576 (dig "memory_mib" $d.pool.memory_mib $pool | int64))
  "after_s" (divf (dig "after_ms" $d.pool.after_ms $pool) 1000) -}}
{{- with dig "memory_limit_mib" nil $pool }}{{ $_ := set $args "memory_limit_mib" . }}{{ end }}
{{- if $gpus }}{{ $_ := set $args "num_gpus" $gpus }}{{ end }}
{{- if $engines }}{{ $_ := set $args "engines" ($engines | uniq | sortAlpha) }}{{ end }}
{{- with dig "asleep_mib" 0 $pool }}{{ $_ := set $args "asleep_bytes" (mul 1048576 (int64 .)) }}{{ end }}
{{- $least := dig "min" $d.pool.min $pool -}}{{- $most := dig "max" $d.pool.max $pool -}}
{{- dict
  "name" "headrace-pool" "route_prefix" nil
  "import_path" "deployments.replica.application:pool"
  "args" $args
  "autoscaling_policy" (dict "policy_function" "deployments.control.scaling.copy_targets:CopyTargets")
  "deployments" (list (dict
    "name" "pool"
    "autoscaling_config" (include "headrace.bounds" (list $least $most) | fromJson)
    "ray_actor_options" $options
    "graceful_shutdown_timeout_s" $drain_s "health_check_timeout_s" $d.grace_s))
  | toJson -}}
{{- end }}

{{/* Of a dict of a model and a pool replica's GPUs: "yes" where that can hold it. */}}
{{- define "headrace.poolable" -}}
{{- $options := dig "options" dict .model -}}
{{- $ready := and .gpus (hasKey $options "kv_cache_gib") (hasKey $options "gpu_memory_utilization") -}}
{{- if dig "dependencies" nil .model }}no{{ else if ne (dig "task" "" .model) "generate" }}yes
{{- else if dig "adapters" nil .model }}no{{ else if or (ne .model.runtime "vllm") $ready }}yes{{ end }}
{{- end }}

{{/* Of a list of the least and the most replicas. */}}
{{- define "headrace.bounds" -}}
{{- dict
  "min_replicas" (index . 0)
  "max_replicas" (maxf 1 (index . 1))
  "upscale_delay_s" 0 "downscale_delay_s" 0 "metrics_interval_s" 30 "look_back_period_s" 60
  | toJson -}}
{{- end }}

{{/* Of a dict of a model's settings and the chart's root: the seconds that a batch may take, and those
that a replica may take to finish what it has in hand. */}}
{{- define "headrace.times" -}}
{{- $d := .root.Files.Get "files/defaults.json" | fromJson -}}
{{- $replicas := dig "replicas" dict .settings -}}
{{- $hang_limit_s := dig "hang_limit_s" $d.replicas.hang_limit_s $replicas -}}
{{- $drain_s := 0 -}}{{- $slo := dig "slo" dict .settings -}}
{{- if eq (dig "task" "" .settings) "generate" }}
{{- $longest_ms := maxf (dig "timeout_ms" 0 $slo) $d.generate_timeout_ms }}
{{- $drain_s = divf (dig "max_timeout_ms" $longest_ms $slo) 1000 }}
{{- else }}
{{- $gateways := (include "headrace.gateway" .root | fromJson).replicas }}
{{- $slots := dig "slots" $d.replicas.slots $replicas }}
{{- $drain_s = mulf $hang_limit_s (addf 1 (mulf $gateways (subf $slots 1))) }}
{{- end }}
{{- dict "hang_limit_s" $hang_limit_s "drain_s" (addf $drain_s $d.grace_s) | toJson -}}
{{- end }}

{{/* JSON whose numbers every YAML reads as numbers: 1e-7 is text to some, 1.0e-7 is not. */}}
{{- define "headrace.portableNumbers" -}}
{{- regexReplaceAll "(?m)^(\\s*(?:\"[^\"]*\": )?-?[0-9]+)(e[-+][0-9]+)" . "${1}.0${2}" -}}
{{- end }}
