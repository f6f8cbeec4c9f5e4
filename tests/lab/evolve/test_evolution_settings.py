"""From settings to evolution: off by default, and whatever is missing is said at the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_naming

from retuned.errors import MissingDependency, UsageError
from retuned.lab.llm.setup import key_of, machine_names
from retuned.settings import Settings
from retuned.standalone.assembly import config_of, loop_settings

FULL: dict[str, Any] = {
    "evolve_url": "https://models.example.com/v1",
    "evolve_model": "m",
    "evolve_key_variable": "MODEL_KEY",
    "evolve_prompt_usd_per_mtok": 1.0,
    "evolve_completion_usd_per_mtok": 0.0,
}
HERE = {"MODEL_KEY": "k3y"}


def settings(folder: Path, **changes: Any) -> Settings:
    return Settings(state_dir=folder, **{**FULL, **changes})


def test_it_is_off_until_an_address_is_set(tmp_path: Path) -> None:
    assert config_of(Settings(state_dir=tmp_path)) is None


def test_everything_that_is_set_arrives_and_the_key_does_not(tmp_path: Path) -> None:
    found = config_of(
        settings(tmp_path, evolve_answer_tokens=900, evolve_hint_dir=tmp_path / "hints"),
        environment=HERE,
    )
    assert found is not None
    assert found.rules.answer_tokens == 900
    assert found.hints == str(tmp_path / "hints")
    assert found.transcripts == str(tmp_path / "transcripts")
    assert "k3y" not in found.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"evolve_model": ""}, "evolve_model"),
        ({"evolve_prompt_usd_per_mtok": None}, "evolve_prompt_usd_per_mtok"),
        ({"evolve_completion_usd_per_mtok": None}, "evolve_completion_usd_per_mtok"),
        ({"evolve_key_variable": "OTHER_KEY"}, "OTHER_KEY"),
        ({"evolve_url": "http://models.example.com/v1"}, "a key"),
        ({"evolve_url": "models.example.com"}, "http://"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, changes: dict[str, Any], names: str) -> None:
    with raises_naming(UsageError, names):
        config_of(settings(tmp_path, **changes), environment=HERE)


def test_a_key_that_is_gone_in_the_labs_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = config_of(settings(tmp_path), environment=HERE)
    assert found is not None
    monkeypatch.delenv("MODEL_KEY", raising=False)
    with raises_naming(MissingDependency, "MODEL_KEY"):
        key_of(found)
    monkeypatch.setenv("MODEL_KEY", " k3y\n")
    assert key_of(found) == "k3y"
    assert key_of(found.model_copy(update={"key_variable": ""})) == ""


def test_who_is_asked_follows_from_the_settings(tmp_path: Path) -> None:
    assert "evolve" in loop_settings(settings(tmp_path)).generators
    assert "evolve" not in loop_settings(Settings(state_dir=tmp_path)).generators


def test_names_that_stand_in_many_a_comment_are_not_taken_out() -> None:
    assert not {"root", "user", "localhost"} & set(machine_names())


def test_the_labs_process_can_close_its_memory(tmp_path: Path) -> None:
    program = (
        "import ctypes\n"
        "from retuned.lab.harness.sandbox import hide_memory\n"
        "hide_memory()\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"  # PR_GET_DUMPABLE
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "0"
