"""What the documents point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retuned.errors import (
    HarnessError,
    MissingDependency,
    RetunedError,
    UnreadableInput,
    UsageError,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/architecture.md", "docs/known-flaws.md")


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


def test_the_list_of_exit_codes_is_that_of_the_errors() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    listed = text.partition("Exit codes: ")[2]
    codes = {e.exit_code for e in (RetunedError, UsageError, UnreadableInput, MissingDependency)}
    for code in codes | {HarnessError.exit_code, 0, 130}:
        assert re.search(rf"\b{code} [a-z]", listed[:260]), code
