{{/* Names, labels and images. */}}

{{- define "retuned.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "retuned.fullname" -}}
{{- $name := include "retuned.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What a Deployment selects by: it can never change, so it holds neither version nor anything of commonLabels. */}}
{{- define "retuned.selectorLabels" -}}
app.kubernetes.io/name: {{ include "retuned.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of one object: (dict "root" $ "component" "operator" "more" <dict, optional>). */}}
{{- define "retuned.labels" -}}
{{- $root := .root }}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_"))
  "app.kubernetes.io/name" (include "retuned.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/component" .component
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
}}
{{- toYaml (merge (dict) $own (.more | default dict) $root.Values.commonLabels) }}
{{- end }}

{{/* metadata of one object: (dict "root" $ "name" .. "component" .. and, optional, "namespace" "labels" "annotations"). */}}
{{- define "retuned.metadata" -}}
{{- $labels := include "retuned.labels" (dict "root" .root "component" .component "more" .labels) | fromYaml }}
{{- $body := dict "name" .name "labels" $labels }}
{{- if .namespace }}{{ $_ := set $body "namespace" .namespace }}{{ end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
{{- $_ := set $body "annotations" . }}
{{- end }}
{{- toYaml $body }}
{{- end }}

{{/* An object of files/manifests with our metadata: (dict "root" $ "body" <object> and as for retuned.metadata). */}}
{{- define "retuned.object" -}}
{{- $theirs := .body.metadata.labels | default dict }}
{{- $kept := omit $theirs "app.kubernetes.io/name" "app.kubernetes.io/component" "app.kubernetes.io/managed-by" }}
{{- $about := dict "root" .root "component" (get $theirs "app.kubernetes.io/component" | default .component)
  "name" (.name | default .body.metadata.name) "namespace" .namespace
  "labels" (merge (dict) (.labels | default dict) $kept) "annotations" .annotations }}
{{- $metadata := include "retuned.metadata" $about | fromYaml }}
{{- toYaml (merge (dict "metadata" $metadata) (omit .body "metadata")) }}
{{- end }}

{{/* An image by its digest, or by its tag: (list $ .Values.operator.image). */}}
{{- define "retuned.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- $name := $image.repository }}
{{- with $root.Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "retuned.serviceAccount" -}}
{{- if .Values.operator.serviceAccount.create }}
{{- .Values.operator.serviceAccount.name | default (printf "%s-operator" (include "retuned.fullname" .)) }}
{{- else }}
{{- required "operator.serviceAccount.name: name the account, or let the chart create one" .Values.operator.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "retuned.claim" -}}
{{- .Values.store.existingClaim | default (printf "%s-store" (include "retuned.fullname" .)) }}
{{- end }}

{{/* ConfigMap with definitions of users' own kernels; empty where there is none. */}}
{{- define "retuned.definitions" -}}
{{- if .Values.definitions.files }}
{{- printf "%s-definitions" (include "retuned.fullname" .) }}
{{- else }}
{{- .Values.definitions.configMap }}
{{- end }}
{{- end }}

{{- define "retuned.agentUrl" -}}
{{- $service := printf "%s-agent.%s.svc" (include "retuned.fullname" .) .Release.Namespace }}
{{- .Values.agent.url | default (printf "https://%s:%d" $service (int .Values.agent.service.port)) }}
{{- end }}

{{/* Security contexts; with a user of null the cluster chooses one. */}}
{{- define "retuned.podSecurity" -}}
{{- $pod := (.Files.Get "files/manifests/security.yaml" | fromYaml).pod }}
{{- if kindIs "invalid" .Values.operator.userId }}
{{- $pod = omit $pod "runAsUser" "runAsGroup" "fsGroup" }}
{{- else }}
{{- $user := int64 .Values.operator.userId }}
{{- $pod = merge (dict "runAsUser" $user "runAsGroup" $user "fsGroup" $user) $pod }}
{{- end }}
{{- toYaml $pod }}
{{- end }}

{{- define "retuned.containerSecurity" -}}
{{- toYaml (.Files.Get "files/manifests/security.yaml" | fromYaml).container }}
{{- end }}

{{/* Whether experiments have a separate namespace. */}}
{{- define "retuned.apart" -}}
{{- if ne .Values.experiments.namespace .Release.Namespace }}true{{ end }}
{{- end }}
