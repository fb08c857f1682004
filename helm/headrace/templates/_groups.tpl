{{/* Groups of worker pods: the gateways' own, then those of the models, in the values' order. */}}

{{- define "headrace.ports" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $grpc := ternary (dict "grpc" $gateway.grpc_port) dict (ne $gateway.grpc_port "") -}}
{{- merge (dict "serve" $gateway.port "metrics" 8080) $grpc | toJson -}}
{{- end }}

{{/* Without CPUs for Ray: gateways need none of them, and what does need some goes elsewhere. */}}
{{- define "headrace.gatewayGroup" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $ports := include "headrace.ports" . | fromJson -}}
{{- range $position := until (int $gateway.per_node) }}
{{- $_ := set $ports (printf "gateway-%d" $position) (add $gateway.metrics_port $position) }}
{{- end -}}
- groupName: gateways
  replicas: {{ int64 $gateway.nodes }}
  minReplicas: {{ int64 $gateway.nodes }}
  maxReplicas: {{ int64 $gateway.nodes }}
  rayStartParams:
    num-cpus: "0"
    num-gpus: "0"
    object-store-memory: {{ include "headrace.objectStoreBytes" .Values.gateways | quote }}
  labels:
    {{- toYaml .Values.gateways.rayLabels | nindent 4 }}
  template:
    {{- $pod := dict "root" . "component" "gateways" "node" .Values.gateways "device" dict "ports" $ports "head" false }}
    {{- include "headrace.rayPod" $pod | nindent 4 }}
{{- end }}

{{/* Of a dict of root and group. One device a pod for MIG: CUDA sees no more. `num-gpus` always,
because neither KubeRay nor Ray counts every profile. */}}
{{- define "headrace.workerGroup" -}}
{{- $group := .group -}}
{{- $device := dict -}}
{{- $claim := include "headrace.claimTemplate" . -}}
{{- $resources := deepCopy (default dict $group.resources) -}}
{{- $gpus := 0 -}}
{{- if $group.migProfile }}
{{- $_ := set $device (printf "nvidia.com/mig-%s" (replace "+" "." $group.migProfile)) 1 }}
{{- $_ := set $resources (include "headrace.migResource" $group.migProfile) 1 }}
{{- $gpus = 1 }}
{{- else if $group.gpus }}
{{- $_ := set $device "nvidia.com/gpu" $group.gpus }}
{{- $gpus = $group.gpus }}
{{- end }}
{{- if $claim }}{{ $device = dict }}{{ end }}
{{- if eq "gke" (default "plugin" $group.devices) }}
{{- $device = dict "nvidia.com/gpu" 1 }}
{{- $selector := dict "cloud.google.com/gke-gpu-partition-size" $group.migProfile }}
{{- $group = set (deepCopy $group) "nodeSelector" (merge $selector (default dict $group.nodeSelector)) }}
{{- end }}
{{- $ports := include "headrace.ports" .root | fromJson -}}
{{- $least := default 0 $group.minReplicas -}}
- groupName: {{ $group.name | quote }}
  replicas: {{ $least }}
  minReplicas: {{ $least }}
  maxReplicas: {{ default (max $least 1) $group.maxReplicas }}
  {{- if hasKey $group "idleTimeoutSeconds" }}
  idleTimeoutSeconds: {{ $group.idleTimeoutSeconds }}
  {{- end }}
  {{- if hasKey $group "priority" }}
  priority: {{ $group.priority }}
  {{- end }}
  rayStartParams:
    num-cpus: {{ $group.cpu | quote }}
    num-gpus: {{ $gpus | quote }}
    object-store-memory: {{ include "headrace.objectStoreBytes" $group | quote }}
    {{- if $resources }}
    resources: {{ $resources | toJson | quote | squote }}
    {{- end }}
  {{- include "headrace.field" (list "labels" $group.labels 2) }}
  template:
    {{- $pod := dict "root" .root "component" (printf "group-%s" $group.name) "node" $group "device" $device "claim" $claim "ports" $ports "head" false }}
    {{- include "headrace.rayPod" $pod | nindent 4 }}
{{- end }}

{{/* Name of the template that a group's claims are made of, "" of a group without. The device stands
in it: a template cannot be changed, and another device means other pods anyway. */}}
{{- define "headrace.claimTemplate" -}}
{{- if eq "dra" (default "plugin" .group.devices) -}}
{{- $device := default (printf "gpus-%v" .group.gpus) .group.migProfile -}}
{{- printf "%s-%s-%s" (include "headrace.fullname" .root) .group.name ($device | replace "." "-" | replace "+" "-") -}}
{{- end -}}
{{- end }}

{{/* What models ask for by name: mig_1g_18gb of 1g.18gb. */}}
{{- define "headrace.migResource" -}}
mig_{{ . | replace "." "_" | replace "+" "_" }}
{{- end }}
