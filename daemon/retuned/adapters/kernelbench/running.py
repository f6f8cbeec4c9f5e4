"""A folder of problems, one after the other: an outcome each, kept so that none is run twice."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.adapters.kernelbench.describing import definition_name, told
from retuned.adapters.kernelbench.examining import (
    COMPILED,
    EAGER,
    Examined,
    OpenModel,
    Ratio,
    examine,
)
from retuned.adapters.kernelbench.improving import Improved, Search, improve
from retuned.adapters.kernelbench.process import ProblemLimits, ProblemRefused
from retuned.adapters.kernelbench.subject import (
    EagerModel,
    ProblemSubject,
    open_compiled,
    open_problem,
)
from retuned.contract import Digest, Language, Record, Solution, digest_of
from retuned.errors import HarnessError, UnreadableInput, UsageError
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.toolchain import environment_of, is_timed, toolchain_for
from retuned.stages.verdict import Interval

log = logging.getLogger(__name__)

_MOST_PROBLEMS = 10_000
_MOST_BYTES = 1_000_000
_BEGIN = '{"problem":'
_DIGITS = re.compile(r"([0-9]+)")

FindSolution = Callable[[str, str], Solution | None]
"""Returns the solution of a problem's id for a definition's name; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFile:
    """One problem on disk; its text was read once, and nothing of it was executed."""

    id: str
    """Path below the folder, without its ending: ``level1/19_ReLU``."""
    text: str
    """Its source."""

    @property
    def digest(self) -> Digest:
        """Digest of the source."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What is done with each problem."""

    folder: Path
    """Private; compiled objects are kept in it."""
    seconds: float = 3.0
    """Time for timing one kernel."""
    compiles: bool = False
    """Whether ``torch.compile`` is measured too."""
    search: Search | None = None
    """Who looks for something faster than the solution; None asks nobody."""
    cores: Sequence[int] = ()
    """Cores to use; empty means all."""
    limits: ProblemLimits = field(default_factory=ProblemLimits)
    """Bounds of a problem's child."""


class KernelBench:
    """Runs problems.

    Parameters
    ----------
    find
        Finds solutions.
    settings
        What is done.
    """

    def __init__(self, find: FindSolution, *, settings: BenchSettings) -> None:
        self._find = find
        self._settings = settings

    def run(
        self, problems: Sequence[ProblemFile], *, known: Mapping[Digest, Outcome]
    ) -> Iterator[tuple[Outcome, bool]]:
        """Yield each problem's outcome, and whether it was known from an earlier run.

        Raises
        ------
        MissingDependency
            If this machine cannot confine a problem, or lacks a compiler.
        """
        for problem in problems:
            solution, refusal = self._solution(problem)
            key = self._key(problem, solution, refusal)
            if key in known and known[key].status != "error":
                yield known[key], True
                continue
            begin = time.monotonic()
            outcome = refusal or self._outcome(problem, solution)
            seconds = round(time.monotonic() - begin, 3)
            yield outcome.model_copy(update={"key": key, "seconds": seconds}), False

    def _solution(self, problem: ProblemFile) -> tuple[Solution | None, Outcome | None]:
        try:
            return self._find(problem.id, definition_name(problem.id)), None
        except (UnreadableInput, UsageError) as error:
            return None, _outcome(problem, "failed", reason=error.code, detail=error.message)

    def _key(
        self, problem: ProblemFile, solution: Solution | None, refusal: Outcome | None
    ) -> Digest:
        search = self._settings.search
        return digest_of(
            {
                "problem": [problem.id, problem.digest],
                "solution": solution.digest if solution else None,
                "refusal": refusal.detail if refusal else None,
                "compiles": self._settings.compiles,
                "search": [*search.makers] if search else None,
                "environment": environment_of(solution.language).digest if solution else None,
            }
        )

    def _outcome(self, problem: ProblemFile, solution: Solution | None) -> Outcome:
        device = device_for(solution.language) if solution is not None else "cpu"
        with ExitStack() as stack:
            try:
                subject = open_problem(
                    problem.id,
                    problem.text,
                    device=device,
                    cores=self._settings.cores,
                    limits=self._settings.limits,
                )
            except ProblemRefused as error:
                detail = error.detail
                return _outcome(problem, "unsupported", reason=error.code, detail=detail)
            stack.callback(subject.eager.close)
            facts = {"device": device, **_facts(subject)}
            if solution is None:
                detail = "no file with a kernel for it"
                found = _outcome(problem, "no-solution", reason="no-solution", detail=detail)
                return found.model_copy(update=facts)
            try:
                found = self._examined(problem, subject, solution, stack)
            except HarnessError as error:
                detail = error.message
                found = _outcome(problem, "error", reason=error.code, detail=detail)
            return found.model_copy(update={**facts, "language": solution.language})

    def _examined(
        self,
        problem: ProblemFile,
        subject: ProblemSubject,
        solution: Solution,
        stack: ExitStack,
    ) -> Outcome:
        settings = self._settings
        timed = is_timed(environment_of(solution.language))
        improved: Improved | None = None
        if settings.search is not None and timed:
            first = self._try(solution, subject, baselines={}, seconds=0.0)
            if not first.correct:
                return _of_examined(problem, first, solution)
            improved = improve(
                subject,
                solution,
                search=settings.search,
                folder=settings.folder / "search",
                cores=settings.cores,
            )
            solution = improved.best
        baselines: dict[str, OpenModel] = {EAGER: lambda: subject.eager}
        if settings.compiles and timed:
            device = device_for(solution.language)
            baselines[COMPILED] = self._compiler(problem, subject, stack, device=device)
        seconds = settings.seconds if timed else 0.0
        examined = self._try(solution, subject, baselines=baselines, seconds=seconds)
        found = _of_examined(problem, examined, solution)
        why_not = examined.untimed.get(COMPILED, "")
        extra: dict[str, object] = {"timed": timed, "compile_problem": why_not[:500]}
        if improved is not None and settings.search is not None:
            extra["generator"] = {
                "names": list(settings.search.makers),
                "candidates": improved.candidates,
                "verdicts": dict(improved.verdicts),
                "found": solution.model_dump(mode="json", exclude_defaults=True),
            }
        return found.model_copy(update=extra)

    def _try(
        self,
        solution: Solution,
        subject: ProblemSubject,
        *,
        baselines: Mapping[str, OpenModel],
        seconds: float,
    ) -> Examined:
        return examine(
            solution,
            subject,
            toolchain=toolchain_for(solution.language),
            folder=self._settings.folder / "compiled",
            seconds=seconds,
            baselines=baselines,
            cores=self._settings.cores,
        )

    def _compiler(
        self, problem: ProblemFile, subject: ProblemSubject, stack: ExitStack, *, device: str
    ) -> OpenModel:
        """Return what opens the model for PyTorch's compiler: it costs seconds, so on demand."""

        def opened() -> EagerModel:
            model = open_compiled(
                problem.text,
                subject.described,
                device=device,
                cores=self._settings.cores,
                limits=self._settings.limits,
            )
            stack.callback(model.close)
            return model

        return opened


