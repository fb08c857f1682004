{{/* Of every object. 40 characters: KubeRay takes 47 of a RayService, our suffixes need 7. */}}
{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "headrace" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-headrace" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* What objects are selected by; `component` is added by each. Never changes. */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Of objects outside of Ray's pod templates: a version there would roll the cluster. */}}
{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of jobs, which nobody's queue may hold up: upgrades wait for them. */}}
{{- define "headrace.jobLabels" -}}
{{- omit (include "headrace.labels" . | fromYaml) "kueue.x-k8s.io/queue-name" "kueue.x-k8s.io/priority-class" | toYaml -}}
{{- end }}

{{/* What every object begins with; more labels or annotations may follow. Of a list: the root, its API
version, its kind, its name, more labels (a mapping) if it may have any. */}}
{{- define "headrace.object" -}}
{{- $root := index . 0 -}}
apiVersion: {{ index . 1 }}
kind: {{ index . 2 }}
metadata:
  name: {{ index . 3 | quote }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (ternary "headrace.jobLabels" "headrace.labels" (eq "Job" (index . 2))) $root | nindent 4 }}
    {{- with slice . 4 }}{{ with first . }}{{ toYaml . | nindent 4 }}{{ end }}{{ end }}
{{- end }}

{{/* A field where its value is not empty. Of a list: its name, its value, how far it is indented. */}}
{{- define "headrace.field" -}}
{{- with index . 1 }}{{ dict (index $ 0) . | toYaml | nindent (int (index $ 2)) }}{{ end -}}
{{- end }}

{{/* The image, by digest where there is one. */}}
{{- define "headrace.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{- default (ternary (include "headrace.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* MiB of a quantity in Mi or Gi, which is all that the schema lets through. */}}
{{- define "headrace.mib" -}}
{{- if hasSuffix "Gi" . -}}
{{- mul (trimSuffix "Gi" . | int64) 1024 -}}
{{- else -}}
{{- trimSuffix "Mi" . | int64 -}}
{{- end -}}
{{- end }}
