{{/* A prediction to ask for, in JSON {"path", "body"}: what the values say, or what fits a model. */}}
{{- define "headrace.prediction" -}}
{{- $found := dict -}}
{{- if .Values.test.path }}
{{- $found = dict "path" .Values.test.path "body" .Values.test.body }}
{{- else }}
{{- range $optional := list false true }}
{{- range $name, $model := $.Values.models }}
{{- if and (not $found) (eq $optional (dig "optional" false $model)) }}
{{- $task := dig "task" "tensors" $model }}
{{- if eq $task "embed" }}
{{- $found = dict "path" "/v1/embeddings" "body" (dict "model" $name "input" "The river turns the wheel.") }}
{{- else if eq $task "generate" }}
{{- $found = dict "path" "/v1/completions" "body" (dict "model" $name "prompt" "The river" "max_tokens" 4) }}
{{- else if and (eq $model.runtime "synthetic") (eq $task "tensors") }}
{{- $ids := dict "name" "ids" "datatype" "INT64" "shape" (list 1 3) "data" (list 1 2 3) }}
{{- $found = dict "path" (printf "/v2/models/%s/infer" $name) "body" (dict "inputs" (list $ids)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $found -}}
{{- end }}

{{/* "true" where who comes without a key is refused, as gateways see it (docs/settings.md,
`gateway.auth`). */}}
{{- define "headrace.needsKey" -}}
{{- $tenants := .Values.tenants -}}
{{- $fromFiles := dig "tenants_path" "" .Values.gateway -}}
{{- if $fromFiles }}{{ $tenants = default dict (dig "tenants" dict (default dict .Values.tenantFiles.config)) }}{{ end -}}
{{- $auth := default "" (dig "auth" "" .Values.gateway) -}}
{{- $needed := or (eq $auth "required") (and $fromFiles (ne $auth "open")) -}}
{{- range $tenants }}
{{- if and (kindIs "map" .) (hasKey . "keys") (ne $auth "open") }}{{ $needed = true }}{{ end }}
{{- end }}
{{- if and $needed (not (hasKey $tenants "default")) }}true{{ end -}}
{{- end }}

{{/* What the pod of `helm test` asks: the above, but for where it lacks the key that it needs or is off. */}}
{{- define "headrace.tested" -}}
{{- $lacks := and (include "headrace.needsKey" .) (not .Values.test.existingSecret) -}}
{{- ternary (include "headrace.prediction" .) "{}" (and .Values.test.enabled (empty $lacks)) -}}
{{- end }}
