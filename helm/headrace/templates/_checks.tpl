{{/* Fails if the first item of the list is true; the second is the sentence. Settings that are wrong
in themselves are left to the check that runs before an installation (`check.enabled`). */}}
{{- define "headrace.refuse" -}}
{{- if index . 0 }}{{ fail (index . 1) }}{{ end -}}
{{- end }}

{{- define "headrace.checks" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- include "headrace.refuse" (list (not .Values.models) "models declares no model; must have at least one: helm install … -f settings.yaml") }}
{{- include "headrace.refuse" (list (or (hasPrefix "127." $gateway.host) (has $gateway.host (list "localhost" "::1")))
  (printf "gateway.host is %s, which nobody reaches from outside of a pod; must be left out" $gateway.host)) }}
{{- include "headrace.refuse" (list (semverCompare "<2.60.0-0" .Values.rayVersion)
  (printf "rayVersion is %s; Headrace runs on Ray 2.60, and KubeRay takes its probes and tokens by it" .Values.rayVersion)) }}
{{- range list "Gone" "Name" "Gateways" "Ports" "Groups" "Drain" "Head" "Files" "Edge" }}
{{- include (printf "headrace.check%s" .) $ }}
{{- end }}
{{- include "headrace.refuse" (list (eq .Values.upgrade.strategy "NewClusterWithIncrementalUpgrade")
  "upgrade.strategy is NewClusterWithIncrementalUpgrade, by which KubeRay gives each cluster a Service of its own, so that nothing here would lead to it; must be NewCluster or None") }}
{{- include "headrace.refuse" (list (and (eq .Values.service.type "LoadBalancer") .Values.networkPolicy.enabled (not (contains "ipBlock" (toJson .Values.networkPolicy.callers))))
  "service.type is LoadBalancer, behind which callers are no pods; networkPolicy.callers must have an ipBlock of theirs, and of the nodes") }}
{{- include "headrace.refuse" (list (and (eq .Values.ingress.type "route") (not .Values.ingress.parentRefs)) "ingress.parentRefs is empty; an HTTPRoute belongs to a Gateway") }}
{{- range $name, $model := .Values.models }}
{{- $policy := dig "scaling" "policy" "" $model }}
{{- include "headrace.refuse" (list (and (kindIs "string" $policy) (regexMatch "\\.ya?ml$" $policy))
  (printf "models.%s.scaling.policy is the file %s, which a chart cannot read; must be its content, or a policy's name" $name $policy)) }}
{{- include "headrace.checkPlace" (dict "root" $ "name" (printf "models.%s" $name) "model" $model) }}
{{- end }}
{{- if hasKey .Values.scaling "pool" }}
{{- $d := (.Files.Get "files/defaults.json" | fromJson).pool }}
{{- $replica := dict "replicas" (dict
  "num_cpus" (dig "num_cpus" $d.num_cpus .Values.scaling.pool)
  "num_gpus" (dig "num_gpus" $d.num_gpus .Values.scaling.pool)
  "resources" (dig "resources" dict .Values.scaling.pool)) }}
{{- include "headrace.checkPlace" (dict "root" $ "name" "scaling.pool" "model" $replica) }}
{{- end }}
{{- end }}

{{/* Values of earlier charts, as an upgrade still gives them. */}}
{{- define "headrace.checkGone" -}}
{{- include "headrace.refuse" (list .Values.podAnnotations "podAnnotations is gone; must be podTemplate.metadata.annotations") }}
{{- range list "gatewayClassName" "stepPercent" "intervalSeconds" "maxSurgePercent" }}
{{- include "headrace.refuse" (list (index $.Values.upgrade .) (printf "upgrade.%s is gone with the incremental upgrade; must be left out" .)) }}
{{- end }}
{{- $nodes := dict "head" .Values.head "gateways" .Values.gateways }}
{{- range $position, $group := .Values.workerGroups }}{{ $_ := set $nodes (printf "workerGroups[%d]" $position) $group }}{{ end }}
{{- range $where, $node := $nodes }}
{{- range list "affinity" "priorityClassName" "runtimeClassName" }}
{{- include "headrace.refuse" (list (index $node .) (printf "%s.%s is gone; must be %s.podTemplate.spec.%s" $where . $where .)) }}
{{- end }}{{ end }}
{{- end }}

