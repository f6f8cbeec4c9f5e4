{{/*
A pod template with sidecar and runtime in it: the same pod that the webhook makes, for those who want no webhook.

  template:
    {{- include "retuned-lib.inject" (dict "pod" $podTemplate "settings" .Values.retuned) | nindent 4 }}

`pod` is a pod template as an object, such as `include "my.podTemplate" . | fromYaml`. `settings` needs `image` and
`agentUrl`; the rest has defaults (retuned-lib.defaults). A pod that has the sidecar, or whose annotation
`retuned.dev/inject` says "false", stays as it is. What the webhook would leave alone for a doubt is an error here.
*/}}
{{- define "retuned-lib.inject" -}}
{{- $pod := deepCopy .pod }}
{{- $metadata := $pod.metadata | default dict }}
{{- $annotations := $metadata.annotations | default dict }}
{{- /* not by merge, which treats an explicit 0 as unset */ -}}
{{- $settings := include "retuned-lib.defaults" . | fromYaml }}
{{- range $name, $value := .settings }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- $_ := set $settings "target" (get $annotations "retuned.dev/target" | default (get .settings "target")) }}
{{- $_ := set $settings "serverMetricsUrl" (get $annotations "retuned.dev/server-metrics-url" | default $settings.serverMetricsUrl) }}
{{- $_ := required "retuned-lib: settings.image is the image of the sidecar" $settings.image }}
{{- if not (hasPrefix "https://" ($settings.agentUrl | default "")) }}
{{- fail "retuned-lib: settings.agentUrl is the address of the agent API, https://..." }}
{{- end }}
{{- if and (hasKey .settings "userId") (le (int64 .settings.userId) 0) }}{{ fail "retuned-lib: settings.userId: the sidecar never runs as root" }}{{ end }}
{{- $parts := include "retuned-lib.parts" $settings | fromYaml }}
{{- $names := list }}
{{- range concat ($pod.spec.initContainers | default list) $pod.spec.containers }}{{ $names = append $names .name }}{{ end }}
{{- if and (ne (get $annotations $parts.annotations.inject | lower) "false") (not (has "retuned" $names)) }}
{{- include "retuned-lib.refuse" (dict "pod" $pod "parts" $parts "names" $names) }}
{{- $index := include "retuned-lib.container" (dict "pod" $pod "named" (get $annotations $parts.annotations.container)) | int }}
{{- $server := index $pod.spec.containers $index }}
{{- $behind := get $annotations $parts.annotations.pythonpath }}
{{- $environment := include "retuned-lib.environment" (dict "server" $server "parts" $parts "behind" $behind) | fromYaml }}
{{- $_ := set $server "env" $environment.env }}
{{- $_ := set $server "volumeMounts" (concat ($server.volumeMounts | default list) $parts.volumeMounts) }}
{{- $_ := set $pod.spec "volumes" (concat ($pod.spec.volumes | default list) $parts.volumes) }}
{{- range $container := $parts.initContainers }}
{{- if hasKey $container "env" }}
{{- $_ := set $container "env" (include "retuned-lib.said" $container | fromYaml).env }}
{{- end }}
{{- end }}
{{- $_ := set $pod.spec "initContainers" (concat $parts.initContainers ($pod.spec.initContainers | default list)) }}
{{- $_ := set $metadata "labels" (merge (dict $parts.annotations.inject "true") ($metadata.labels | default dict)) }}
{{- $_ := set $pod "metadata" $metadata }}
{{- end }}
{{- toYaml $pod }}
{{- end }}

{{/* Nothing, or an error for a pod that uses a name of ours for another part. */}}
{{- define "retuned-lib.refuse" -}}
{{- $ours := list }}
{{- range .parts.volumes }}{{ $ours = append $ours .name }}{{ end }}
{{- range .pod.spec.volumes }}
{{- if has .name $ours }}{{ fail (printf "retuned-lib: the pod has its own volume %s" .name) }}{{ end }}
{{- end }}
{{- if has "retuned-runtime" .names }}{{ fail "retuned-lib: the pod has its own container retuned-runtime" }}{{ end }}
{{- end }}

{{/* Place of the container that serves: the one that is named, or the only one. */}}
{{- define "retuned-lib.container" -}}
{{- $named := .named }}
{{- $found := ternary 0 -1 (and (not $named) (eq (len .pod.spec.containers) 1)) }}
{{- range $index, $container := .pod.spec.containers }}
{{- if and $named (eq $container.name $named) }}{{ $found = $index }}{{ end }}
{{- end }}
{{- if lt $found 0 }}{{ fail "retuned-lib: name the container that serves in the annotation retuned.dev/container" }}{{ end }}
{{- $found }}
{{- end }}

{{/* Our folder before the server's PYTHONPATH; what the server sets itself stays. */}}
{{- define "retuned-lib.environment" -}}
{{- $own := dict }}
{{- range .server.env }}{{ $_ := set $own .name . }}{{ end }}
{{- $given := get $own "PYTHONPATH" | default dict }}
{{- if hasKey $given "valueFrom" }}{{ fail "retuned-lib: PYTHONPATH comes from elsewhere; give it as a value" }}{{ end }}
{{- $path := list .parts.site (get $given "value" | default .behind) | compact | join ":" }}
{{- $env := list (dict "name" "PYTHONPATH" "value" $path) }}
{{- range .parts.env }}
{{- if and .value (not (hasKey $own .name)) }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- range .server.env }}
{{- if ne .name "PYTHONPATH" }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- toYaml (dict "env" $env) }}
{{- end }}

{{/* The environment of a container of ours, without what says nothing. */}}
{{- define "retuned-lib.said" -}}
{{- $env := list }}
{{- range .env }}
{{- if or (hasKey . "valueFrom") .value }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- toYaml (dict "env" $env) }}
{{- end }}
