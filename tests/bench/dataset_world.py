"""Stores with experiments in them, as the daemon leaves them, for tests of data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.standalone.proofs import GATES, MACHINE, interval, proof

from retuned import catalog
from retuned.contract import Solution, SourceFile, TrustClass, Workload, digest_of
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Check, Evidence, EvidenceDocument, Reason, judge
from retuned.store.envelopes import seal
from retuned.store.keys import Ed25519Notary
from retuned.store.sqlite import SqliteStore

AT = datetime(2026, 1, 2, tzinfo=UTC)
NORM = "rmsnorm_h1024"
OTHER = "softmax_n1024"


def written(definition: str, text: str, **changes: object) -> Solution:
    """A variant that a model wrote."""
    values = {
        "name": "written",
        "sources": (SourceFile(path="k.cpp", content=text),),
        "structure": "own",
        "params": {"VEC": 16},
        "trust": TrustClass.GENERATED,
        "author": "a person at example.com",
        "prompt": "sha256:" + "d" * 64,
    }
    return catalog.get(definition).incumbent.model_copy(update=values | changes)


class State:
    """A state folder that is filled by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder)
        self.notary = Ed25519Notary(folder / "keys")

    def experiment(
        self, definition: str, *, rate: float = 30.0, phase: str = "done", seed: int = 0
    ) -> ExperimentPlan:
        axes = dict.fromkeys(catalog.get(definition).definition.variable_axes, 64)
        plan = ExperimentPlan(
            id=digest_of([definition, seed, rate]),
            hypothesis="h",
            definition=definition,
            workloads=(
                Workload(definition=definition, axes=axes, weight=rate),
                Workload(definition=definition, axes=dict.fromkeys(axes, 1), weight=rate * 3),
            ),
            incumbent=catalog.get(definition).incumbent.digest,
            environment=MACHINE.digest,
            budget=Budget(),
        )
        self.store.add("experiment", plan.id, plan.model_dump(mode="json"), phase=phase)
        return plan

    def won(
        self,
        plan: ExperimentPlan,
        solution: Solution,
        speedup: float,
        *,
        claimed: Mapping[str, object] | None = None,
    ) -> str:
        document = proof(
            solution, incumbent=plan.incumbent, plan=plan.id, speedup=interval(speedup), at=AT
        )
        return self.keep(plan, solution, document, claimed=claimed)

    def failed(
        self, plan: ExperimentPlan, solution: Solution, reason: Reason, *, detail: str = "no"
    ) -> str:
        usual = proof(solution, incumbent=plan.incumbent, plan=plan.id, speedup=interval(2), at=AT)
        evidence = Evidence(
            candidate=solution.digest,
            incumbent=plan.incumbent,
            checks=(GATES[0], Check(gate="G1", reason=reason, detail=detail)),
        )
        update = {"evidence": evidence, "verdict": judge(evidence)}
        return self.keep(plan, solution, usual.model_copy(update=update))

    def keep(
        self,
        plan: ExperimentPlan,
        solution: Solution,
        document: EvidenceDocument,
        *,
        claimed: Mapping[str, object] | None = None,
    ) -> str:
        """Keep signed evidence and the finding that names it, which may claim something else."""
        digest = self.store.put_blob(seal(document.model_dump_json().encode(), notary=self.notary))
        verdict = document.verdict.model_copy(update={"evidence": digest})
        self.finding(plan, solution, verdict.model_dump(mode="json") | dict(claimed or {}))
        return digest

    def finding(
        self, plan: ExperimentPlan, solution: Solution, verdict: Mapping[str, object]
    ) -> None:
        body = {
            "experiment": plan.id,
            "solution": solution.model_dump(mode="json"),
            "verdict": verdict,
            "seconds": 1.0,
        }
        self.store.add("finding", f"{plan.id}/{solution.digest}", body, phase="final")

    def turns(self, plan: ExperimentPlan, *asked: tuple[str, Sequence[str]]) -> None:
        turns = [
            {
                "number": number,
                "generator": generator,
                "because": "a test",
                "outcome": "tried",
                "proposed": list(proposed),
            }
            for number, (generator, proposed) in enumerate(asked, start=1)
        ]
        self.store.add("turns", plan.id, {"turns": turns}, phase="final")


def points(definition: str, count: int) -> list[Solution]:
    """Variants of one structure of the catalog that differ in parameters only."""
    entry = catalog.get(definition)
    space = next(s for s in entry.spaces if s.name == entry.incumbent.structure)
    found = []
    for threads in space.params["THREADS"]:
        for vec in space.params["VEC"]:
            point = dict(entry.incumbent.params) | {"THREADS": threads, "VEC": vec}
            if space.constraints(point, entry.definition):
                found.append(entry.solution(space.name, point))
    return [each for each in found if each.digest != entry.incumbent.digest][:count]
