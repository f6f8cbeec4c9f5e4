"""A folder of problems, one after the other: an outcome each, and fast_p over all of them.

Outcomes are lines of a file from which a later run continues. fast_p is the measure of the
KernelBench paper: the share of all problems that are solved correctly and faster than p. A problem
without a correct kernel counts in the denominator and never in the numerator, whatever the reason.
fast_0 is the share of correct kernels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from retuned.contract import Digest, Language, Record, Solution, digest_of
from retuned.errors import HarnessError, UnreadableInput, UsageError
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.toolchain import environment_of, is_timed, toolchain_for
from retuned.stages.verdict import Interval
from retuned_bench.kernelbench.evaluate import COMPILED, EAGER, Examined, OpenModel, Ratio, examine
from retuned_bench.kernelbench.improve import Improved, Search, improve
from retuned_bench.kernelbench.problem import (
    EagerModel,
    ProblemSubject,
    definition_name,
    open_compiled,
    open_problem,
    told,
)
from retuned_bench.kernelbench.problem_files import ProblemFile
from retuned_bench.kernelbench.process import ProblemLimits, ProblemRefused

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
        If another line is not an outcome, or the file cannot be read.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a score needs to know of one problem."""

    correct: bool
    """Whether its kernel passed all checks."""
    speedup: float | None = None
    """Baseline's time over the kernel's; None where nothing was timed."""


def fast(scores: Sequence[Score], p: float) -> float:
    """Return fast_p over all problems; 0 where there are none.

    Examples
    --------
    >>> found = [Score(correct=True, speedup=2.5), Score(correct=True, speedup=0.8),
    ...          Score(correct=False), Score(correct=True, speedup=1.0)]
    >>> fast(found, 0), fast(found, 1), fast(found, 2)
    (0.75, 0.25, 0.25)
    """
    if not scores:
        return 0.0
    return sum(_counts(score, p) for score in scores) / len(scores)


def table(scores: Sequence[Score], points: Iterable[float]) -> dict[str, float]:
    """Return fast_p by its name, such as ``fast_1``, in rising order of p.

    Examples
    --------
    >>> table([Score(correct=True, speedup=1.2)], [1.5, 0, 1])
    {'fast_0': 1.0, 'fast_1': 1.0, 'fast_1.5': 0.0}
    """
    return {f"fast_{p:g}": fast(scores, p) for p in sorted(set(points))}


def _counts(score: Score, p: float) -> bool:
    if not score.correct:
        return False
    return p <= 0.0 or (score.speedup is not None and score.speedup > p)


log = logging.getLogger(__name__)

FindSolution = Callable[[str, str], Solution | None]
"""Returns the solution of a problem's id for a definition's name; None where there is none."""


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
    """The search for a faster variant than the solution; None searches nothing."""
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
