"""The lab leaves a document on every candidate, frozen before it was tried."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.expect import raises_naming
from tests.lab.conftest import LINEAR, SOURCE

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile, TrustClass, Workload
from retuned.errors import HarnessError
from retuned.experiment.local import LocalLab
from retuned.lab.evidence_check import wrong_with_raw
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.harness.isolation import isolation
from retuned.lab.journal import Notebook, notebook_name
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.lab.resources import LabSettings
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import (
    EvidenceDocument,
    Reason,
    Status,
    contradiction_in,
    freeze_of,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
ENTRY = catalog.get(LINEAR)
CHAIN = "for (int64_t k = 0; k < K; ++k) sum += x[m * K + k] * (float)w[n * K + k];"
SLOW = Solution(
    name="slow",
    definition=LINEAR,
    language=Language.CPU_CPP,
    entry="kernel",
    sources=(
        SourceFile(
            path="kernel.cpp",
            content=SOURCE.replace(
                CHAIN,
                "float back = 0, third = 0; "
                + CHAIN.replace("sum", "third")
                + " for (int64_t k = K; k-- > 0;) back += x[m * K + k] * (float)w[n * K + k]; "
                + CHAIN
                + " sum = (sum + back + third) / 3;",
            ),
        ),
    ),
    structure="plain",
)
"""Three chains that must be added one after the other: whatever is quick wins on any machine."""
PLAN = ExperimentPlan(
    id="sha256:" + "1" * 64,
    hypothesis="h",
    definition=LINEAR,
    workloads=(Workload(definition=LINEAR, axes={"M": 48}),),
    incumbent=SLOW.digest,
    generators=("given",),
    budget=Budget(max_candidates=8, max_seconds=240.0, finalists=1),
    environment=cpu_environment().digest,
)
BROKEN = ENTRY.incumbent.model_copy(
    update={
        "name": "broken",
        "sources": (SourceFile(path="kernel.cpp", content="this is no C++ {"),),
        "trust": TrustClass.GENERATED,
        "author": "a model",
        "parents": (ENTRY.incumbent.digest,),
        "prompt": "sha256:" + "7" * 64,
    }
)


def run(root: Path, *solutions: Solution) -> list[Finding]:
    lab = LocalLab(
        root,
        subjects=catalog.get,
        solutions={SLOW.digest: SLOW}.get,
        generators={"given": lambda _plan: GivenGenerator(solutions)},
        lab=LabSettings(search_s=0.2, final_s=0.6),
    )
    return list(lab.run(PLAN, known={}))


def document(root: Path, finding: Finding) -> EvidenceDocument:
    assert finding.verdict.evidence is not None
    name = finding.verdict.evidence.removeprefix("sha256:")
    data = (root / "evidence" / f"{name}.json").read_bytes()
    return EvidenceDocument.model_validate_json(data)


def won(root: Path, found: list[Finding]) -> EvidenceDocument:
    (finding,) = [each for each in found if each.verdict.status is Status.PROMOTE]
    return document(root, finding)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("writing")


@pytest.fixture(scope="module")
def found(root: Path) -> list[Finding]:
    return run(root, ENTRY.incumbent, BROKEN)


def test_every_candidate_has_a_document_that_agrees_with_its_verdict(
    root: Path, found: list[Finding]
) -> None:
    assert len(found) == 2
    for finding in found:
        written = document(root, finding)
        assert written.candidate == finding.solution.digest
        assert written.incumbent == PLAN.incumbent
        assert written.plan == PLAN.id
        assert written.environment == cpu_environment()
        assert written.verdict == finding.verdict.model_copy(update={"evidence": None})
        assert contradiction_in(written) is None


def test_a_rejected_candidate_s_document_says_which_gate_why_and_by_whom_it_was_made(
    root: Path, found: list[Finding]
) -> None:
    (finding,) = [each for each in found if each.solution.digest == BROKEN.digest]
    written = document(root, finding)
    assert written.verdict.status is Status.REJECT
    failed = [check for check in written.evidence.checks if check.reason is not None]
    assert len(failed) == 1
    assert failed[0].gate in {"G1", "G2"}
    assert failed[0].detail
    freeze = written.freeze
    assert (freeze.trust, freeze.author) == (TrustClass.GENERATED, "a model")
    assert (freeze.parents, freeze.prompt) == (BROKEN.parents, BROKEN.prompt)


def test_a_finalist_s_document_holds_raw_numbers_and_two_secrets_by_their_digests(
    root: Path, found: list[Finding]
) -> None:
    each = won(root, found)
    assert each.final is not None
    assert each.evidence.timing is not None
    (samples,) = each.final.candidate
    assert len(samples.block) == len(samples.incumbent_us) == each.evidence.timing.pairs
    assert len(set(samples.block)) == each.evidence.timing.blocks >= 10
    assert each.final.clone
    assert [seed.after_freeze for seed in each.seeds] == [False, True]
    assert len({seed.commitment for seed in each.seeds}) == 2


def test_every_bound_follows_from_the_raw_pairs_and_an_altered_pair_is_found(
    root: Path, found: list[Finding]
) -> None:
    written = won(root, found)
    assert wrong_with_raw(written) is None
    assert written.final is not None
    (samples,) = written.final.candidate
    faster = tuple(0.9 * each for each in samples.candidate_us)
    altered = samples.model_copy(update={"candidate_us": faster})
    final = written.final.model_copy(update={"candidate": (altered,)})
    assert wrong_with_raw(written.model_copy(update={"final": final})) is not None


def test_candidates_are_frozen_before_they_are_tried_and_before_the_hold_out_is_drawn(
    root: Path, found: list[Finding]
) -> None:
    for finding in found:
        written = document(root, finding)
        assert written.evidence.checks[0].gate == "G0"
        assert written.freeze.frozen_at <= written.written_at
        assert written.freeze.candidate == finding.solution.digest
        assert written.tried >= 1


def test_the_isolation_says_what_this_machine_has(root: Path, found: list[Finding]) -> None:
    written = document(root, found[0])
    stood, walls = written.isolation, isolation()
    assert stood.memory_check == "red zones and fences"
    assert stood.missing == walls.missing
    assert stood.system_calls_filtered is walls.system_calls
    assert (stood.network_cut, stood.files_denied) == (walls.network, walls.files > 0)


def test_a_freeze_is_written_once_and_stands(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "n")
    first = freeze_of(BROKEN, plan=PLAN.id, frozen_at=NOW)
    assert book.freeze(first) == first
    again = first.model_copy(update={"author": "somebody else", "frozen_at": datetime.now(UTC)})
    assert book.freeze(again) == first
    (path,) = (tmp_path / "n").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert book.frozen() == 1
    assert list(book.read()) == [], "a freeze is no note"


def test_a_freeze_that_cannot_be_read_stops_the_experiment(tmp_path: Path) -> None:
    book = Notebook(tmp_path / "n")
    first = freeze_of(BROKEN, plan=PLAN.id, frozen_at=NOW)
    book.freeze(first)
    (path,) = (tmp_path / "n").iterdir()
    path.chmod(0o600)
    path.write_text("{")
    with raises_naming(HarnessError, str(path), "Freeze"):
        book.freeze(first)


def test_a_candidate_that_comes_again_with_more_trust_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "notes" / notebook_name(PLAN.id)
    Notebook(folder).freeze(freeze_of(BROKEN, plan=PLAN.id, frozen_at=NOW))
    trusted = BROKEN.model_copy(update={"trust": TrustClass.PARAMETERS})
    (finding,) = run(tmp_path, trusted)
    assert (finding.verdict.reason, finding.verdict.gate) == (Reason.CONTRACT, "G0")
    assert document(tmp_path, finding).freeze.trust is TrustClass.GENERATED


def test_documents_are_plain_json_that_other_tools_read(root: Path, found: list[Finding]) -> None:
    for path in (root / "evidence").glob("*.json"):
        body = json.loads(path.read_text())
        assert body["version"] == 1
        assert body["definition"] == LINEAR
