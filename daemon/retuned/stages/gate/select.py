"""The selection of the policy that decides about a proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from retuned.contract import Digest
from retuned.stages.gate.policy import KernelTuningPolicy
from retuned.stages.gate.records import GateReason
from retuned.stages.proposal import Proposal

GPU_MODEL_LABEL = "retuned.dev/gpu-model"
"""Label of a target that `gpuModels` is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """The policy that decides, or why none does."""

    policy: KernelTuningPolicy | None
    """None means that nothing is swapped."""
    reason: GateReason | None = None
    """``no-policy`` or ``policy-tie``; None if a policy was selected."""
    matching: tuple[str, ...] = ()
    """Names of all that match, by falling priority."""

    @property
    def digest(self) -> Digest | None:
        """Digest of the policy that decides; approvals name it."""
        return self.policy.digest if self.policy else None


def select_policy(
    policies: Sequence[KernelTuningPolicy], proposal: Proposal, *, labels: Mapping[str, str]
) -> PolicyChoice:
    """Select the policy that decides about a proposal, see `policy_for`."""
    return policy_for(policies, proposal.definition, labels=labels)


def policy_for(
    policies: Sequence[KernelTuningPolicy], kernel: str, *, labels: Mapping[str, str]
) -> PolicyChoice:
    """Select the matching policy of highest priority.

    A tie at the top and a missing match both wait: neither is a permission.

    Parameters
    ----------
    labels
        Labels of the target; its accelerator under `GPU_MODEL_LABEL`.
    """
    matching = sorted(
        (p for p in policies if _matches(p, kernel, labels)),
        key=lambda p: (-p.spec.priority, p.full_name),
    )
    names = tuple(p.full_name for p in matching)
    if not matching:
        return PolicyChoice(policy=None, reason=GateReason.NO_POLICY)
    top = [p for p in matching if p.spec.priority == matching[0].spec.priority]
    if len(top) > 1:
        return PolicyChoice(policy=None, reason=GateReason.POLICY_TIE, matching=names)
    return PolicyChoice(policy=matching[0], matching=names)


def selects_server(policy: KernelTuningPolicy, labels: Mapping[str, str]) -> bool:
    """Whether a policy applies to servers with these labels, for some kernel."""
    spec = policy.spec
    labelled = all(labels.get(key) == value for key, value in spec.selector.match_labels.items())
    return labelled and (not spec.gpu_models or labels.get(GPU_MODEL_LABEL) in spec.gpu_models)


def _matches(policy: KernelTuningPolicy, kernel: str, labels: Mapping[str, str]) -> bool:
    spec = policy.spec
    return (
        selects_server(policy, labels)
        and any(fnmatchcase(kernel, glob) for glob in spec.kernels.include)
        and not any(fnmatchcase(kernel, glob) for glob in spec.kernels.exclude)
    )
