"""Who may write a decision: checked by the API server itself, whatever channel it comes through.

A ValidatingAdmissionPolicy needs no webhook that could be down. It is evaluated once for every
SwapProposal of the namespace, and all must agree: those of another name agree to anything, and the
one that is meant proves uid, digest and author. What it lets through is judged again by the gate;
an old cache of the API server can admit too much for a moment, never make it count.
"""

from __future__ import annotations

from typing import Any

from retuned.api.values import API_VERSION, GROUP, VERSION
from retuned_operator.manifests.names import REPLICA_OF, labels

APPROVE = "approve"
"""Custom verb on swapproposals; its holders may approve."""
BREAK_GLASS = "break-glass"
"""Custom verb on swapproposals; its holders may approve without the quorum."""

_OTHER = "params.metadata.name != object.spec.proposalRef.name"
_SAYS_YES = "object.spec.decision in ['Approve', 'BreakGlass']"


def decision_policy(*, allow_service_accounts: bool = False) -> tuple[dict[str, Any], ...]:
    """Return policy and binding for SwapDecisions.

    Parameters
    ----------
    allow_service_accounts
        Whether programs may decide; a gate has to allow it as well.
    """
    validations = [
        _rule(
            "object.spec.user == request.userInfo.username",
            "spec.user is not the user of the request; decisions in another's name are refused",
            reason="Forbidden",
        ),
        _rule(
            "object.spec.groups.all(g, has(request.userInfo.groups)"
            " && g in request.userInfo.groups)",
            "spec.groups names a group that the user is not in",
            reason="Forbidden",
        ),
        _rule(
            f"object.spec.decision != 'Approve' || {_may(APPROVE)}",
            f"approving needs the verb {APPROVE} on this SwapProposal",
            reason="Forbidden",
        ),
        _rule(
            f"object.spec.decision != 'BreakGlass' || {_may(BREAK_GLASS)}",
            f"a BreakGlass decision needs the verb {BREAK_GLASS} on this SwapProposal",
            reason="Forbidden",
        ),
        _rule(
            f"{_OTHER} || params.metadata.uid == object.spec.proposalRef.uid",
            "the SwapProposal of this name has been replaced; review it again",
        ),
        _rule(
            f"{_OTHER} || params.spec.artifact.digest == object.spec.digest",
            "spec.digest is not the artifact of this SwapProposal",
        ),
        _rule(
            f"{_OTHER} || !({_SAYS_YES}) || params.spec.requestedBy.lowerAscii()"
            " != request.userInfo.username.lowerAscii()",
            "the user who asked for a swap cannot approve it",
            reason="Forbidden",
        ),
    ]
    if not allow_service_accounts:
        people = _rule(
            "!request.userInfo.username.startsWith('system:')",
            "programs do not decide; act as yourself",
            reason="Forbidden",
        )
        validations.insert(2, people)
    name = "retuned-swap-decisions"
    policy = _policy(name, "swapdecisions", validations=validations)
    policy["spec"]["paramKind"] = {"apiVersion": API_VERSION, "kind": "SwapProposal"}
    policy["spec"]["auditAnnotations"] = [
        {
            "key": "decision",
            "valueExpression": "object.spec.decision + ' of ' + object.spec.digest + ' for '"
            " + object.spec.proposalRef.name + ' by ' + request.userInfo.username",
        }
    ]
    binding = _binding(name)
    # No proposal at all means that there is nothing to decide on.
    binding["spec"]["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Deny"}
    return policy, binding


def freeze_policy() -> tuple[dict[str, Any], ...]:
    """Return policy and binding for TuningFreezes: they refuse freezes in another's name."""
    name = "retuned-freezes"
    own = _rule(
        "object.spec.user == request.userInfo.username",
        "spec.user is not the user of the request; freezes in another's name are refused",
        reason="Forbidden",
    )
    return _policy(name, "tuningfreezes", validations=[own]), _binding(name)


def replica_policy(account: str, *, namespace: str) -> tuple[dict[str, Any], ...]:
    """Return policy and binding for the pods that the operator makes and deletes itself.

    Its role cannot name them. So the API server lets it make pods that a SwapProposal controls, and
    delete pods that carry the label of canary replicas, and no other pod.

    Parameters
    ----------
    account, namespace
        Service account of the operator.
    """
    name = "retuned-canary-replicas"
    ours = f"has(object.metadata.labels) && '{REPLICA_OF}' in object.metadata.labels"
    owned = (
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o,"
        f" o.apiVersion.startsWith('{GROUP}/') && o.kind == 'SwapProposal' && has(o.controller)"
        " && o.controller)"
    )
    marked = f"has(oldObject.metadata.labels) && '{REPLICA_OF}' in oldObject.metadata.labels"
    validations = [
        _rule(
            f"request.operation != 'CREATE' || ({ours} && {owned})",
            "the operator makes canary replicas of a SwapProposal and no other pod",
            reason="Forbidden",
        ),
        _rule(
            f"request.operation != 'DELETE' || ({marked})",
            "the operator deletes canary replicas and no other pod",
            reason="Forbidden",
        ),
    ]
    policy = _policy(name, "pods", validations=validations)
    rules = policy["spec"]["matchConstraints"]["resourceRules"][0]
    rules |= {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "DELETE"]}
    user = f"system:serviceaccount:{namespace}:{account}"
    policy["spec"]["matchConditions"] = [
        {"name": "operator", "expression": f"request.userInfo.username == '{user}'"}
    ]
    return policy, _binding(name)


def _may(verb: str) -> str:
    return (
        f"authorizer.group('{GROUP}').resource('swapproposals').namespace(request.namespace)"
        f".name(object.spec.proposalRef.name).check('{verb}').allowed()"
    )


def _rule(expression: str, message: str, *, reason: str = "Invalid") -> dict[str, Any]:
    return {"expression": expression, "message": message, "reason": reason}


def _policy(name: str, plural: str, *, validations: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": labels("access")},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [GROUP],
                        "apiVersions": [VERSION],
                        "operations": ["CREATE"],
                        "resources": [plural],
                    }
                ]
            },
            "validations": validations,
        },
    }


def _binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": labels("access")},
        "spec": {"policyName": name, "validationActions": ["Deny", "Audit"]},
    }
