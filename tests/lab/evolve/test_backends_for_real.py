"""The real packages, from the index, carry a real kernel past its start in the real lab."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.lab.evolve.kernels_by_stage import naive, stage_edit
from tests.lab.evolve.scripted_endpoint import Received, chat, endpoint
from tests.lab.evolve.test_evolution_lab import QUICK, config, plan

from retuned.contract import TrustClass
from retuned.experiment.__main__ import open_lab
from retuned.lab.llm.setup import BACKENDS, transcript_path
from retuned.stages.experiment import TurnOutcome
from retuned.stages.verdict import Status

pytestmark = [pytest.mark.index, pytest.mark.slow, pytest.mark.timeout(1_800)]
KEY = "k3y-of-the-endpoint"


def good_model(received: Received) -> str:
    """Lead the program that is to be edited, the last in the prompt, past the best that is shown.

    The answer is an edit in the form that the packages ask for.
    """
    shown = [int(stage) for stage in re.findall(r"// stage (\d)", received.user)]
    if not shown:
        return "Which program?"
    mark = f"{len(received.user)} {len(shown)}"
    return stage_edit(shown[-1], min(max(shown) + 1, 2), mark=mark)


@pytest.mark.parametrize("backend", ["openevolve", "skydiscover"])
def test_a_real_package_carries_a_naive_kernel_past_itself(
    backend: str, backends_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    with endpoint(lambda received: chat(good_model(received), usage=(2000, 300))) as server:
        settings = config(server, tmp_path, islands=1, generations=6).model_copy(
            update={
                "backend": backend,
                "backend_python": str(backends_python),
                "key_variable": "MODEL_KEY",
            }
        )
        lab = open_lab(tmp_path / "lab", solutions=[naive()], lab=QUICK, evolve=settings)
        findings = list(lab.run(plan(max_candidates=3), known={}))
    turns = lab.turns("evolution")
    assert [turn.outcome for turn in turns] == [TurnOutcome.TRIED] * 3, turns
    (winner,) = [found for found in findings if found.verdict.status is Status.PROMOTE]
    assert winner.verdict.speedup is not None
    assert winner.verdict.speedup.lower > 1.5
    assert winner.solution.trust is TrustClass.GENERATED
    assert winner.solution.author == f"{backend} model=scripted"
    stages = {f.solution.sources[0].content.partition("// stage ")[2][0] for f in findings}
    assert stages == {"1", "2"}  # it was not found in one leap
    # the lab's words reached the model, by way of the package
    assert any("Right, and" in received.user for received in server.received)
    assert all(KEY not in json.dumps(received.body) for received in server.received)
    assert {r.headers["authorization"] for r in server.received} == {f"Bearer {KEY}"}
    said = transcript_path(settings, "evolution").read_text("utf-8")
    answered = [json.loads(line) for line in said.splitlines() if '"answered"' in line]
    assert winner.solution.prompt in {line["request"] for line in answered}
    assert KEY not in said
    assert list((tmp_path / "transcripts" / BACKENDS).iterdir()) == []  # nothing is left behind
