{{/* The operator's settings as one file; tests read it as the operator does. */}}
{{- define "retuned.settings" -}}
{{- $jobs := .Values.experiments }}
{{- $groups := dict }}
{{- range $vendor, $ids := $jobs.deviceGroups }}
{{- $whole := list }}
{{- range $ids }}{{ $whole = append $whole (int64 .) }}{{ end }}
{{- $_ := set $groups $vendor $whole }}
{{- end }}
{{- $body := dict
  "namespaces" .Values.scope.namespaces
  "environment" .Values.scope.environment
  "prometheusUrl" .Values.monitoring.prometheusUrl
  "sloAlerts" .Values.monitoring.sloAlerts
  "tracesUrl" .Values.tracing.url
  "allowServiceAccounts" .Values.admissionPolicies.allowServiceAccounts
  "canaryReplicas" .Values.canaryReplicas.enabled
}}
{{- $endpoint := dict }}
{{- with $jobs.endpoint }}
{{- if .cidr }}{{ $endpoint = dict "cidr" .cidr "port" (int .port) }}{{ end }}
{{- if .url }}
{{- $endpoint = merge $endpoint (dict
  "url" .url
  "model" .model
  "prompt_usd_per_mtok" .promptUsdPerMtok
  "completion_usd_per_mtok" .completionUsdPerMtok
  "max_tokens" (int .maxTokens)
  "max_usd" .maxUsd
  "max_usd_per_day" .maxUsdPerDay
  "variants" (int .variants)
  "max_s" (int .maxSeconds)
) }}
{{- end }}
{{- end }}
{{- $tuning := dict
  "image" (include "retuned.image" (list . $jobs.image))
  "namespace" $jobs.namespace
  "pullPolicy" .Values.image.pullPolicy
  "pullSecrets" .Values.image.pullSecrets
  "priorityClass" $jobs.priorityClass.name
  "queue" (ternary $jobs.kueue.localQueue "" $jobs.kueue.enabled)
  "gpuResources" $jobs.gpuResources
  "gpuModels" $jobs.gpuModels
  "deviceGroups" $groups
  "runtimeClass" $jobs.runtimeClassName
  "userNamespaces" $jobs.userNamespaces
  "tolerations" $jobs.tolerations
  "userId" (int64 $jobs.userId)
  "sizes" $jobs.sizes
  "compileFirst" $jobs.compileFirst
  "keepSeconds" (int $jobs.keepSeconds)
  "endpoint" ($endpoint | default nil)
  "endpointSecret" $jobs.endpoint.secret
}}
{{- $sidecar := dict
  "image" (include "retuned.image" (list . .Values.sidecar.image))
  "agentUrl" (include "retuned.agentUrl" .)
  "pullPolicy" .Values.image.pullPolicy
  "tokenSeconds" (int .Values.sidecar.tokenSeconds)
  "userId" (int64 .Values.sidecar.userId)
  "trustedKeys" (join "," .Values.sidecar.trustedKeys)
  "cpu" .Values.sidecar.cpu
  "cpuLimit" .Values.sidecar.cpuLimit
  "memory" .Values.sidecar.memory
  "artifacts" .Values.sidecar.artifacts
  "windowSeconds" (int .Values.sidecar.windowSeconds)
  "settleSeconds" (int .Values.sidecar.settleSeconds)
  "baselineWindows" (int .Values.sidecar.baselineWindows)
  "profileEverySeconds" (int .Values.sidecar.profileEverySeconds)
  "profileMilliseconds" (int .Values.sidecar.profileMilliseconds)
  "detector" .Values.sidecar.detector
  "serverMetricsUrl" .Values.sidecar.serverMetricsUrl
  "metricsAddress" .Values.sidecar.metricsAddress
  "logFormat" .Values.sidecar.logFormat
  "tracesUrl" (ternary .Values.tracing.url "" .Values.tracing.sidecars)
}}
{{- $review := dict }}
{{- with .Values.review }}
{{- if .enabled }}
{{- $review = dict
  "hosts" .hosts
  "place" .place
  "proxyAddresses" .proxy.addresses
  "userHeader" .proxy.userHeader
  "groupsHeader" .proxy.groupsHeader
  "userPrefix" .proxy.userPrefix
  "groupsPrefix" .proxy.groupsPrefix
  "groups" .speaksFor.groups
  "gpuHourUsd" .gpuHourUsd
}}
{{- with .proxy.secret }}{{ $_ := set $review "secretFile" "/etc/retuned-review/secret" }}{{ end }}
{{- end }}
{{- end }}
{{- $channels := dict }}
{{- with .Values.channels }}
{{- range $setting, $key := dict
  "slackWebhook" .slack.webhookKey
  "slackToken" .slack.tokenKey
  "slackSigningSecret" .slack.signingSecretKey
  "alertmanagerToken" .alertmanager.tokenKey
  "alertmanagerWebhookToken" .alertmanager.webhookTokenKey
  "webhookSecret" .webhook.secretKey
}}
{{- if $key }}{{ $_ := set $channels $setting (printf "/etc/retuned-channels/%s" $key) }}{{ end }}
{{- end }}
{{- if or $channels .alertmanager.url }}
{{- $channels = merge $channels (dict
  "slackChannel" .slack.channel
  "slackTeam" .slack.team
  "slackPeople" .slack.people
  "alertmanagerUrl" .alertmanager.url
  "alertmanagerPauseSeconds" (int .alertmanager.pauseSeconds)
  "webhookUrl" .webhook.url
  "reviewUrl" .reviewUrl
) }}
{{- end }}
{{- end }}
{{- toYaml (merge (dict "jobs" $tuning "sidecar" $sidecar "review" $review "channels" $channels) $body) }}
{{- end }}

