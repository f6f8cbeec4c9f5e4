"""What came of each problem, as lines of a file that a run can be taken up from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.contract import Digest, Language, Record
from retuned.errors import UnreadableInput
from retuned.stages.verdict import Interval

_BEGIN = '{"problem":'


class Timing(Record):
    """Times beside one baseline."""

    baseline_us: float
    """Median time of the baseline, microseconds."""
    candidate_us: float
    """Median time of the kernel in the same blocks, microseconds."""
    speedup: Interval
    """Baseline over kernel."""
    blocks: int
    """Blocks it rests on."""
    threads: int = 1
    """Threads of the baseline: all, or one where that is faster."""


class Outcome(Record):
    """What came of one problem; one line of the file that a run can be taken up from."""

    problem: str
    """Its id."""
    key: Digest
    """Digest of problem, solution and settings: another outcome is needed where any changes."""
    status: Annotated[str, Field(pattern=r"^(measured|failed|no-solution|unsupported|error)$")]
    """``measured``: right, and timed where times mean something. ``failed``: the kernel is wrong.
    ``unsupported``: the problem cannot be compared with; ``error``: nothing can be concluded."""
    compiled: bool = False
    """Whether the kernel met its contract and compiled."""
    correct: bool = False
    """Whether it passed every check."""
    reason: Annotated[str, Field(max_length=80)] = ""
    """Stable code; empty where it was measured."""
    gate: Annotated[str, Field(max_length=8)] = ""
    """Gate that the kernel failed at."""
    detail: Annotated[str, Field(max_length=1000)] = ""
    """One sentence."""
    error_ratio: float | None = None
    """Largest error against float64, relative to eager's."""
    language: Language | None = None
    """Of the kernel."""
    device: str = ""
    """Where eager ran: ``cpu`` or ``cuda``."""
    timed: bool = False
    """Whether times mean anything: an interpreter's do not."""
    eager: Timing | None = None
    """Beside eager PyTorch."""
    compile: Timing | None = None
    """Beside ``torch.compile``; None where it was not asked for."""
    compile_problem: Annotated[str, Field(max_length=500)] = ""
    """Why ``torch.compile`` was not measured."""
    solution: Digest | None = None
    """Digest of the kernel that was measured."""
    generator: dict[str, object] | None = None
    """Who looked for something faster, how many were tried, their verdicts, and under ``found`` the
    kernel that was measured: the start where nothing was faster."""
    tensors: dict[str, list[dict[str, object]]] = Field(default_factory=dict)
    """Inputs, weights and outputs of the problem, in launch order."""
    axes: tuple[int, ...] = ()
    """Lengths that a C++ kernel gets, in their order."""
    seconds: float = 0.0
    """Wall time it took."""


def read_outcomes(path: Path) -> dict[Digest, Outcome]:
    """Read the outcomes of an earlier run; lines that were cut off are left out.

    Raises
    ------
    UnreadableInput
        If another line is no outcome, or the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput("unreadable", where=str(path), message=str(error)) from None
    found = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            outcome = Outcome.model_validate_json(line)
        except ValidationError:
            if line.startswith(_BEGIN) and not line.endswith("}"):  # cut off by the run's end
                continue
            message = "no outcome of a benchmark; name another file with --out"
            raise UnreadableInput(
                "bad-outcome", where=f"{path} line {number}", message=message
            ) from None
        found[outcome.key] = outcome
    return found
