"""The daemon knows the users' own definitions that its settings name, and its lab gets them too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.expect import raises_code, raises_naming

from retuned import catalog
from retuned.catalog.user import load_definition
from retuned.contract import Workload
from retuned.errors import UnreadableInput, UsageError
from retuned.experiment.child import LabProcess
from retuned.experiment.local import LocalLab
from retuned.lab.languages.cpu_cpp import cpu_environment
from retuned.settings import Settings, load_settings
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.standalone import assembly
from retuned.standalone.kernels import KnownKernels

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "scale_bias"
FILE = EXAMPLE / "scale_bias.yaml"
NAME = "scale_bias_h1024"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    catalog.forget()  # what another test of this process has loaded
    yield
    catalog.forget()


def test_files_and_folders_in_the_settings_are_known_from_the_start(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, definition_files=(EXAMPLE,), lab_language="cpu_cpp")
    loop, _ = assembly.build(settings)
    assert loop is not None
    assert [own.name for own in catalog.own_definitions()] == [NAME]


def test_the_daemon_does_not_start_with_a_definition_it_cannot_use(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(FILE.read_text().replace("flops: 3", "flop: 3"))
    with raises_code(UnreadableInput, "definition-invalid", "flops"):
        assembly.build(Settings(state_dir=tmp_path / "a", definition_files=(broken,)))
    taken = tmp_path / "taken.yaml"
    text = FILE.read_text().replace("name: scale_bias_h1024", "name: rmsnorm_h1024")
    for source in EXAMPLE.iterdir():
        (tmp_path / source.name).write_text(source.read_text())
    taken.write_text(text)
    with raises_naming(UsageError, "rmsnorm_h1024"):
        assembly.build(Settings(state_dir=tmp_path / "b", definition_files=(taken,)))


def test_what_was_found_of_a_kernel_whose_file_is_gone_bothers_nobody() -> None:
    known = KnownKernels()
    catalog.learn([load_definition(FILE)])
    assert known.family(NAME) == "scale_bias"
    catalog.forget()
    assert known.family(NAME) == ""


def test_the_setting_is_read_from_the_environment_as_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.setenv("RETUNED_DEFINITION_FILES", "/etc/a.yaml:/etc/b")
    assert load_settings().definition_files == (Path("/etc/a.yaml"), Path("/etc/b"))


def test_the_labs_process_gets_the_definition_by_content(tmp_path: Path) -> None:
    catalog.learn([load_definition(FILE)])
    incumbent = catalog.get(NAME).incumbent
    plan = ExperimentPlan(
        id="own-process",
        hypothesis="h",
        definition=NAME,
        workloads=(Workload(definition=NAME, axes={"M": 4}),),
        incumbent=incumbent.digest,
        budget=Budget(max_candidates=1, max_seconds=240.0, finalists=1),
        environment=cpu_environment().digest,
    )
    builder = LocalLab(tmp_path, subjects=catalog.get, solutions=lambda _: None, generators={})
    lab = LabProcess(
        tmp_path,
        cores=lambda: (),
        solution=lambda _: incumbent,
        builder=builder,
        definition=catalog.own_definition,
    )
    (found,) = lab.run(plan, known={})
    assert found.solution.definition == NAME
    assert found.verdict.gate in ("G5", "G6")
    artifact = builder.build(found.solution)
    assert (artifact / "artifact.json").is_file()
