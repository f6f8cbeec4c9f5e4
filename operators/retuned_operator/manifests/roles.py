"""Who may do what: the operator's own rights, and roles for people.

The operator reads no secrets but its own certificate, starts no processes in pods and changes no
workloads. It makes pods only where canary replicas are allowed. People who approve can write
decisions and nothing else; an abort is a decision too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retuned.api.values import GROUP
from retuned_operator.manifests.admission import APPROVE, BREAK_GLASS
from retuned_operator.manifests.names import labels
from retuned_operator.manifests.report import REPORT
from retuned_operator.schema.crds import KINDS

LEASE = "retuned-operator"
"""Lease of the leader."""
_READ = ("get", "list", "watch")
_APPLY = ("get", "create", "patch")
"""Of one object by name: to apply it asks for the name even where it is not there yet."""
_ALL_KINDS = tuple(kind.plural for kind in KINDS)
_MADE_BY_OPERATOR = ("kernelexperiments", "swapproposals")


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], *names: str) -> dict[str, Any]:
    """Return one rule; `names` restricts it to objects of these names."""
    body: dict[str, Any] = {
        "apiGroups": [group],
        "resources": list(resources),
        "verbs": list(verbs),
    }
    return body | ({"resourceNames": list(names)} if names else {})


def watching_rules() -> list[dict[str, Any]]:
    """Return what the operator needs where servers are: its own kinds, pods, and its authority.

    Sidecars mount the authority of the agent API from their own namespace, and people read there
    what was spent and saved.
    """
    return [
        rule(GROUP, _ALL_KINDS, _READ),
        rule(GROUP, _MADE_BY_OPERATOR, ("create", "patch", "delete")),
        rule(GROUP, [f"{plural}/status" for plural in _ALL_KINDS], ("get", "patch")),
        rule(GROUP, [f"{plural}/finalizers" for plural in _MADE_BY_OPERATOR], ("update",)),
        rule("", ("pods",), _READ),
        rule("", ("configmaps",), _APPLY, "retuned-agent-ca", REPORT),
        rule("events.k8s.io", ("events",), ("create", "patch")),
    ]


def replica_rules() -> list[dict[str, Any]]:
    """Return what canary replicas need where servers are, beside `watching_rules`.

    Names are not known beforehand. `admission.replica_policy` restricts which pods the operator
    may make and delete.
    """
    return [
        rule("", ("pods",), ("create", "delete")),
        rule("apps", ("replicasets", "statefulsets"), ("get",)),
    ]


def experiment_rules() -> list[dict[str, Any]]:
    """Return what the operator needs where experiments run; results are the log of a container."""
    return [
        rule("batch", ("jobs",), (*_READ, "create", "patch", "delete")),
        rule("", ("configmaps",), ("create", "delete")),
        rule("", ("pods",), _READ),
        rule("", ("pods/log",), ("get",)),
    ]


def own_rules() -> list[dict[str, Any]]:
    """Return what the operator needs in its own namespace: the leader's lease, its certificate."""
    return [
        rule("coordination.k8s.io", ("leases",), ("create",)),
        rule("coordination.k8s.io", ("leases",), ("get", "update"), LEASE),
        rule("", ("secrets",), _APPLY, "retuned-webhook-cert"),
    ]


def reviewing_rules() -> list[dict[str, Any]]:
    """Return what the operator may ask the API server about others."""
    return [
        rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
        rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
        rule(GROUP, ("tuningfreezes",), _READ),
        rule(GROUP, ("tuningfreezes/status",), ("get", "patch")),
        rule(
            "admissionregistration.k8s.io",
            ("mutatingwebhookconfigurations",),
            ("get", "patch"),
            "retuned-sidecar",
        ),
    ]


def speaking_rules(
    users: Sequence[str], groups: Sequence[str], *, any_user: bool = False
) -> list[dict[str, Any]]:
    """Return what the review page needs to write decisions in people's names, and no more.

    Rights to impersonate any user include the cluster's own accounts; so name users and groups.

    Parameters
    ----------
    users
        People, as the API server knows them.
    groups
        Their groups that policies name.
    any_user
        Whether users need not be named. A user whose name begins with ``system:`` is then kept out
        by the page alone.
    """
    found = []
    if any_user:
        found.append(rule("", ("users",), ("impersonate",)))
    elif users:
        found.append(rule("", ("users",), ("impersonate",), *users))
    if groups:
        found.append(rule("", ("groups",), ("impersonate",), *groups))
    return found


def pausing_rules() -> list[dict[str, Any]]:
    """Return the rules with which the operator stops tuning for an alert, and resumes it.

    Names are not known beforehand: the operator deletes only freezes that it has made itself.
    """
    return [rule(GROUP, ("tuningfreezes",), ("create", "delete"))]


def operator_roles(
    account: str,
    *,
    namespace: str,
    watched: Sequence[str],
    experiments: str,
    replicas: bool = False,
) -> tuple[dict[str, Any], ...]:
    """Return the roles of the operator and their bindings.

    Parameters
    ----------
    account
        Its service account.
    namespace
        Its own namespace.
    watched
        Namespaces with servers; empty means all of the cluster.
    experiments
        Namespace of experiment pods; empty means those with servers.
    replicas
        Whether it may make canary replicas.
    """
    who = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    wide, found = reviewing_rules(), []
    near = watching_rules() + ([] if experiments else experiment_rules())
    near += replica_rules() if replicas else []
    if watched:
        for each in watched:
            found += _bound("Role", account, near, who=who, namespace=each)
    else:
        wide = wide + near
    if experiments:
        name = f"{account}-experiments"
        found += _bound("Role", name, experiment_rules(), who=who, namespace=experiments)
    found += _bound("Role", f"{account}-own", own_rules(), who=who, namespace=namespace)
    found += _bound("ClusterRole", account, wide, who=who)
    return tuple(found)


def people_roles() -> tuple[dict[str, Any], ...]:
    """Return the roles that are bound to people; the narrow ones add up to the usual ones."""
    decide = rule(GROUP, ("swapdecisions",), ("create",))
    read = rule(GROUP, _ALL_KINDS, _READ)
    sums = rule("", ("configmaps",), ("get",), REPORT)
    manage = rule(
        GROUP,
        ("tuningtargets", "kerneltuningpolicies", "tuningfreezes"),
        ("create", "update", "patch", "delete"),
    )
    hold = rule(GROUP, _MADE_BY_OPERATOR, ("patch",))
    return (
        _people("retuned-viewer", [read, sums], aggregate="view"),
        _people(
            "retuned-approver", [read, sums, decide, rule(GROUP, ("swapproposals",), (APPROVE,))]
        ),
        _people(
            "retuned-break-glass",
            [read, sums, decide, rule(GROUP, ("swapproposals",), (BREAK_GLASS,))],
        ),
        _people("retuned-admin", [read, sums, manage, hold]),
    )


def _people(name: str, rules: list[dict[str, Any]], *, aggregate: str = "") -> dict[str, Any]:
    extra = {f"rbac.authorization.k8s.io/aggregate-to-{aggregate}": "true"} if aggregate else {}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels("access") | extra},
        "rules": rules,
    }


def _bound(
    kind: str,
    name: str,
    rules: list[dict[str, Any]],
    *,
    who: dict[str, str],
    namespace: str = "",
) -> list[dict[str, Any]]:
    metadata: dict[str, Any] = {"name": name, "labels": labels("operator")}
    metadata |= {"namespace": namespace} if namespace else {}
    version = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": version,
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [who],
    }
    return [role, binding]
