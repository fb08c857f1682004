{{/* What `helm test` asks, in JSON {"path", "body"}: what the values say, or what fits a model. */}}
{{- define "headrace.prediction" -}}
{{- $found := dict -}}
{{- if not .Values.test.enabled }}
{{- else if .Values.test.path }}
{{- $found = dict "path" .Values.test.path "body" .Values.test.body }}
{{- else }}
{{- range $name, $model := .Values.models }}
{{- if not $found }}
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
{{- toJson $found -}}
{{- end }}
