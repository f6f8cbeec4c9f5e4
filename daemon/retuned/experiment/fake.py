"""Fake bench with scripted findings, for tests and dry runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retuned.contract import Digest, Solution
from retuned.errors import HarnessError, TemporaryError
from retuned.ports import Finding
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.store.artifact_folder import MANIFEST, manifest_of


@dataclass(slots=True)
class FakeBench:
    """Returns scripted findings in order, without measurements."""

    script: Mapping[str, Sequence[Finding]]
    root: Path
    failure: HarnessError | None = None
    runs: list[ExperimentPlan] = field(default_factory=list)
    asked: Sequence[Turn] = ()
    stopped: bool = False

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        self.runs.append(plan)
        for number, finding in enumerate(self.script.get(plan.definition, ())):
            if self.stopped:
                raise TemporaryError("the fake lab was stopped", delay_s=0.0)
            if number and self.failure is not None:
                raise self.failure
            if finding.solution.digest not in known:
                yield finding

    def build(self, solution: Solution) -> Path:
        target = self.root / "artifacts" / solution.digest.removeprefix("sha256:")
        target.mkdir(parents=True, exist_ok=True)
        nothing = hashlib.sha256(b"").hexdigest()
        body = manifest_of(solution, {"name": solution.definition}, nothing)
        (target / "kernel.so").write_bytes(b"")
        (target / MANIFEST).write_text(json.dumps(body), encoding="utf-8")
        return target

    def evidence(self, digest: Digest) -> bytes | None:
        return None

    def turns(self, plan: str) -> Sequence[Turn]:
        del plan
        return self.asked

    def stop(self) -> None:
        self.stopped = True
