"""The cluster for commands: the caller, the namespace, and the objects as models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from retuned.errors import Refused, UnreadableInput, UsageError
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import (
    DECISIONS,
    POLICIES,
    PROPOSALS,
    SELF_REVIEWS,
    Obj,
    Resource,
)
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.schema import (
    KernelExperiment,
    PolicyObject,
    SwapDecision,
    SwapProposal,
    TuningFreeze,
    TuningTarget,
    read,
)

if TYPE_CHECKING:
    from retuned_operator.kube.watch import Listing

_SHORTEST = 3
_MAX_GROUPS = 64

M = TypeVar(
    "M",
    TuningTarget,
    PolicyObject,
    KernelExperiment,
    SwapProposal,
    SwapDecision,
    TuningFreeze,
)


class Cluster(Protocol):
    """What of the API server is needed; `retuned_operator.kube.client.Api` has it."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Return one object."""
        ...

    def list(self, resource: Resource, *, namespace: str = "") -> Listing:
        """Return all objects of a kind."""
        ...

    def create(self, resource: Resource, body: Mapping[str, Any]) -> Obj:
        """Make an object."""
        ...

    def patch(
        self, resource: Resource, name: str, *, change: Mapping[str, Any], namespace: str = ""
    ) -> Obj:
        """Merge a change into an object."""
        ...

    def delete(self, resource: Resource, name: str, *, namespace: str = "") -> None:
        """Delete an object."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesUser:
    """A person as the API server knows them."""

    user: str
    """Name."""
    groups: tuple[str, ...]
    """Groups, without those that Kubernetes itself gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSession:
    """What a command works with."""

    cluster: Cluster
    """The API server, as the caller."""
    namespace: str
    """Where objects are looked for; empty is everywhere."""
    now: datetime
    """When."""

    def all(self, resource: Resource, model: type[M]) -> tuple[list[M], list[UnreadableInput]]:
        """Return the objects of a kind, and why others cannot be read."""
        namespace = self.namespace if resource.namespaced else ""
        with explained("list", resource, namespace=namespace):
            listed = self.cluster.list(resource, namespace=namespace)
        found, unreadable = [], []
        for body in listed.items:
            try:
                found.append(read(model, body))
            except UnreadableInput as error:
                unreadable.append(error)
        return found, unreadable

    def one(self, resource: Resource, model: type[M], name: str, *, namespace: str) -> M | None:
        """Return one object; None where it is not there.

        Raises
        ------
        UnreadableInput
            If it is there and cannot be read.
        """
        try:
            with explained("get", resource, namespace=namespace):
                return read(model, self.cluster.get(resource, name, namespace=namespace))
        except NotFound:
            return None

    def proposal(self, asked: str) -> SwapProposal:
        """Return the proposal of a name, of ``namespace/name``, or of the beginning of a name.

        Raises
        ------
        UsageError
            If none or several are meant.
        """
        namespace, name = self._place(asked)
        if namespace and name:
            found = self.one(PROPOSALS, SwapProposal, name, namespace=namespace)
            if found is not None:
                return found
        inside = ClusterSession(cluster=self.cluster, namespace=namespace, now=self.now)
        known, _ = inside.all(PROPOSALS, SwapProposal)
        near = [p for p in known if _begins(p.metadata.name, name)]
        where = f" in namespace {namespace}" if namespace else ""
        if not near:
            raise UsageError(
                f"no proposal {name!r:.80}{where}; see `kubectl retuned proposals -A --all`"
            )
        if len(near) > 1:
            names = ", ".join(full_name(each) for each in near[:5])
            raise UsageError(f"{name!r:.80} is the beginning of {len(near)} proposals: {names}")
        return near[0]

    def _place(self, asked: str) -> tuple[str, str]:
        namespace, slash, name = asked.strip().rpartition("/")
        return (namespace, name) if slash else (self.namespace, name)

    def decisions(self, proposal: SwapProposal) -> tuple[list[SwapDecision], list[UnreadableInput]]:
        """Return the decisions on a proposal, oldest first, and those that cannot be read."""
        inside = ClusterSession(
            cluster=self.cluster, namespace=proposal.metadata.namespace, now=self.now
        )
        about = (proposal.metadata.name, proposal.metadata.uid)
        known, unreadable = inside.all(DECISIONS, SwapDecision)
        found = [
            each
            for each in known
            if (each.spec.proposal_ref.name, each.spec.proposal_ref.uid) == about
        ]
        at = sorted(found, key=lambda each: each.metadata.creation_timestamp or self.now)
        return at, unreadable

    def policy(self, proposal: SwapProposal) -> PolicyObject:
        """Return the policy that the operator judged a proposal by.

        Raises
        ------
        Refused
            If there is none, so that an approval would have no effect.
        """
        gate = proposal.status.gate
        if gate is None:
            raise Refused(
                f"the operator has not judged {full_name(proposal)} yet; is it running? "
                "See `kubectl retuned status`"
            )
        namespace, _, name = gate.policy.rpartition("/")
        found = self.one(POLICIES, PolicyObject, name, namespace=namespace) if name else None
        if found is None:
            raise Refused(
                f"no policy covers {full_name(proposal)} ({gate.reason}), so an approval would "
                "have no effect; see `kubectl get ktp` and `kubectl retuned policy check`"
            )
        return found

    def who(self) -> KubernetesUser:
        """Return the caller's user as the API server authenticates it."""
        with explained("create", SELF_REVIEWS):
            answer = self.cluster.create(SELF_REVIEWS, {"metadata": {}})
        status = answer.get("status")
        info = status.get("userInfo") if isinstance(status, Mapping) else None
        user = info.get("username") if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not isinstance(user, str) or not user:
            raise Refused("the API server does not return your user, so no decision can be made")
        groups = info.get("groups") or ()
        own = [str(each) for each in groups if not str(each).startswith("system:")]
        return KubernetesUser(user=user, groups=tuple(own))


def full_name(found: SwapProposal | SwapDecision | KernelExperiment | TuningTarget) -> str:
    """Return namespace and name."""
    return f"{found.metadata.namespace}/{found.metadata.name}"


def groups_for(who: KubernetesUser, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the groups that a word is given for: those that count first, and not too many.

    Examples
    --------
    >>> groups_for(KubernetesUser(user="ada", groups=("a", "sre")), ["group sre"])
    ('sre', 'a')
    """
    ordered = sorted(who.groups, key=lambda each: f"group {each}" not in wanted)
    return tuple(ordered[:_MAX_GROUPS])


def _begins(name: str, typed: str) -> bool:
    """Whether a name is meant: itself, or by its beginning, with or without what all begin with."""
    bare = typed.removeprefix("swp-")
    return name == typed or (
        len(bare) >= _SHORTEST and (name.startswith(typed) or name.startswith(f"swp-{bare}"))
    )