{{/* Whether the operator accepts requests from Slack or Alertmanager; empty if not. */}}
{{- define "retuned.hears" -}}
{{- if or .Values.channels.slack.signingSecretKey .Values.channels.alertmanager.webhookTokenKey }}yes{{ end -}}
{{- end }}

{{/* What differs from pod to pod, and where things are. */}}
{{- define "retuned.environment" -}}
- {name: RETUNED_OPERATOR_CONFIG, value: /etc/retuned/operator.yaml}
- {name: RETUNED_OPERATOR_STATE_DIR, value: /var/lib/retuned}
- {name: RETUNED_OPERATOR_LOG_LEVEL, value: {{ .Values.operator.logLevel | quote }}}
- {name: RETUNED_OPERATOR_LOG_FORMAT, value: {{ .Values.operator.logFormat | quote }}}
- {name: RETUNED_OPERATOR_AGENT_PORT, value: {{ .Values.operator.ports.agent | quote }}}
- {name: RETUNED_OPERATOR_METRICS_PORT, value: {{ .Values.operator.ports.metrics | quote }}}
{{- if .Values.webhook.enabled }}
- {name: RETUNED_OPERATOR_WEBHOOK_PORT, value: {{ .Values.operator.ports.webhook | quote }}}
{{- end }}
{{- if .Values.review.enabled }}
- {name: RETUNED_OPERATOR_REVIEW_PORT, value: {{ .Values.review.port | quote }}}
{{- end }}
{{- if include "retuned.hears" . }}
- {name: RETUNED_OPERATOR_CHANNELS_PORT, value: {{ .Values.channels.port | quote }}}
{{- end }}
{{- if or (include "retuned.definitions" .) .Values.definitions.existingClaim }}
- {name: RETUNED_OPERATOR_DEFINITIONS_DIR, value: /etc/retuned-definitions}
{{- end }}
{{- if .Values.certManager.enabled }}
- {name: RETUNED_OPERATOR_TLS_DIR, value: /etc/retuned-tls}
{{- end }}
- name: RETUNED_OPERATOR_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: RETUNED_OPERATOR_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end }}

{{/* Selector of the namespaces with servers. */}}
{{- define "retuned.watchedNamespaces" -}}
{{- if .Values.scope.namespaces -}}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: In
  values: {{- toYaml .Values.scope.namespaces | nindent 2 }}
{{- else -}}
{}
{{- end -}}
{{- end }}
