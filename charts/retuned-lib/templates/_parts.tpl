{{- /* Made by scripts/chart_sync.py from retuned_operator.manifests; do not edit. */ -}}
{{- define "retuned-lib.defaults" -}}
pullPolicy: IfNotPresent
caConfigMap: retuned-agent-ca
audience: retuned.dev
tokenSeconds: 3600
userId: 65532
trustedKeys: ''
cpu: 20m
cpuLimit: 200m
memory: 128Mi
artifacts: 1Gi
windowSeconds: 300
settleSeconds: 30
baselineWindows: 6
profileEverySeconds: 0
profileMilliseconds: 200
detector: production
serverMetricsUrl: ''
tracesUrl: ''
metricsAddress: 127.0.0.1
logFormat: text
{{- end }}
{{- define "retuned-lib.parts" -}}
site: /retuned/runtime/retuned/runtime/site
annotations:
  inject: retuned.dev/inject
  container: retuned.dev/container
  target: retuned.dev/target
  pythonpath: retuned.dev/pythonpath
  serverMetricsUrl: retuned.dev/server-metrics-url
env:
- name: RETUNED_SOCKET_DIR
  value: /retuned/sockets
- name: RETUNED_ALLOWED_UIDS
  value: {{ .userId | int64 | quote }}
- name: RETUNED_TRACE_DIR
  value: /retuned/traces
- name: RETUNED_PROFILE_EVERY_S
  value: {{ .profileEverySeconds | int64 | quote }}
- name: RETUNED_PROFILE_MS
  value: {{ .profileMilliseconds | int64 | quote }}
- name: RETUNED_SERVER
  value: {{ .target | quote }}
- name: RETUNED_TRUSTED_KEY
  value: {{ .trustedKeys | quote }}
volumeMounts:
- name: retuned-runtime
  mountPath: /retuned/runtime
  readOnly: true
- name: retuned-sockets
  mountPath: /retuned/sockets
- name: retuned-traces
  mountPath: /retuned/traces
volumes:
- name: retuned-runtime
  emptyDir:
    sizeLimit: 64Mi
- name: retuned-sockets
  emptyDir:
    sizeLimit: 1Mi
- name: retuned-traces
  emptyDir:
    sizeLimit: 4Gi
- name: retuned-state
  emptyDir:
    sizeLimit: {{ .artifacts | quote }}
- name: retuned-token
  projected:
    sources:
    - serviceAccountToken:
        audience: {{ .audience | quote }}
        expirationSeconds: {{ .tokenSeconds | int64 }}
        path: token
    - configMap:
        name: {{ .caConfigMap | quote }}
        items:
        - key: ca.crt
          path: ca.crt
        optional: true
initContainers:
- name: retuned-runtime
  image: {{ .image | quote }}
  imagePullPolicy: {{ .pullPolicy | quote }}
  command:
  - cp
  - -r
  - /opt/retuned/runtime/.
  - /retuned/runtime
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
    limits:
      cpu: {{ .cpuLimit | quote }}
      memory: 64Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    privileged: false
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    runAsUser: {{ .userId | int64 }}
    runAsGroup: {{ .userId | int64 }}
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: retuned-runtime
    mountPath: /retuned/runtime
- name: retuned
  image: {{ .image | quote }}
  imagePullPolicy: {{ .pullPolicy | quote }}
  restartPolicy: Always
  command:
  - retuned
  - sidecar
  env:
  - name: RETUNED_AGENT_URL
    value: {{ .agentUrl | quote }}
  - name: RETUNED_TOKEN_FILE
    value: /var/run/secrets/retuned.dev/token
  - name: RETUNED_CA_FILE
    value: /var/run/secrets/retuned.dev/ca.crt
  - name: RETUNED_TARGET
    value: {{ .target | quote }}
  - name: RETUNED_SOCKET_DIR
    value: /retuned/sockets
  - name: RETUNED_WATCH_DIRS
    value: /retuned/traces
  - name: RETUNED_STATE_DIR
    value: /retuned/state
  - name: RETUNED_TRUSTED_KEY
    value: {{ .trustedKeys | quote }}
  - name: RETUNED_WINDOW_S
    value: {{ .windowSeconds | int64 | quote }}
  - name: RETUNED_SETTLE_S
    value: {{ .settleSeconds | int64 | quote }}
  - name: RETUNED_BASELINE_WINDOWS
    value: {{ .baselineWindows | int64 | quote }}
  - name: RETUNED_DETECTOR_PRESET
    value: {{ .detector | quote }}
  - name: RETUNED_SERVER_METRICS_URL
    value: {{ .serverMetricsUrl | quote }}
  - name: RETUNED_METRICS_ADDRESS
    value: {{ .metricsAddress | quote }}
  - name: RETUNED_METRICS_PORT
    value: '9475'
  - name: RETUNED_LOG_FORMAT
    value: {{ .logFormat | quote }}
  - name: TMPDIR
    value: /retuned/state
  - name: RETUNED_POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: RETUNED_POD_UID
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  - name: RETUNED_POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  ports:
  - name: retuned-metrics
    containerPort: 9475
    protocol: TCP
  resources:
    requests:
      cpu: {{ .cpu | quote }}
      memory: {{ .memory | quote }}
    limits:
      cpu: {{ .cpuLimit | quote }}
      memory: {{ .memory | quote }}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    privileged: false
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    runAsUser: {{ .userId | int64 }}
    runAsGroup: {{ .userId | int64 }}
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: retuned-sockets
    mountPath: /retuned/sockets
  - name: retuned-traces
    mountPath: /retuned/traces
  - name: retuned-state
    mountPath: /retuned/state
  - name: retuned-token
    mountPath: /var/run/secrets/retuned.dev
    readOnly: true
{{- end }}
