{{/* Pod templates of Ray's nodes. No version, checksum or setting of a model may stand here: any
change of them makes KubeRay start another cluster. */}}

{{/* Labels by which a component's pods are selected. */}}
{{- define "headrace.rayPodLabels" -}}
{{ include "headrace.selector" .root }}
app.kubernetes.io/component: {{ .component }}
headrace.io/node: ray
{{- end }}

{{/* What the chart's pods have alike. Of a dict: root, node (whose nodeSelector it is). */}}
{{- define "headrace.anyPod" -}}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.runAsUser }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- include "headrace.field" (list "nodeSelector" .node.nodeSelector 0) }}
{{- end }}

{{/* And what their containers have alike. */}}
{{- define "headrace.anyContainer" -}}
image: {{ include "headrace.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* One Ray node. Of a dict: root, component, node (cpu, memory, objectStore, nodeSelector,
tolerations, env, podTemplate), device (resource name to number), claim (a ResourceClaimTemplate, in
the device's place), ports (name to number), head. */}}
{{- define "headrace.rayPod" -}}
{{- $text := include "headrace.rayPodItself" . -}}
{{- $overlays := list -}}
{{- range list .root.Values.env .node.env -}}
{{- if . }}{{ $overlays = append $overlays (dict "spec" (dict "containers" (list (dict "name" "ray" "env" .)))) }}{{ end -}}
{{- end -}}
{{- range list .root.Values.podTemplate .node.podTemplate -}}
{{- if . }}{{ $overlays = append $overlays . }}{{ end -}}
{{- end -}}
{{- if or $overlays (dig "channel" "tls" nil .root.Values.gateway) -}}
{{- range $overlays -}}
{{- include "headrace.checkEnvironment" (dict "root" $.root "component" $.component "over" .) -}}
{{- end -}}
{{- $pod := include "headrace.laidOver" (dict "component" .component "text" $text "over" $overlays) | fromJson -}}
{{- include "headrace.checkPod" (dict "root" .root "component" .component "pod" $pod) -}}
{{- $text = toYaml $pod -}}
{{- end -}}
{{- $text -}}
{{- end }}

{{- define "headrace.rayPodItself" -}}
{{- $values := .root.Values -}}
{{- $node := .node -}}
metadata:
  labels:
    {{- include "headrace.rayPodLabels" . | nindent 4 }}
spec:
  {{- if or (not .head) (not $values.autoscaler.enabled) }}
  serviceAccountName: {{ include "headrace.serviceAccount" .root | quote }}
  automountServiceAccountToken: false
  {{- end }}
  terminationGracePeriodSeconds: {{ add $values.drainSeconds 30 }}
  {{- include "headrace.anyPod" . | nindent 2 }}
  {{- with .claim }}
  resourceClaims:
    - name: device
      resourceClaimTemplateName: {{ . }}
  {{- end }}
  {{- if or $node.tolerations .device .claim }}
  tolerations:
    {{- if or .device .claim }}
    - key: nvidia.com/gpu
      operator: Exists
      effect: NoSchedule
    {{- end }}
    {{- with $node.tolerations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "headrace.selector" .root | nindent 10 }}
          app.kubernetes.io/component: {{ .component }}
  containers:
    - name: ray
      {{- include "headrace.anyContainer" .root | nindent 6 }}
      resources:
        {{- range list "requests" "limits" }}
        {{ . }}:
          cpu: {{ $node.cpu | quote }}
          memory: {{ $node.memory | quote }}
          {{- range $name, $count := $.device }}
          {{ $name }}: {{ $count | quote }}
          {{- end }}
        {{- end }}
        {{- if .claim }}
        claims:
          - name: device
        {{- end }}
      ports:
        {{- range $name, $port := .ports }}
        - name: {{ $name }}
          containerPort: {{ $port }}
        {{- end }}
      env:
        {{- range $name, $value := (include "headrace.environment" .root | fromJson).pod }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
        - name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
          value: {{ $values.drainSeconds | quote }}
        - name: HOME
          value: /tmp
        - name: XDG_CACHE_HOME
          value: /var/cache/headrace
        {{- if ne $values.storage.type "none" }}
        - name: HEADRACE_SOURCES
          value: {{ $values.storage.path | quote }}
        {{- end }}
        {{- if eq .component "gateways" }}
        - {name: HEADRACE_REVOKED_KEYS, value: /etc/headrace/revoked-keys}
        {{- end }}
      {{- with $values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        {{- include "headrace.volumeMounts" . | nindent 8 }}
  volumes:
    {{- include "headrace.volumes" . | nindent 4 }}
{{- end }}

{{/* Whether the pod reads files of tenants: they have hashes of keys, which gateways alone need. */}}
{{- define "headrace.readsTenants" -}}
{{- if eq .component "gateways" }}{{ include "headrace.hasTenantFiles" .root }}{{ end -}}
{{- end }}

{{- define "headrace.volumeMounts" -}}
{{- $values := .root.Values -}}
- {name: tmp, mountPath: /tmp}
- {name: shared-memory, mountPath: /dev/shm}
- {name: cache, mountPath: /var/cache/headrace}
{{- if ne $values.storage.type "none" }}
- name: models
  mountPath: {{ $values.storage.path | quote }}
  readOnly: true
{{- end }}
{{- if eq .component "gateways" }}
- {name: revoked-keys, mountPath: /etc/headrace/revoked-keys, readOnly: true}
{{- end }}
{{- if include "headrace.readsTenants" . }}
- name: tenants
  mountPath: {{ $values.gateway.tenants_path | quote }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "headrace.volumes" -}}
{{- $values := .root.Values -}}
- {name: tmp, emptyDir: {}}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ add 64 (include "headrace.objectStoreMib" .node) }}Mi
{{- include "headrace.nodeVolumes" .root | nindent 0 }}
{{- if eq .component "gateways" }}
# Made by `headrace key revoke --release`, not here: no upgrade or rollback takes a key out.
- name: revoked-keys
  projected:
    sources:
      - configMap: {name: {{ include "headrace.fullname" .root }}-revoked-keys, optional: true}
{{- end }}
{{- if include "headrace.readsTenants" . }}
{{- $own := printf "%s-tenants" (include "headrace.fullname" .root) }}
{{- $theirs := $values.tenantFiles.existingSecrets }}
{{- range $values.tenantFiles.externalSecrets }}{{ $theirs = append $theirs .name }}{{ end }}
- name: tenants
  projected:
    sources:
      # All of our names may come and go while gateways run.
      - configMap: {name: {{ $own }}, optional: true}
      - secret: {name: {{ $own }}, optional: true}
      {{- range $number := untilStep 1 21 1 }}
      - secret: {name: {{ $own }}-{{ $number }}, optional: true}
      {{- end }}
      {{- range $theirs }}
      {{- if not (regexMatch (printf "^%s(-([1-9]|1[0-9]|20))?$" (regexQuoteMeta $own)) .) }}
      - secret: {name: {{ . | quote }}}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}

{{/* A node's cache and the models, which Ray's pods and those that prepare a node have alike. */}}
{{- define "headrace.nodeVolumes" -}}
{{- $values := .Values -}}
- name: cache
  {{- if eq $values.cache.type "hostPath" }}
  hostPath: {path: {{ $values.cache.hostPath | quote }}, type: DirectoryOrCreate}
  {{- else if eq $values.cache.type "ephemeral" }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- include "headrace.field" (list "storageClassName" $values.cache.storageClassName 8) }}
        resources: {requests: {storage: {{ $values.cache.size | quote }}}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $values.cache.size | quote }}}
  {{- end }}
{{- if eq $values.storage.type "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-models" (include "headrace.fullname" .)) $values.storage.pvc.existingClaim | quote }}
    readOnly: true
{{- else if eq $values.storage.type "image" }}
- name: models
  image:
    reference: {{ $values.storage.image.reference | quote }}
    pullPolicy: {{ $values.image.pullPolicy }}
{{- end }}
{{- end }}

{{- define "headrace.hasTenantFiles" -}}
{{- with .Values.tenantFiles -}}
{{- if or .config .existingSecrets .externalSecrets }}true{{ end -}}
{{- end -}}
{{- end }}

{{- define "headrace.objectStoreMib" -}}
{{- include "headrace.mib" (default "256Mi" .objectStore) -}}
{{- end }}

{{/* Ray's start parameters that all nodes have, as its command line takes them: texts. */}}
{{- define "headrace.objectStoreBytes" -}}
{{- mul (include "headrace.objectStoreMib" .) 1048576 -}}
{{- end }}
