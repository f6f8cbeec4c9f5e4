"""What the Helm charts carry of what is written here: the same objects, with holes for values.

The charts' templates read these files and fill in names and values; nothing of it is written a
second time. ``scripts/chart_sync.py`` writes them, and tests compare what Helm renders with what
the functions of this package return. The parts of the sidecar are made by :func:`inject` from
settings with placeholders, which then become template expressions.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml

from retuned_operator.manifests.admission import decision_policy, freeze_policy, replica_policy
from retuned_operator.manifests.cluster import (
    experiment_namespace,
    limit_range,
    network_policies,
    priority_class,
    quota,
)
from retuned_operator.manifests.injection import PYTHONPATH, SITE, inject
from retuned_operator.manifests.names import CONTAINER, INJECT, METRICS_URL, TARGET
from retuned_operator.manifests.pod_security import container_security, pod_security
from retuned_operator.manifests.roles import (
    experiment_rules,
    own_rules,
    people_roles,
    replica_rules,
    reviewing_rules,
    watching_rules,
)
from retuned_operator.manifests.settings import Endpoint, SidecarSettings, value_name

HEADER = "# Made by scripts/chart_sync.py from retuned_operator.manifests; do not edit.\n"
_TOKEN_S, _USER_ID = 86_399, 1_999_999_937
_WINDOW_S, _SETTLE_S, _WINDOWS, _DETECTOR = 86_397, 3_593, 9_973, "demo"
_PROFILE_S, _PROFILE_MS = 86_389, 4_993
_LOG_FORMAT = "json"
"""Stand for values: numbers that no setting has by chance."""
_TEXTS = {
    "image": "VALUE-image",
    "agent_url": "https://VALUE-agent",
    "pull_policy": "VALUE-pull-policy",
    "ca_config_map": "VALUE-ca-config-map",
    "audience": "VALUE-audience",
    "trusted_keys": "VALUE-trusted-keys",
    "cpu": "VALUE-cpu-requested",
    "cpu_limit": "VALUE-cpu-limit",
    "memory": "VALUE-memory",
    "artifacts": "VALUE-artifacts",
    "metrics_address": "VALUE-metrics-address",
    "server_metrics_url": "http://VALUE-server-metrics",
}
_TARGET = "VALUE-target"
_ACCOUNT, _NAMESPACE = "VALUE-account", "VALUE-namespace"
"""Stand for the operator's service account in its admission policy."""


def manifest_files() -> dict[str, str]:
    """Return the files of ``charts/retuned/files/manifests`` by name."""
    parts = {
        "rights.yaml": {
            "watching": watching_rules(),
            "replicas": replica_rules(),
            "experiments": experiment_rules(),
            "own": own_rules(),
            "reviewing": reviewing_rules(),
            "people": list(people_roles()),
        },
        "admission.yaml": {
            "people": list(decision_policy()),
            "anybody": list(decision_policy(allow_service_accounts=True)),
            "freezes": list(freeze_policy()),
            "replicas": list(replica_policy(_ACCOUNT, namespace=_NAMESPACE)),
        },
        "experiments.yaml": _experiments(),
        "security.yaml": {"pod": pod_security(_USER_ID), "container": container_security()},
    }
    return {name: HEADER + _written(body) for name, body in parts.items()}


def sidecar_template() -> str:
    """Return the generated template of ``charts/retuned-lib``: the parts that go into a pod."""
    settings = SidecarSettings(
        token_s=_TOKEN_S,
        user_id=_USER_ID,
        window_s=_WINDOW_S,
        settle_s=_SETTLE_S,
        baseline_windows=_WINDOWS,
        profile_every_s=_PROFILE_S,
        profile_milliseconds=_PROFILE_MS,
        detector=_DETECTOR,
        log_format=_LOG_FORMAT,
        **_TEXTS,
    )
    annotations = {INJECT: "true", TARGET: _TARGET}
    pod = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "server"}]},
    }
    spec = inject(pod, settings=settings).pod["spec"]
    server = spec["containers"][0]
    parts = {
        "site": SITE,
        "annotations": {
            "inject": INJECT,
            "container": CONTAINER,
            "target": TARGET,
            "pythonpath": PYTHONPATH,
            "serverMetricsUrl": METRICS_URL,
        },
        "env": [each for each in server["env"] if each["name"] != "PYTHONPATH"],
        "volumeMounts": server["volumeMounts"],
        "volumes": spec["volumes"],
        "initContainers": spec["initContainers"],
    }
    note = HEADER.removeprefix("# ").strip()
    return (
        f"{{{{- /* {note} */ -}}}}\n"
        f'{{{{- define "retuned-lib.defaults" -}}}}\n{_written(_defaults())}{{{{- end }}}}\n'
        f'{{{{- define "retuned-lib.parts" -}}}}\n{_with_values(_written(parts))}{{{{- end }}}}\n'
    )


def _experiments() -> dict[str, Any]:
    endpoint = Endpoint(cidr="203.0.113.0/32")
    closed, generate = network_policies("", endpoint=endpoint)
    return {
        "namespace": experiment_namespace(""),
        "priorityClass": priority_class(""),
        "priorityClassThatGrows": priority_class("", may_scale_up=True),
        "quota": quota("", priority="", gpu_resources=(), max_gpus=0),
        "limits": limit_range("", max_cpu="0", max_memory="0", max_storage="0"),
        "closed": closed,
        "generate": generate,
    }


def _defaults() -> dict[str, Any]:
    settings = SidecarSettings(image="-", agent_url="https://-")
    required = {"image", "agent_url"}
    return {
        value_name(each.name): getattr(settings, each.name)
        for each in fields(settings)
        if each.name not in required
    }


def _with_values(text: str) -> str:
    """Replace the placeholders of settings by template expressions."""
    # a large number is a float to Helm, which would write it as 1e+09
    number = ".userId | int64"
    holes = {f"'{_USER_ID}'": f"{{{{ {number} | quote }}}}", str(_USER_ID): f"{{{{ {number} }}}}"}
    holes[str(_TOKEN_S)] = "{{ .tokenSeconds | int64 }}"
    counts = {_WINDOW_S: "window_s", _SETTLE_S: "settle_s", _WINDOWS: "baseline_windows"}
    counts |= {_PROFILE_S: "profile_every_s", _PROFILE_MS: "profile_milliseconds"}
    holes |= {
        f"'{stands}'": f"{{{{ .{value_name(name)} | int64 | quote }}}}"
        for stands, name in counts.items()
    }
    holes[f"value: {_DETECTOR}\n"] = f"value: {_quoted('detector')}\n"
    holes[f"value: {_LOG_FORMAT}\n"] = f"value: {_quoted('logFormat')}\n"
    holes |= {stands: _quoted(value_name(name)) for name, stands in _TEXTS.items()}
    holes[_TARGET] = _quoted("target")
    for stands, expression in holes.items():
        if stands not in text:
            raise ValueError(f"{stands!r} is nowhere in the sidecar's parts any more")
        text = text.replace(stands, expression)
    return text


def _quoted(name: str) -> str:
    return f"{{{{ .{name} | quote }}}}"


def _written(body: object) -> str:
    return yaml.dump(body, Dumper=_Plain, sort_keys=False, width=1000, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: every copy is written out."""

    def ignore_aliases(self, data: object) -> bool:
        """Return that nothing is an alias."""
        return True
