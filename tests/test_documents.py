"""What the documents point at is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from tests.catalog.launching import launched
from typer.testing import CliRunner

from retuned import catalog
from retuned.cli.validate import read_candidate, validate
from retuned.contract import Language
from retuned.errors import (
    HarnessError,
    MissingDependency,
    RetunedError,
    UnreadableInput,
    UsageError,
)
from retuned.lab.languages import gpu_cpp_contract
from retuned.lab.languages.triton_contract import check_contract
from retuned.lab.subject import make_inputs
from retuned.stages.verdict import Reason

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/known-flaws.md", "docs/writing-a-candidate.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_folder_and_file_that_a_page_names_exists(page: str) -> None:
    named = re.findall(
        r"`((?:tests|policies|stages|local|lab|cli|adapters|report|catalog|runtime|demo|benchmarks"
        r"|daemon|docs)/[\w/.-]*)`",
        (ROOT / page).read_text(encoding="utf-8"),
    )
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "daemon" / "retuned" / name).exists(), name


def test_every_path_of_the_page_about_the_architecture_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    floors, walks = page.partition("\n## Walks\n")[::2]
    text = floors + walks.partition("\n## ")[2]
    named = re.findall(r"`((?:[\w-]+/)+[\w.-]*|\w+\.py)`", text)
    roots = (ROOT, ROOT / "daemon" / "retuned", ROOT / "operators" / "retuned_operator")
    assert len(named) > 90
    for name in named:
        assert any((root / name).exists() for root in roots), name


def test_every_place_of_the_walks_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walks = page.partition("\n## Walks\n")[2].partition("\n## ")[0]
    places = re.findall(r"`((?:\w+/)+\w+)\.(\w+)`", walks)
    assert len(places) > 40
    for module, name in places:
        root = ROOT / "daemon" / "retuned"
        if module.startswith("OP/"):
            root, module = ROOT / "operators" / "retuned_operator", module.removeprefix("OP/")
        text = (root / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^ *(?:def|class) {name}\b", text, re.MULTILINE), f"{module}.{name}"


PROSE = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_between_the_pages_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors_of(there), target


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_list_of_exit_codes_is_that_of_the_errors() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    listed = text.partition("Exit codes: ")[2]
    codes = {e.exit_code for e in (RetunedError, UsageError, UnreadableInput, MissingDependency)}
    for code in codes | {HarnessError.exit_code, 0, 130}:
        assert re.search(rf"\b{code} [a-z]", listed[:260]), code


CANDIDATES = (ROOT / "docs" / "writing-a-candidate.md").read_text(encoding="utf-8")


def test_the_reasons_on_the_page_about_candidates_are_the_judges() -> None:
    gates = CANDIDATES.partition("## The gates")[2]
    named = {code for code in re.findall(r"`([a-z-]+)`", gates) if "-" in code}
    assert len(named) > 8
    assert named <= {str(reason) for reason in Reason}


@pytest.mark.parametrize(("language", "name"), [("cpp", "mine.cpp"), ("python", "mine.py")])
def test_the_examples_on_the_page_about_candidates_are_right(
    language: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    example = re.findall(rf"```{language}\n(.*?)```", CANDIDATES, re.DOTALL)[0]
    (tmp_path / name).write_text(example, encoding="utf-8")
    app = typer.Typer()
    app.command()(validate)
    result = CliRunner().invoke(app, [str(tmp_path / name), "--json", "--seconds", "60"])
    assert result.exit_code in (0, 1), result.output
    answer = json.loads(result.stdout)
    assert answer["gate"] in ("G5", "G6"), answer  # right; how fast it is depends on the machine


def test_the_example_of_several_launches_is_right(tmp_path: Path) -> None:
    import triton

    if not triton.knobs.runtime.interpret:
        pytest.skip("runs in Triton's interpreter")
    (tmp_path / "mine.py").write_text(re.findall(r"```python\n(.*?)```", CANDIDATES, re.DOTALL)[1])
    solution, shapes = read_candidate(tmp_path / "mine.py", definition=None)
    entry = catalog.get(solution.definition, language=Language.TRITON)
    assert [step.entry for step in solution.steps] == ["parts", "total"]
    check_contract(solution, entry.definition, shapes=shapes)
    inputs = make_inputs(entry, {"M": 1}, seed=1, family="randn")
    want = entry.reference(inputs, {"M": 1})["y"]
    got = launched(entry, solution, inputs, {"M": 1})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_the_example_of_attaching_a_server_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    example, marking = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "sockets").mkdir(mode=0o700)
    example = example.replace("/run/retuned", str(tmp_path / "sockets"))
    seen: dict[str, Any] = {"my_rmsnorm": lambda x, _weight: x + 1.0}
    exec(example, seen)
    try:
        rows, gain = torch.zeros(3, 512), torch.ones(512)
        assert torch.equal(seen["rmsnorm"](rows, gain), rows + 1.0)
        assert list((tmp_path / "sockets").glob("*.sock"))
        seen["runtime"].steps.log.start()
        exec(marking, seen | {"batch": 1, "forward": lambda x: x, "sample": lambda x: x})
        (record,) = seen["runtime"].steps.log.take(since=0, limit=9)["records"]
        assert record[2:5] == (0, 8, 4096)
    finally:
        seen["runtime"].close()


def test_the_example_in_gpu_cpp_keeps_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(re.findall(r"```cpp\n(.*?)```", CANDIDATES, re.DOTALL)[1], encoding="utf-8")
    solution, _ = read_candidate(path, definition=None)
    definition = catalog.get(solution.definition, language=Language.GPU_CPP).definition
    assert gpu_cpp_contract.check_contract(solution, definition).block == (128, 1, 1)