{{- define "headrace.checkName" -}}
{{- $name := include "headrace.fullname" . -}}
{{- include "headrace.refuse" (list (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name))
  (printf "The release would be called %s, which KubeRay refuses: it must be small letters, digits and hyphens, a letter first; set fullnameOverride" $name)) }}
{{- end }}

{{/* Where no key is needed, a gateway answers only to names that it knows (docs/security.md). */}}
{{- define "headrace.checkEdge" -}}
{{- $given := .Values.gateway -}}
{{- include "headrace.refuse" (list (dig "tls" nil $given) "gateway.tls is set, but the probes of pods ask by plain HTTP; must be left out: TLS ends at an Ingress (ingress.tlsSecret) or a Gateway") }}
{{- include "headrace.refuse" (list (eq (dig "ingress" "" $given) "direct") "gateway.ingress is direct, which one machine alone has; must be haproxy, or auto, on a cluster") }}
{{- $needs := or (eq (dig "auth" "" $given | default "") "required") (dig "tenants_path" nil $given) -}}
{{- range .Values.tenants }}{{ if hasKey . "keys" }}{{ $needs = true }}{{ end }}{{ end -}}
{{- $allowed := dig "allowed_hosts" list $given -}}
{{- range .Values.ingress.hosts }}
{{- $known := or $needs (has "*" $allowed) (has . $allowed) (has (printf "*.%s" (splitList "." . | rest | join ".")) $allowed) }}
{{- include "headrace.refuse" (list (not $known) (printf "ingress.hosts has %s, to which gateways without keys answer 403; must be in gateway.allowed_hosts too, or tenants must have keys" .)) }}
{{- end }}
{{- end }}

{{/* Every pod of Ray has one network, and Ray's own ports are taken in each. */}}
{{- define "headrace.checkPorts" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- $taken := list "6379" "8080" "8265" "10001" "44217" "44227" "52365" -}}
{{- $ports := dict "port" (list $gateway.port) "metrics_port" list -}}
{{- range until (int $gateway.per_node) }}{{ $_ := set $ports "metrics_port" (append $ports.metrics_port (add $gateway.metrics_port .)) }}{{ end }}
{{- range list "haproxy_metrics_port" "haproxy_stats_port" }}{{ $_ := set $ports . (list (index $gateway .)) }}{{ end }}
{{- with $gateway.grpc_port }}{{ $_ := set $ports "grpc.port" (list .) }}{{ end }}
{{- range $setting, $each := $ports }}
{{- range $each }}
{{- include "headrace.refuse" (list (has (int64 . | toString) $taken) (printf "gateway.%s takes port %d, which Ray or another setting has in every pod; must be another one than %s" $setting (int64 .) (join ", " $taken))) }}
{{- $taken = append $taken (int64 . | toString) }}
{{- end }}{{ end }}
{{- end }}

{{- define "headrace.checkGateways" -}}
{{- $gateway := include "headrace.gateway" . | fromJson -}}
{{- include "headrace.refuse" (list (gt (float64 $gateway.num_cpus) 0.0) (printf "gateway.num_cpus is %v; must be left out: gateways have pods of their own, of gateways.cpu CPUs" $gateway.num_cpus)) }}
{{- $least := int64 .Values.gateways.minAvailable }}
{{- include "headrace.refuse" (list (and (gt $least 0) (ge $least (int64 $gateway.nodes)))
  (printf "gateways.minAvailable is %v, and there are %v of their pods; must be below that, or no node could be drained" $least $gateway.nodes)) }}
{{- range $name, $value := $gateway.labels }}
{{- include "headrace.refuse" (list (and (not (regexMatch "^(!|in\\()" $value)) (ne $value (dig $name "" $.Values.gateways.rayLabels)))
  (printf "gateway.labels wants %s: %s, which gateways.rayLabels does not have; gateways would never start" $name $value)) }}
{{- end }}
{{- end }}

