{{/* Whether the cluster that this is installed into does not know the kind of policies yet. */}}
{{- define "retuned.policiesComeLater" -}}
{{- if and .Release.IsInstall .Values.crds.install .Values.policies }}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- if not (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "kerneltuningpolicies.retuned.dev") }}true{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Annotations of an object that is taken away at an event of the release. */}}
{{- define "retuned.goesAt" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Policies of this release that came as hooks, and that Helm therefore does not know as its own; a list. */}}
{{- define "retuned.cameAsHooks" -}}
{{- $root := . }}
{{- $found := list }}
{{- if and .Release.IsUpgrade .Values.crds.install }}
{{- if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "kerneltuningpolicies.retuned.dev" }}
{{- range (lookup "retuned.dev/v1alpha1" "KernelTuningPolicy" "" "").items }}
{{- $said := .metadata.annotations | default dict }}
{{- $ours := and (eq (get $said "meta.helm.sh/release-name") $root.Release.Name) (eq (get $said "meta.helm.sh/release-namespace") $root.Release.Namespace) }}
{{- if and $ours (hasKey $said "helm.sh/hook") }}{{ $found = append $found . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* A policy's own spec over the one that ships: (dict "root" $ "policy" <of the values> "index" <its place>). */}}
{{- define "retuned.policySpec" -}}
{{- $spec := dict }}
{{- with .policy.shipped }}
{{- $text := $.root.Files.Get (printf "files/policies/%s.yaml" .) }}
{{- if not $text }}
{{- $names := list }}
{{- range $path, $_ := $.root.Files.Glob "files/policies/*.yaml" }}{{ $names = append $names (base $path | trimSuffix ".yaml") }}{{ end }}
{{- fail (printf "policies[%d].shipped: policies/ has no %s; it has %s" $.index . (join ", " $names)) }}
{{- end }}
{{- $spec = ($text | fromYaml).spec }}
{{- end }}
{{- range $name, $value := .policy.spec }}{{ $_ := set $spec $name $value }}{{ end }}
{{- toYaml $spec }}
{{- end }}

{{- define "retuned.policy" -}}
apiVersion: retuned.dev/v1alpha1
kind: KernelTuningPolicy
metadata:
  {{- include "retuned.metadata" .about | nindent 2 }}
spec:
  {{- .spec | nindent 2 }}
{{- end }}
