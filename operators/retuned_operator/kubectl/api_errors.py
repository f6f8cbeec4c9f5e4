"""What the API server's refusals mean to a person, and what that person can do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retuned.errors import MissingDependency, Refused
from retuned_operator.kube.errors import (
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from retuned_operator.kube.resources import (
    DECISIONS,
    EXPERIMENTS,
    FREEZES,
    POLICIES,
    PROPOSALS,
    TARGETS,
    Resource,
)

_DENIED = "denied request: "
_WRITERS = {
    DECISIONS.plural: "retuned-approver (or retuned-break-glass, for --break-glass)",
    FREEZES.plural: "retuned-admin",
    EXPERIMENTS.plural: "retuned-admin",
    TARGETS.plural: "retuned-admin",
}
_OURS = frozenset(r.plural for r in (TARGETS, POLICIES, EXPERIMENTS, PROPOSALS, DECISIONS, FREEZES))


@contextmanager
def explained(verb: str, resource: Resource, *, namespace: str = "") -> Iterator[None]:
    """Turn what the API server refuses into what a person can act on.

    Parameters
    ----------
    verb
        What is tried: ``list``, ``get``, ``create``, ``patch``, ``delete``.
    resource
        On what.
    namespace
        Where; empty is everywhere.

    Raises
    ------
    Refused
        If the person may not, or the object is not allowed.
    MissingDependency
        If no API server answers, or it does not know our kinds.
    NotFound
        If one object is not there.
    TemporaryError
        If it cannot answer now.
    """
    try:
        yield
    except Unavailable as error:
        if error.status:
            raise
        raise MissingDependency(
            f"the cluster does not answer ({error}); is the kubeconfig's context the right one?"
        ) from error
    except Unauthorized as error:
        raise Refused(
            "the cluster does not know who you are: log in again, or choose another --context"
        ) from error
    except (Forbidden, Invalid) as error:
        raise Refused(_why(error, verb, resource, namespace)) from error
    except NotFound as error:
        nothing_else = verb == "list" or (verb == "create" and not namespace)
        if resource.plural in _OURS and (nothing_else or "requested resource" in str(error)):
            raise MissingDependency(
                f"the cluster has no {resource.plural}.{resource.group}: install the Helm chart, "
                "or choose another --context"
            ) from error
        raise
    except ApiError as error:
        raise Refused(str(error)) from error


def _why(error: ApiError, verb: str, resource: Resource, namespace: str) -> str:
    """Name the rule that refuses, or the missing role."""
    text = str(error)
    if _DENIED in text:
        rule = text.split(_DENIED, 1)[1].rsplit(" [", 1)[0]
        return f"the cluster's policy refuses: {rule}{_role_of(rule)}"
    if isinstance(error, Invalid):
        return f"the API server refuses it as invalid: {text}"
    where = f" in namespace {namespace}" if namespace else ""
    everywhere = "" if namespace or verb != "list" else "; -n NAMESPACE asks for one namespace only"
    role = "retuned-viewer" if verb in ("list", "get") else _WRITERS.get(resource.plural, "")
    asks = f"; ask for the ClusterRole {role}{where}" if role else ""
    return f"you may not {verb} {resource.plural}{where}{asks}{everywhere}"


def _role_of(rule: str) -> str:
    """Return the role that gives the verb which a rule asks for."""
    for verb in ("approve", "break-glass"):
        if f"the verb {verb} " in rule:
            role = "retuned-approver" if verb == "approve" else "retuned-break-glass"
            return f"; the ClusterRole {role} gives it"
    return ""