{{- define "headrace.checkGroups" -}}
{{- $names := list "gateways" "headgroup" -}}
{{- range $position, $group := .Values.workerGroups }}
{{- $it := printf "workerGroups[%d] (%s)" $position $group.name }}
{{- include "headrace.refuse" (list (has $group.name $names) (printf "workerGroups[%d].name is %s, which is taken; must be another one" $position $group.name)) }}
{{- $names = append $names $group.name }}
{{- include "headrace.refuse" (list (and $group.migProfile $group.gpus) (printf "%s has both migProfile and gpus; a pod has one MIG device or whole GPUs" $it)) }}
{{- include "headrace.refuse" (list (and (eq "gke" (default "plugin" $group.devices)) (not $group.migProfile))
  (printf "%s has devices: gke, which is how GKE offers MIG slices; must have migProfile" $it)) }}
{{- if eq "dra" (default "plugin" $group.devices) }}
{{- include "headrace.refuse" (list (not (or $group.migProfile $group.gpus)) (printf "%s has devices: dra and no device to claim; must have migProfile or gpus" $it)) }}
{{- include "headrace.refuse" (list (semverCompare "<1.34.0-0" $.Capabilities.KubeVersion.Version)
  (printf "%s has devices: dra, which needs Kubernetes 1.34 (resource.k8s.io/v1); this is %s" $it $.Capabilities.KubeVersion.Version)) }}
{{- end }}
{{- include "headrace.refuse" (list (and (hasKey $group "idleTimeoutSeconds") (not $.Values.autoscaler.enabled))
  (printf "%s has idleTimeoutSeconds, which the autoscaler alone heeds; must be left out with autoscaler.enabled: false" $it)) }}
{{- include "headrace.refuse" (list (and $group.maxReplicas (lt (int64 $group.maxReplicas) (int64 (default 0 $group.minReplicas))))
  (printf "%s has maxReplicas %v, below minReplicas %v" $it $group.maxReplicas $group.minReplicas)) }}
{{- $least := default 0 $group.minReplicas | int64 }}
{{- include "headrace.refuse" (list (and (not $.Values.autoscaler.enabled) (lt $least 1))
  (printf "%s has minReplicas %d; with autoscaler.enabled: false minReplicas must be at least 1, for nothing would start a pod" $it $least)) }}
{{- $most := default (max $least 1) $group.maxReplicas | int64 }}
{{- include "headrace.refuse" (list (ge (default 0 $group.minAvailable | int64) $most)
  (printf "%s has minAvailable %v and at most %d pods; must be below that, or no node could be drained" $it $group.minAvailable $most)) }}
{{- include "headrace.refuse" (list (ge (include "headrace.objectStoreMib" $group | int64) (include "headrace.mib" $group.memory | int64))
  (printf "%s has memory %s, which its objectStore takes already" $it $group.memory)) }}
{{- end }}
{{- end }}

{{- define "headrace.checkDrain" -}}
{{- $limit := .Values.drainSeconds -}}
{{- range (include "headrace.serveConfig" . | fromJson).applications }}
{{- $application := .name }}
{{- range dig "deployments" list . }}
{{- $needed := addf 15 .graceful_shutdown_timeout_s }}
{{- include "headrace.refuse" (list (gt $needed (float64 $limit))
  (printf "drainSeconds is %v; %s may take %v s to finish what it has, so it must be at least %v (a change starts a new cluster)" $limit $application .graceful_shutdown_timeout_s (ceil $needed))) }}
{{- end }}{{ end }}
{{- end }}

{{- define "headrace.checkHead" -}}
{{- $memory := include "headrace.mib" .Values.head.memory | int64 -}}
{{- $anchors := add (len .Values.models) (ternary 1 0 (hasKey .Values.scaling "pool")) -}}
{{- $needed := add 2048 (mul 145 $anchors) (include "headrace.objectStoreMib" .Values.head) -}}
{{- include "headrace.refuse" (list (lt $memory $needed)
  (printf "head.memory is %s; %d anchors and the head itself may take %d MiB (a change starts a new cluster)" .Values.head.memory $anchors $needed)) }}
{{- end }}

