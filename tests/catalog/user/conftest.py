"""A definition file and its sources, in a folder of the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retuned import catalog

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "scale_bias"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "scale_bias"))


@pytest.fixture
def file(folder: Path) -> Path:
    """The example's definition file."""
    return folder / "scale_bias.yaml"


@pytest.fixture
def changed(file: Path) -> Callable[[str, str], Path]:
    """Replace text in the definition file."""

    def change(old: str, new: str) -> Path:
        text = file.read_text()
        assert old in text, f"{old!r} is not in the example"
        file.write_text(text.replace(old, new, 1))
        return file

    return change


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Whatever a test makes known is forgotten."""
    yield
    catalog.forget()
