"""The kinds that the operator reads and writes, with their places in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from retuned.api.values import GROUP, VERSION
from retuned_operator.schema.crds import KINDS, CustomResource

Obj = dict[str, Any]
"""An object of the API server: JSON data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object."""

    group: str
    """API group; empty for the oldest."""
    version: str
    """Version of the group."""
    kind: str
    """Its name in objects."""
    plural: str
    """Its name in paths."""
    namespaced: bool = True
    """Whether it lives in namespaces."""

    @property
    def api_version(self) -> str:
        """Group and version, as objects write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of all of them.

        Parameters
        ----------
        namespace
            Empty for kinds without namespaces, and for a list over all of them.
        name
            Empty for a list.
        subresource
            Such as ``status``; empty for the object.

        Raises
        ------
        ValueError
            If a namespaced resource lacks the namespace, or a cluster's resource has one.

        Examples
        --------
        >>> PODS.path(namespace="serving", name="chat-0")
        '/api/v1/namespaces/serving/pods/chat-0'
        >>> LEASES.path()
        '/apis/coordination.k8s.io/v1/leases'
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, not {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r} has no namespace")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = ["namespaces", namespace] if namespace else []
        parts += [self.plural, *filter(None, (name, subresource))]
        return "/".join((root, *(quote(part, safe="") for part in parts)))


def resource_of(kind: CustomResource) -> Resource:
    """Return the place of one of our kinds."""
    return Resource(
        group=GROUP,
        version=VERSION,
        kind=kind.kind,
        plural=kind.plural,
        namespaced=kind.namespaced,
    )


def _core(kind: str, plural: str, *, namespaced: bool = True) -> Resource:
    return Resource(group="", version="v1", kind=kind, plural=plural, namespaced=namespaced)


def _v1(group: str, kind: str, plural: str, *, namespaced: bool = True) -> Resource:
    return Resource(group=group, version="v1", kind=kind, plural=plural, namespaced=namespaced)


TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES = map(resource_of, KINDS)
"""Our own kinds."""
NAMESPACES = _core("Namespace", "namespaces", namespaced=False)
NODES = _core("Node", "nodes", namespaced=False)
PODS = _core("Pod", "pods")
CONFIG_MAPS = _core("ConfigMap", "configmaps")
SECRETS = _core("Secret", "secrets")
SERVICE_ACCOUNTS = _core("ServiceAccount", "serviceaccounts")
JOBS = _v1("batch", "Job", "jobs")
REPLICA_SETS = _v1("apps", "ReplicaSet", "replicasets")
STATEFUL_SETS = _v1("apps", "StatefulSet", "statefulsets")
LEASES = _v1("coordination.k8s.io", "Lease", "leases")
EVENTS = _v1("events.k8s.io", "Event", "events")
TOKEN_REVIEWS = _v1("authentication.k8s.io", "TokenReview", "tokenreviews", namespaced=False)
SELF_REVIEWS = _v1(
    "authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", namespaced=False
)
ACCESS_REVIEWS = _v1(
    "authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
MUTATING_WEBHOOKS = _v1(
    "admissionregistration.k8s.io",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
DEFINITIONS = _v1(
    "apiextensions.k8s.io",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)
ALL: tuple[Resource, ...] = (
    *map(resource_of, KINDS),
    *(NAMESPACES, NODES, PODS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, JOBS, LEASES, EVENTS),
    *(REPLICA_SETS, STATEFUL_SETS),
    *(TOKEN_REVIEWS, SELF_REVIEWS, ACCESS_REVIEWS, MUTATING_WEBHOOKS, DEFINITIONS),
)
"""All of them."""