{{- define "headrace.checkFiles" -}}
{{- include "headrace.refuse" (list (and .Values.prewarm.enabled (ne .Values.prewarm.artifacts "none") (ne .Values.cache.type "hostPath"))
  (printf "prewarm.artifacts is %s and cache.type %s, which a node's pods do not share; cache.type must be hostPath" .Values.prewarm.artifacts .Values.cache.type)) }}
{{- $files := include "headrace.hasTenantFiles" . -}}
{{- $path := dig "tenants_path" "" .Values.gateway -}}
{{- include "headrace.refuse" (list (and $files (not $path)) "gateway.tenants_path is missing; tenantFiles are mounted there") }}
{{- include "headrace.refuse" (list (and $path (not $files)) "tenantFiles is empty, and gateways would read their tenants from gateway.tenants_path; must name a config, a Secret or an ExternalSecret") }}
{{- with .Values.storage.pvc }}
{{- include "headrace.refuse" (list (and .from (not .existingClaim) (eq (join "" .accessModes) "ReadOnlyMany"))
  "storage.pvc.accessModes is ReadOnlyMany, and a job is to write what storage.pvc.from names; must be ReadWriteMany") }}
{{- end }}
{{- if eq .Values.storage.type "image" }}
{{- include "headrace.refuse" (list (not .Values.storage.image.reference) "storage.image.reference is missing; must be an image with its digest") }}
{{- include "headrace.refuse" (list (semverCompare "<1.35.0-0" .Capabilities.KubeVersion.Version)
  (printf "storage.type is image, which needs Kubernetes 1.35; this is %s" .Capabilities.KubeVersion.Version)) }}
{{- end }}
{{- end }}

{{/* Whether there are pods that a model's replicas fit in. Ray labels are left to Ray. */}}
{{- define "headrace.checkPlace" -}}
{{- $d := (.root.Files.Get "files/defaults.json" | fromJson).replicas -}}
{{- $name := .name -}}
{{- $root := .root -}}
{{- range (include "headrace.views" .model | fromJson).views }}
{{- $replicas := dig "replicas" dict .settings }}
{{- $cpus := dig "num_cpus" $d.num_cpus $replicas | float64 }}
{{- $gpus := dig "num_gpus" $d.num_gpus $replicas | float64 }}
{{- $wanted := dig "resources" dict $replicas }}
{{- $fits := dict }}
{{- range $root.Values.workerGroups }}
{{- $has := deepCopy (default dict .resources) }}
{{- if .migProfile }}{{ $_ := set $has (include "headrace.migResource" .migProfile) 1 }}{{ end }}
{{- $there := float64 (ternary 1 (default 0 .gpus) (not (empty .migProfile))) }}
{{- $enough := and (le $cpus (float64 .cpu)) (le $gpus $there) }}
{{- range $resource, $amount := $wanted }}{{ if gt (float64 $amount) (float64 (dig $resource 0 $has)) }}{{ $enough = false }}{{ end }}{{ end }}
{{- if $enough }}{{ $_ := set $fits "somewhere" true }}{{ end }}
{{- end }}
{{- if not $fits }}
{{- $of := ternary (printf "%s, group %s" $name .group) $name (ne .group "") }}
{{- fail (printf "%s wants %v CPUs, %v GPUs and %s, which a pod of none of workerGroups has" $of $cpus $gpus (toJson $wanted)) }}
{{- end }}{{ end }}
{{- end }}

{{/* Of a Ray pod as it will be: Ray's container is the first, files that settings name are there, and a
drain has its time. */}}
{{- define "headrace.checkPod" -}}
{{- $component := .component -}}
{{- $spec := .pod.spec -}}
{{- $ray := first $spec.containers -}}
{{- $autoscales := .root.Values.autoscaler.enabled -}}
{{- $least := add .root.Values.drainSeconds 30 -}}
{{- include "headrace.refuse" (list (and $autoscales (ne "Never" (default "Never" $spec.restartPolicy)))
  (printf "%s's pods get restartPolicy %s; must be left out: the autoscaler starts others instead" $component $spec.restartPolicy)) }}
{{- include "headrace.refuse" (list (lt (int64 (default 0 $spec.terminationGracePeriodSeconds)) $least)
  (printf "%s's pods get terminationGracePeriodSeconds %v; must be at least %d, drainSeconds and 30" $component (default 0 $spec.terminationGracePeriodSeconds) $least)) }}
{{- include "headrace.refuse" (list (dig "lifecycle" "preStop" nil $ray) (printf "%s's container ray has a preStop, which takes its time from the drain; must be left out" $component)) }}
{{- if and $autoscales (eq $component "head") }}
{{- range list "serviceAccountName" "serviceAccount" "automountServiceAccountToken" }}
{{- include "headrace.refuse" (list (hasKey $spec .)
  (printf "head's pod gets %s; must be left out: KubeRay gives a head with an autoscaler its account (gateways and groups have a podTemplate of their own)" .)) }}
{{- end }}
{{- end }}
{{- range $which, $path := dig "channel" "tls" dict .root.Values.gateway | default dict }}
{{- $there := eq $component "head" }}
{{- range $ray.volumeMounts }}{{ if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path }}{{ $there = true }}{{ end }}{{ end }}
{{- include "headrace.refuse" (list (not $there) (printf "gateway.channel.tls.%s is %s, and no volume of %s is mounted there; podTemplate must mount one" $which $path $component)) }}
{{- end }}
{{- end }}

