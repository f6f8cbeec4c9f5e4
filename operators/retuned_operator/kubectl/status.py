"""``kubectl retuned status``: targets, active variants, policies and freezes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retuned.errors import UnreadableInput
from retuned.stages.gate import TuningFreeze as Sign
from retuned.stages.proposal import TUNABLE
from retuned.text import ago, print_table, safe, say, short_id, stdout
from retuned_operator.kube.resources import EXPERIMENTS, POLICIES, PROPOSALS, TARGETS
from retuned_operator.kubectl.cluster_session import ClusterSession, full_name
from retuned_operator.kubectl.connection import open_desk
from retuned_operator.kubectl.freezes import seen as seen_freezes
from retuned_operator.kubectl.options import (
    ContextOption,
    EverywhereOption,
    FormOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    print_answer,
)
from retuned_operator.kubectl.texts import print_freezes
from retuned_operator.schema import (
    Condition,
    ConditionStatus,
    KernelExperiment,
    PolicyObject,
    SwapProposal,
    TuningTarget,
    write,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterObjects:
    """What is in the cluster."""

    targets: Sequence[TuningTarget]
    policies: Sequence[PolicyObject]
    proposals: Sequence[SwapProposal]
    experiments: Sequence[KernelExperiment]
    freezes: Sequence[Sign]
    unreadable: Sequence[UnreadableInput]


def status(
    namespace: NamespaceOption = "",
    all_namespaces: EverywhereOption = False,
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Show targets with what runs in them, policies, open proposals, experiments and freezes."""
    desk = open_desk(
        namespace=namespace, everywhere=all_namespaces, context=context, kubeconfig=kubeconfig
    )
    seen = _look(desk)
    for error in seen.unreadable:
        say(f"kubectl retuned: cannot be read: {error}")
    print_answer(
        output,
        _body(seen),
        names=[f"tuningtarget.retuned.dev/{each.metadata.name}" for each in seen.targets],
        text=lambda: _print(seen, desk, wide=output is OutputFormat.WIDE),
    )


def _look(desk: ClusterSession) -> _ClusterObjects:
    targets, bad_targets = desk.all(TARGETS, TuningTarget)
    policies, bad_policies = desk.all(POLICIES, PolicyObject)
    proposals, bad_proposals = desk.all(PROPOSALS, SwapProposal)
    experiments, bad_experiments = desk.all(EXPERIMENTS, KernelExperiment)
    return _ClusterObjects(
        targets=targets,
        policies=policies,
        proposals=proposals,
        experiments=experiments,
        freezes=seen_freezes(desk),
        unreadable=(*bad_targets, *bad_policies, *bad_proposals, *bad_experiments),
    )


def _body(seen: _ClusterObjects) -> dict[str, Any]:
    return {
        "targets": [
            {
                "name": each.metadata.name,
                "namespace": each.metadata.namespace,
                "mode": each.spec.mode.value,
                "gpu_model": each.spec.gpu.model,
                "ready": _ready(each.status.conditions),
                "status": write(each)["status"],
            }
            for each in seen.targets
        ],
        "policies": [
            {
                "name": each.metadata.name,
                "namespace": each.metadata.namespace,
                "mode": each.spec.mode.value,
                "ready": _ready(each.status.conditions),
                "status": write(each)["status"],
            }
            for each in seen.policies
        ],
        "proposals": _phases(seen.proposals),
        "experiments": _phases(seen.experiments),
        "freezes": [each.model_dump(mode="json") for each in seen.freezes],
        "unreadable": [str(each) for each in seen.unreadable],
    }


def _phases(found: Sequence[SwapProposal] | Sequence[KernelExperiment]) -> dict[str, int]:
    return dict(sorted(Counter(each.status.phase.value for each in found).items()))


def _print(seen: _ClusterObjects, desk: ClusterSession, *, wide: bool) -> None:
    print_freezes(seen.freezes)
    if not seen.targets:
        where = f" in namespace {desk.namespace}" if desk.namespace else ""
        stdout().print(f"No targets{where}; a TuningTarget names the servers to look after.")
    else:
        _print_targets(seen.targets, desk, wide=wide)
        _print_tunables(seen.targets)
        _print_lessons(seen.targets)
        _print_own_overhead(seen.targets)
    for target in seen.targets:
        condition = _condition(target.status.conditions)
        if condition is None or condition.status is not ConditionStatus.TRUE:
            why = condition.message if condition else "the operator has not reconciled it yet"
            say(f"kubectl retuned: target {full_name(target)} is not ready: {why}")
    for each in seen.policies:
        condition = _condition(each.status.conditions)
        if condition is None or condition.status is not ConditionStatus.TRUE:
            why = condition.message if condition else "the operator has not reconciled it yet"
            name = f"{each.metadata.namespace}/{each.metadata.name}"
            say(f"kubectl retuned: policy {name} is not in use: {why}")
    for noun, found in (("proposals", seen.proposals), ("experiments", seen.experiments)):
        counts = ", ".join(f"{n} {phase}" for phase, n in _phases(found).items())
        stdout().print(f"{noun}: {counts or 'none'}", soft_wrap=True)


def _print_targets(targets: Sequence[TuningTarget], desk: ClusterSession, *, wide: bool) -> None:
    header = ("target", "mode", "gpu", "pods", "reporting", "kernels", "last sample")
    print_table(
        (*header, *(("in force",) if wide else ("swapped",))),
        [
            (
                full_name(each),
                each.spec.mode.value,
                each.spec.gpu.model,
                str(each.status.pods),
                str(each.status.reporting_pods),
                str(each.status.sampled_kernels),
                ago(each.status.last_sample, now=desk.now) if each.status.last_sample else "never",
                ", ".join(
                    f"{entry.kernel}={short_id(entry.digest)}" if wide else entry.kernel
                    for entry in each.status.active_kernels
                )
                or "nothing",
            )
            for each in targets
        ],
    )


def _print_tunables(targets: Sequence[TuningTarget]) -> None:
    """Print the tunables, and why the operator made no experiment."""
    rows = [
        (
            full_name(target),
            each.name.removeprefix(TUNABLE),
            f"{each.reason}: {each.detail}" if each.reason else "an experiment was asked for",
        )
        for target in targets
        for each in target.status.tunables
    ]
    if rows:
        print_table(("target", "tunable", "why no experiment"), rows)


def _print_lessons(targets: Sequence[TuningTarget]) -> None:
    """Print the lessons of live proofs in force."""
    for target in targets:
        for each in target.status.lessons:
            kernel = safe(each.kernel, limit=128)
            stdout().print(
                f"{full_name(target)}: {kernel} ({each.guard}) is not proposed again "
                f"(live-lesson): {safe(each.sentence, limit=1000)}. `kubectl retuned rearm "
                f"{kernel} --lessons --reason ...` lifts it.",
                soft_wrap=True,
            )


def _print_own_overhead(targets: Sequence[TuningTarget]) -> None:
    """Print what Retuned itself costs the servers of each environment."""
    for target in targets:
        for each in target.status.own_overhead:
            if each.sentence:
                pod = f" ({each.name})" if each.reported is not None else ""
                line = safe(f"{full_name(target)}{pod}: {each.sentence}.", limit=2000)
                stdout().print(line, soft_wrap=True)


def _condition(conditions: Sequence[Condition]) -> Condition | None:
    return next((each for each in conditions if each.type == "Ready"), None)


def _ready(conditions: Sequence[Condition]) -> bool:
    condition = _condition(conditions)
    return condition is not None and condition.status is ConditionStatus.TRUE
