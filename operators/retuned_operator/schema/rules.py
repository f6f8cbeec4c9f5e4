"""CEL rules of the custom resources: what must not change, and what belongs together.

The API server checks the rules on every write of every user. Each rule is about bounded data and
cheap. The models check what rules cannot (time zones, reachable quorums), and a policy that they
refuse is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retuned.api.experiment import KernelExperimentSpec
from retuned.api.proposal import SwapProposalSpec
from retuned.api.values import ApiModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    expression: str
    """CEL; ``self`` is the value, ``oldSelf`` what it was: then it is checked on changes only."""
    message: str
    """Error text of the API server."""


def _fixed(what: str) -> Rule:
    return Rule(expression="self == oldSelf", message=f"{what} never changes; make a new object")


def _all_but(model: type[ApiModel], *mutable: str) -> tuple[Rule, ...]:
    """Return rules by which every other field of a spec stays as it was, be it there or not."""
    aliases = {
        name: info.serialization_alias or info.alias or name
        for name, info in model.model_fields.items()
    }
    unknown = set(mutable) - set(aliases.values())
    assert not unknown, f"{model.__name__} has no {unknown}"
    return tuple(
        Rule(
            expression=f"has(self.{alias}) == has(oldSelf.{alias})"
            f" && (!has(self.{alias}) || self.{alias} == oldSelf.{alias})",
            message=f"{alias} never changes; make a new object",
        )
        for alias in aliases.values()
        if alias not in mutable
    )


_ABORT_STAYS = (
    Rule(
        expression="!oldSelf.requested || self.requested",
        message="an abort cannot be withdrawn",
    ),
)
_ABORT_IS_THERE = Rule(
    expression="!has(oldSelf.abort) || has(self.abort)", message="an abort cannot be withdrawn"
)
_INTERVAL = (
    Rule(
        expression="self.lower <= self.point && self.point <= self.upper",
        message="bounds are out of order",
    ),
)
_DIGESTED = "self.decision in ['Reject', 'Abort']"

RULES: Mapping[str, Mapping[str, tuple[Rule, ...]]] = {
    "TuningTarget": {
        "spec.gpu": (
            Rule(
                expression="self.vendor == oldSelf.vendor && self.model == oldSelf.model",
                message="another accelerator needs another target: its results do not apply here",
            ),
        ),
    },
    "KernelTuningPolicy": {
        "spec.breakGlass": (
            Rule(
                expression="!self.enabled || has(self.group)",
                message="an enabled breakGlass names a group",
            ),
        ),
        "spec.gates": (
            Rule(
                expression="self.all(a, self.exists_one(b, b.name == a.name))",
                message="two gates have the same name",
            ),
        ),
        "spec.gates[].approvals.from[]": (
            Rule(
                expression="has(self.group) != has(self.user)",
                message="name either a group or a user",
            ),
        ),
        "spec.rollout": (
            Rule(
                expression="self.waves[self.waves.size() - 1] == '100%'",
                message="the last wave is 100%",
            ),
        ),
    },
    "KernelExperiment": {
        "spec": (*_all_but(KernelExperimentSpec, "suspend", "abort"), _ABORT_IS_THERE),
        "spec.abort": _ABORT_STAYS,
    },
    "SwapProposal": {
        "spec": (
            *_all_but(SwapProposalSpec, "abort"),
            _ABORT_IS_THERE,
            Rule(
                expression="self.artifact.digest != self.baselineDigest",
                message="the artifact is what runs already",
            ),
        ),
        "spec.speedup": _INTERVAL,
        "spec.abort": _ABORT_STAYS,
    },
    "SwapDecision": {
        "spec": (
            _fixed("a decision"),
            Rule(
                expression=f"{_DIGESTED} || (has(self.policyDigest) && self.policyGeneration > 0)",
                message="an approval names the generation and the digest of the policy it is under",
            ),
            Rule(
                expression="self.decision != 'BreakGlass' || self.comment.matches('[^ \\t\\n]')",
                message="a BreakGlass decision needs a comment",
            ),
        ),
    },
    "TuningFreeze": {
        "spec": (
            Rule(
                expression="self.user == oldSelf.user",
                message="a freeze stays its author's; make a new one",
            ),
        ),
    },
}
"""By kind and place."""