{{/* Of what is laid over any pod: labels that selectors have. */}}
{{- define "headrace.checkLabels" -}}
{{- $component := .component -}}
{{- range $name, $_ := dig "metadata" "labels" dict .over }}
{{- include "headrace.refuse" (list (regexMatch "^(app\\.kubernetes\\.io|headrace\\.io|ray\\.io)/" $name)
  (printf "%s's pods get the label %s, by which pods are found; must be left out" $component $name)) }}
{{- end }}
{{- end }}

{{/* Of any pod as it will be: Kubernetes has a name once. */}}
{{- define "headrace.checkUnique" -}}
{{- $component := .component -}}
{{- range $container := concat (default list .pod.spec.initContainers) .pod.spec.containers }}
{{- range $field := list "env" "ports" }}
{{- $names := list }}
{{- range default list (index $container $field) }}
{{- include "headrace.refuse" (list (and .name (has .name $names)) (printf "%s's container %s has %s %s twice; must be there once" $component $container.name $field .name)) }}
{{- $names = append $names .name }}
{{- end }}{{ end }}{{ end }}
{{- end }}

{{/* Of what is laid over a Ray pod: variables that are somebody else's to set. */}}
{{- define "headrace.checkEnvironment" -}}
{{- $gateway := include "headrace.gateway" .root | fromJson -}}
{{- $ours := keys $gateway.environment $gateway.dynamic -}}
{{- $kuberays := list "FQ_RAY_IP" "KUBERAY_GEN_RAY_START_CMD" "RAY_ADDRESS" "RAY_AUTH_MODE" "RAY_AUTH_TOKEN"
  "RAY_CLOUD_INSTANCE_ID" "RAY_CLUSTER_NAME" "RAY_CLUSTER_NAMESPACE" "RAY_IP" "RAY_NODE_TYPE_NAME" "RAY_PORT" "RAY_REDIS_ADDRESS" "RAY_external_storage_namespace" "REDIS_PASSWORD" "REDIS_USERNAME" -}}
{{- $values := dict "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" "drainSeconds" "RAY_SERVE_HAPROXY_BINARY_PATH" "image.haproxy" "HEADRACE_SOURCES" "storage.path" "HEADRACE_REVOKED_KEYS" "the chart" "RAY_SERVE_HAPROXY_NBTHREAD" "gateway.haproxy_threads" -}}
{{- $harmless := list "RAY_worker_niceness" "RAY_USAGE_STATS_ENABLED" "OPENVINO_TELEMETRY_OPT_OUT" "TOKENIZERS_PARALLELISM" "HF_HUB_OFFLINE" -}}
{{- $fixed := keys (.root.Files.Get "files/environment.json" | fromJson) -}}
{{- $component := .component -}}
{{- range dig "spec" "containers" list .over }}
{{- if eq .name "ray" }}
{{- range default list .env }}
{{- $it := printf "%s's pods get %s as environment" $component .name }}
{{- include "headrace.refuse" (list (has .name $kuberays) (printf "%s, which KubeRay writes; must be left out" $it)) }}
{{- include "headrace.refuse" (list (has .name $ours) (printf "%s, which the settings of the gateway say; must be left out" $it)) }}
{{- $needed := and (has .name $fixed) (not (has .name $harmless)) }}
{{- include "headrace.refuse" (list $needed (printf "%s, which Headrace needs as it is; must be left out" $it)) }}
{{- include "headrace.refuse" (list (hasKey $values .name) (printf "%s; must be left out: %s says it" $it (get $values .name))) }}
{{- end }}{{ end }}{{ end }}
{{- end }}
