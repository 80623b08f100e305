{{/* Name of the chart, or nameOverride. */}}
{{- define "ballast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of every object: the release, with the chart's name unless it holds it. */}}
{{- define "ballast.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "ballast.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects: releases of one name in two namespaces must not meet. */}}
{{- define "ballast.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "ballast.fullname" .) }}
{{- end }}

{{/* Likewise, where names have no colon. */}}
{{- define "ballast.admissionName" -}}
{{- printf "%s.%s.serving.ballast.dev" (include "ballast.fullname" .) .Release.Namespace }}
{{- end }}

{{- define "ballast.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ballast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Of the gateways of gateway.only. */}}
{{- define "ballast.gatewaySelectorLabels" -}}
app.kubernetes.io/name: {{ include "ballast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "ballast.labels" -}}
{{ include "ballast.selectorLabels" . }}
app.kubernetes.io/part-of: ballast
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "ballast.serviceAccountName" -}}
{{- default (include "ballast.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "ballast.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{/* What the operator may do where ServingPools are. Each line is needed by an object that it writes or reads. */}}
{{- define "ballast.namespacedRules" -}}
# Our own resources: read, and their status written.
- apiGroups: [serving.ballast.dev]
  resources: [servingpools, schedulingpolicies, servicelevelobjectives]
  verbs: [get, list, watch]
- apiGroups: [serving.ballast.dev]
  resources: [servingpools/status, schedulingpolicies/status, servicelevelobjectives/status]
  verbs: [patch]
# Where other scalers say how many instances a pool is to have.
- apiGroups: [serving.ballast.dev]
  resources: [enginepools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [serving.ballast.dev]
  resources: [enginepools/status]
  verbs: [patch]
# Clusters with OwnerReferencesPermissionEnforcement ask for this before an object may name a ServingPool its owner.
- apiGroups: [serving.ballast.dev]
  resources: [servingpools/finalizers]
  verbs: [update]
# What a ServingPool becomes. Server-side apply is create and patch.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [get, list, watch, create, patch, delete]
# Each pool's own token and Lease, by their names; no list of Secrets is read. The gateways update the Lease, and the
# operator must hold this right to grant it.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, patch, update]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# Written only where these APIs exist.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.envoyproxy.io]
  resources: [envoyextensionpolicies, backendtrafficpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Why pods are not ready; marks of those that are to go and roles of flexible ones (patch); and the gateways' own
# right, which the operator must hold to grant it.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* Whether an optional kind is wanted: Always, or Auto and the cluster has it. Takes root, wanted, kind; "" is no. */}}
{{- define "ballast.wants" -}}
{{- if or (eq .wanted "Always") (and (eq .wanted "Auto") (.root.Capabilities.APIVersions.Has .kind)) }}yes{{ end }}
{{- end }}

{{- define "ballast.podMonitors" -}}
{{- include "ballast.wants" (dict "root" . "wanted" .Values.monitoring.podMonitors "kind" "monitoring.coreos.com/v1/PodMonitor") }}
{{- end }}

{{/* Whether pods are annotated for a Prometheus that looks at annotations; "" is no. */}}
{{- define "ballast.scrapeAnnotations" -}}
{{- if and .Values.monitoring.annotations (not (include "ballast.podMonitors" .)) }}yes{{ end }}
{{- end }}

{{/* Whether an expression or a dashboard asks for series that are not there: with gateway.only those of an operator.
Takes root, text; "" is no. */}}
{{- define "ballast.asksInVain" -}}
{{- if and .root.Values.gateway.only.enabled (contains "ballast_operator_" .text) }}yes{{ end }}
{{- end }}
