"""Finished experiments on a tunable, as their pods leave them: honest, or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.operators import examples
from tests.standalone.proofs import MACHINE, interval, proof

from retuned.api.experiment import JobRef
from retuned.clock import FakeClock
from retuned.contract import Digest, Environment, Solution, Workload
from retuned.experiment.messages import done_line, finding_line
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan, plan
from retuned.stages.hypothesis import TABLE_STRUCTURE, Hypothesis
from retuned.stages.proposal import variant_of
from retuned.stages.verdict import JudgeSettings
from retuned.standalone.tunables.experiments import BUCKETS
from retuned_operator.controllers.ports import LaunchedSizes, LaunchedTunable, NoTunables
from retuned_operator.schema import JobRole, KernelExperiment, PolicyRef, experiment_spec, read
from retuned_operator.store.results import FINDINGS

NAME = "tunable:attention:kernel:00000000"
SOURCE = "sha256:" + "5" * 64
AXES = {"rows": 64}
RULE: dict[str, Any] = {"when": {"rows": [33, 64]}, "config": {"BLOCK_M": 32}}
LAUNCHED = LaunchedTunable(
    definition=NAME,
    family="attention",
    module="vllm.attention",
    source=SOURCE,
    ways={"next-call": "on", "recapture": "on"},
    asked=(LaunchedSizes(axes=AXES, captured=2, sizes=(48, 64)),),
)


@dataclass
class Tunables(NoTunables):
    """What servers launch, as a test says."""

    found: LaunchedTunable | None = LAUNCHED
    asked: list[tuple[str, str]] = field(default_factory=list)

    def launched(self, target: str, definition: str) -> LaunchedTunable | None:
        self.asked.append((target, definition))
        known = self.found is not None and self.found.definition == definition
        return self.found if known else None


def won(*rules: Mapping[str, Any], name: str = NAME) -> Solution:
    return variant_of(name, rules or [RULE], author="search")


def belief_of(
    name: str = NAME, axes: Sequence[Mapping[str, int]] = (AXES,), *, id: Digest = examples.BELIEF
) -> Hypothesis:
    return Hypothesis(
        id=id,
        definition=name,
        workloads=tuple(Workload(definition=name, axes=dict(a), weight=100.0) for a in axes),
        share=0.4,
        expected_gain_ratio=2.0,
        expected_saving=0.2,
        because="a test",
        structures=(TABLE_STRUCTURE,),
    )


def plan_of(
    belief: Hypothesis | None = None,
    *,
    incumbent: Digest | None = None,
    environment: Digest = examples.WORLD,
) -> ExperimentPlan:
    return plan(
        belief or belief_of(),
        incumbent=incumbent or LAUNCHED.incumbent.digest,
        environment=environment,
        buckets=BUCKETS,
    )


def experiment_of(asked: ExperimentPlan, name: str = "exp-1") -> KernelExperiment:
    """Return an experiment whose Jobs have all ended."""
    spec = experiment_spec(
        asked,
        target="chat",
        gpu_model="MI300X",
        policy=PolicyRef(name="prod", generation=1, digest=examples.POLICY),
    )
    resource = read(KernelExperiment, examples.an_object("KernelExperiment", name, spec))
    status = resource.status.model_copy(update={"job_refs": refs_of(name)})
    return resource.model_copy(update={"status": status})


def refs_of(name: str) -> tuple[JobRef, ...]:
    """Return its Jobs: a search beside the one that verifies does no harm."""
    return tuple(
        JobRef(name=f"{name}-{role}", uid=f"uid-{role}", role=role, result=f"pod-{role}")
        for role in (JobRole.SEARCH, JobRole.VERIFY)
    )


def leave(
    root: Path,
    uid: str,
    asked: ExperimentPlan,
    found: Solution,
    *,
    name: str = "exp-1",
    environment: Environment = MACHINE,
    **changes: Any,
) -> Finding:
    """Write what the pods of an experiment tell; return the finding."""
    document = proof(
        found,
        incumbent=asked.incumbent,
        plan=asked.id,
        speedup=interval(2.0),
        at=FakeClock().now(),
        environment=environment,
        workloads=asked.workloads,
        settings=JudgeSettings(buckets=asked.buckets),
        definition=asked.definition,
    ).model_copy(update=changes)
    data = document.model_dump_json().encode()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    verdict = document.verdict.model_copy(update={"evidence": digest})
    finding = Finding(solution=found, verdict=verdict, seconds=1.0)
    for ref in refs_of(name):
        folder = root / uid / ref.name / str(ref.result)
        (folder / "evidence").mkdir(parents=True, exist_ok=True)
        (folder / "evidence" / f"{digest.removeprefix('sha256:')}.json").write_bytes(data)
        lines = (finding_line(finding), done_line())
        (folder / FINDINGS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return finding


def with_launched(**changes: Any) -> LaunchedTunable:
    return replace(LAUNCHED, **changes)
