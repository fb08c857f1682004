{{/* `podTemplate` values: what Kubernetes has and the chart has no value of its own for, laid over the
pods that the chart writes. */}}

{{/* Of a list of two mappings: the second over the first, in JSON. Mappings are merged key by key; null
takes a key away; lists grow, but for an item of a known name, which is merged or replaced. */}}
{{- define "headrace.overlaid" -}}
{{- $own := index . 0 -}}
{{- $found := deepCopy $own -}}
{{- range $key, $value := index . 1 -}}
{{- $was := index $own $key -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $found $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $was) -}}
{{- $_ := set $found $key (include "headrace.overlaid" (list $was $value) | fromJson) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $was) -}}
{{- $_ := set $found $key (include "headrace.overlaidList" (list $was $value $key) | fromJson).items -}}
{{- else -}}
{{- $_ := set $found $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* Of a list of two lists and the key that they stand under. */}}
{{- define "headrace.overlaidList" -}}
{{- $merged := dict "containers" "name" "initContainers" "name" "topologySpreadConstraints" "topologyKey" -}}
{{- $replaced := dict "env" "name" "volumes" "name" "volumeMounts" "mountPath" -}}
{{- $key := index . 2 -}}
{{- $by := dig $key (dig $key "" $merged) $replaced -}}
{{- $over := index . 1 -}}
{{- $found := list -}}
{{- $names := list -}}
{{- range $each := index . 0 -}}
{{- $item := $each -}}
{{- range $new := $over -}}
{{- if and $by (eq (index $each $by) (index $new $by)) -}}
{{- $item = $new -}}
{{- if hasKey $merged $key }}{{ $item = include "headrace.overlaid" (list $each $new) | fromJson }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $by }}{{ $names = append $names (index $each $by) }}{{ end -}}
{{- $found = append $found $item -}}
{{- end -}}
{{- range $new := $over -}}
{{- if not (and $by (has (index $new $by) $names)) }}{{ $found = append $found $new }}{{ end -}}
{{- end -}}
{{- dict "items" $found | toJson -}}
{{- end }}

{{/* A pod with what is laid over it, in JSON. Of a dict: component, text (its YAML), over (a list). */}}
{{- define "headrace.laidOver" -}}
{{- $pod := fromYaml .text -}}
{{- range .over -}}
{{- include "headrace.checkLabels" (dict "component" $.component "over" .) -}}
{{- $pod = include "headrace.overlaid" (list $pod .) | fromJson -}}
{{- end -}}
{{- include "headrace.checkUnique" (dict "component" .component "pod" $pod) -}}
{{- toJson $pod -}}
{{- end }}

{{/* A pod that is none of Ray's. Of a dict: root, component, container and volumes (YAML; the container
without what all have), env (more of it), account (of a service account, "" for the default one), token
(whether it talks to the Kubernetes API). It stands where the head may. */}}
{{- define "headrace.jobPod" -}}
{{- $over := list (dict "spec" (dict "containers" (list (dict "name" "job" "env" (default list .env))))) .root.Values.jobs.podTemplate -}}
{{- $text := include "headrace.jobPodItself" . -}}
{{- $pod := include "headrace.laidOver" (dict "component" .component "text" $text "over" $over) | fromJson -}}
{{- if eq "Always" $pod.spec.restartPolicy -}}
{{- fail "jobs.podTemplate.spec.restartPolicy is Always; must be Never or OnFailure: a job ends" -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end }}

{{- define "headrace.jobPodItself" -}}
metadata:
  labels:
    {{- include "headrace.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  restartPolicy: Never
  {{- include "headrace.field" (list "serviceAccountName" .account 2) }}
  automountServiceAccountToken: {{ not (empty .token) }}
  {{- include "headrace.anyPod" (dict "root" .root "node" .root.Values.head) | nindent 2 }}
  {{- include "headrace.field" (list "tolerations" .root.Values.head.tolerations 2) }}
  containers:
    - name: job
      {{- include "headrace.anyContainer" .root | nindent 6 }}
      {{- .container | nindent 6 }}
      env:
        - {name: HOME, value: /tmp}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with .mounts }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