def device_for(language: Language) -> str:
    """Return where PyTorch runs beside kernels of a language here."""
    on_gpu = language is not Language.CPU_CPP and find_gpu() is not None
    return "cuda" if on_gpu else "cpu"


def discover(folder: Path) -> list[ProblemFile]:
    """Read all problems below a folder, in the order in which people count.

    Raises
    ------
    UsageError
        If there is none, or there are too many.
    UnreadableInput
        If one cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no folder with problems")
    found = sorted(
        (path for path in _python_files(folder)),
        key=lambda path: _counted(path.relative_to(folder).as_posix()),
    )
    if not found:
        raise UsageError(f"{folder}: no .py files; problems are files such as level1/19_ReLU.py")
    if len(found) > _MOST_PROBLEMS:
        raise UsageError(f"{folder}: {len(found)} problems are more than {_MOST_PROBLEMS}")
    return [
        ProblemFile(id=path.relative_to(folder).with_suffix("").as_posix(), text=_text_of(path))
        for path in found
    ]


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


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):  # follows no links
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            path = Path(root, name)
            hidden = name.startswith((".", "__"))
            if name.endswith(".py") and not hidden and path.is_file() and not path.is_symlink():
                yield path


def _counted(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(p[:18]), "") if p.isdigit() else (1, 0, p) for p in _DIGITS.split(text) if p]


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput("unreadable", where=str(path), message=str(error)) from None
    if len(data) > _MOST_BYTES:
        message = f"has more than {_MOST_BYTES} bytes"
        raise UnreadableInput("too-large", where=str(path), message=message)
    return text


def _outcome(problem: ProblemFile, status: str, *, reason: str, detail: str) -> Outcome:
    return Outcome(
        problem=problem.id,
        key=problem.digest,
        status=status,
        reason=reason[:80],
        detail=detail[:1000],
    )


def _of_examined(problem: ProblemFile, examined: Examined, solution: Solution) -> Outcome:
    failure = examined.failure
    timings = {name: _timing(ratio) for name, ratio in examined.ratios.items()}
    return Outcome(
        problem=problem.id,
        key=problem.digest,
        status="measured" if examined.correct else "failed",
        compiled=examined.compiled,
        correct=examined.correct,
        reason=str(failure.reason) if failure else "",
        gate=failure.gate if failure else "",
        detail=failure.detail[:1000] if failure else "",
        error_ratio=examined.error_ratio,
        eager=timings.get(EAGER),
        compile=timings.get(COMPILED),
        solution=solution.digest,
    )


def _timing(ratio: Ratio) -> Timing:
    return Timing(
        baseline_us=ratio.baseline_us,
        candidate_us=ratio.candidate_us,
        speedup=ratio.speedup,
        blocks=ratio.blocks,
        threads=ratio.threads,
    )


def _facts(subject: ProblemSubject) -> dict[str, object]:
    described = subject.described
    lengths = subject.definition.lengths({})
    return {
        "tensors": {
            "inputs": told(described.inputs),
            "weights": told(described.weights),
            "outputs": told(described.outputs),
        },
        "axes": tuple(lengths.values()),
    }
