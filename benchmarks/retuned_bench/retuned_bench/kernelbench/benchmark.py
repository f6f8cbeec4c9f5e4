"""One run of ``retuned bench kernelbench``: problems, solved by files or by a generator."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from retuned.cli.kernels_bench import lab_folder
from retuned.cli.output import cell, check_writable, emit_json, safe, say, stdout
from retuned.cli.validate import read_candidate
from retuned.contract import Digest, Solution
from retuned.errors import UsageError
from retuned.experiment.__main__ import GENERATORS
from retuned.lab.generators.inputs import GeneratorInput, Make
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.toolchain import environment_of
from retuned.ports import Generator
from retuned.settings import load_settings
from retuned_bench.kernelbench.improve import Search
from retuned_bench.kernelbench.problem_files import ProblemFile, discover
from retuned_bench.kernelbench.run import (
    BenchSettings,
    KernelBench,
    Outcome,
    Score,
    read_outcomes,
    table,
)

_POINTS = (0.0, 1.0, 2.0)
_METHOD = (
    "blocks of eager, kernel, eager; per block the kernel's median launch over five rotating sets "
    "of inputs, beside the geometric mean of eager's two batches of 20 ms on the same sets (on a "
    "processor medians of calls, on a GPU calls back to back); 95 % one-sided bounds over blocks; "
    "eager with all threads or one, whichever is faster"
)
EVOLVE = "evolve"


def run_benchmark(
    problems: Path,
    *,
    solutions: Path | None,
    generator: Sequence[str],
    compile: bool,
    p: Sequence[float],
    seconds: float,
    search_seconds: float,
    candidates: int,
    out: Path | None,
    config: Path | None,
    json: bool,
) -> None:
    """Do what `commands.kernelbench` describes.

    Raises
    ------
    UsageError
        If an option is wrong, or the results cannot be written.
    """
    names = tuple(dict.fromkeys(generator))
    makers = _makers(names, config)
    found = discover(problems)
    files = _Solutions(solutions, found)
    if out is not None:
        check_writable(out)
    known = read_outcomes(out) if out is not None else {}
    search = Search(makers=makers, seconds=search_seconds, candidates=candidates)
    settings = BenchSettings(
        folder=lab_folder() / "kernelbench",
        seconds=seconds,
        compiles=compile,
        search=search if makers else None,
    )
    outcomes = _run(KernelBench(files.find, settings=settings), found, known=known, out=out)
    body = answer(outcomes, points=(*_POINTS, *p), generators=names)
    if json:
        emit_json(body)
    else:
        _print(outcomes, body)


def answer(
    outcomes: Sequence[Outcome], *, points: Sequence[float], generators: Sequence[str]
) -> dict[str, Any]:
    """Return the object that ``--json`` prints; fields are added, never renamed."""
    eager = [_score(each) for each in outcomes]
    sure = [_score(each, sure=True) for each in outcomes]
    compiled = [_score(each, compiled=True) for each in outcomes]
    languages = sorted({each.language for each in outcomes if each.language is not None})
    counts = {status: 0 for status in ("measured", "failed", "no-solution", "unsupported", "error")}
    for each in outcomes:
        counts[each.status] += 1
    return {
        "problems": len(outcomes),
        "counts": counts,
        "compiled": sum(each.compiled for each in outcomes),
        "correct": sum(each.correct for each in outcomes),
        "timed": any(each.timed and each.eager is not None for each in outcomes),
        "fast_p": table(eager, points),
        "fast_p_lower": table(sure, points),
        "fast_p_compile": (
            table(compiled, points) if any(each.compile for each in outcomes) else None
        ),
        "generators": list(generators),
        "torch": _torch(),
        "cores": len(os.sched_getaffinity(0)),
        "method": _METHOD,
        "environments": [
            environment_of(language).model_dump(mode="json") for language in languages
        ],
        "results": [each.model_dump(mode="json") for each in outcomes],
    }


def _torch() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class _Solutions:
    """Files with kernels, found by the problem's name."""

    folder: Path | None
    problems: Sequence[ProblemFile]

    def find(self, problem: str, definition: str) -> Solution | None:
        """Return the kernel of a problem in the language for this machine; None without a file."""
        if self.folder is None:
            return None
        for path in self._paths(problem):
            if path.is_file():
                return read_candidate(path, definition=definition)[0]
        return None

    def _paths(self, problem: str) -> list[Path]:
        assert self.folder is not None, "asked only where there is one"
        endings = (".py", ".cpp") if find_gpu() is not None else (".cpp", ".py")
        stem = problem.rpartition("/")[2]
        alike = [each.id for each in self.problems if each.id.rpartition("/")[2] == stem]
        names = [problem, *([stem] if len(alike) == 1 and stem != problem else [])]
        return [self.folder / f"{name}{ending}" for name in names for ending in endings]


def _run(
    bench: KernelBench,
    problems: Sequence[ProblemFile],
    *,
    known: Mapping[Digest, Outcome],
    out: Path | None,
) -> list[Outcome]:
    outcomes = []
    for number, (outcome, old) in enumerate(bench.run(problems, known=known), start=1):
        outcomes.append(outcome)
        again = " (from the file)" if old else ""
        say(f"[{number}/{len(problems)}] {safe(outcome.problem)}: {_told(outcome)}{again}")
        if out is not None and not old:
            _append(out, outcome)
    return outcomes


def _append(path: Path, outcome: Outcome) -> None:
    line = outcome.model_dump_json()
    try:
        with path.open("ab+") as stream:
            if stream.tell():
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":  # a line that was cut off stays alone
                    stream.write(b"\n")
            stream.write(line.encode() + b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _makers(names: Sequence[str], config: Path | None) -> dict[str, Make]:
    known: dict[str, Make] = dict(GENERATORS)
    if EVOLVE in names:
        known[EVOLVE] = _evolution(config)
    unknown = [name for name in names if name not in known]
    if unknown:
        there = ", ".join([*GENERATORS, EVOLVE])
        raise UsageError(f"--generator {safe(unknown[0])}: there are {there}")
    return {name: known[name] for name in names}


def _evolution(config: Path | None) -> Make:
    # Only here: the client costs a third of a second.
    from retuned.lab.llm.setup import open_evolution
    from retuned.standalone.assembly import config_of

    evolve = config_of(load_settings(config))
    if evolve is None:
        raise UsageError("--generator evolve: name an endpoint with the setting evolve_url")

    def make(occasion: GeneratorInput) -> Generator:
        return open_evolution(evolve, occasion)

    return make


def _score(outcome: Outcome, *, sure: bool = False, compiled: bool = False) -> Score:
    timing = outcome.compile if compiled else outcome.eager
    if timing is None:
        return Score(correct=outcome.correct)
    return Score(
        correct=outcome.correct, speedup=timing.speedup.lower if sure else timing.speedup.point
    )


def _told(outcome: Outcome) -> str:
    if outcome.eager is not None:
        text = f"correct, {outcome.eager.speedup.point:.2f}x eager"
        if outcome.compile is not None:
            text += f", {outcome.compile.speedup.point:.2f}x torch.compile"
        return text
    if outcome.correct:
        return "correct; not timed"
    return safe(f"{outcome.status}: {outcome.reason}; {outcome.detail}", limit=300)


def _print(outcomes: Sequence[Outcome], body: Mapping[str, Any]) -> None:
    out = stdout()
    table_ = Table(box=None, pad_edge=False)
    columns = ("problem", "compiled", "correct", "eager us", "kernel us", "speedup", "interval")
    for column in (*columns, "torch.compile", "remark"):
        table_.add_column(column, justify="left" if column in ("problem", "remark") else "right")
    for each in outcomes:
        eager, compiled = each.eager, each.compile
        table_.add_row(
            cell(each.problem),
            "yes" if each.compiled else "-",
            "yes" if each.correct else "-",
            f"{eager.baseline_us:.1f}" if eager else "-",
            f"{eager.candidate_us:.1f}" if eager else "-",
            f"{eager.speedup.point:.2f}x" if eager else "-",
            f"{eager.speedup.lower:.2f} to {eager.speedup.upper:.2f}" if eager else "-",
            f"{compiled.speedup.point:.2f}x" if compiled else "-",
            cell(each.reason),
        )
    out.print(table_)
    counts = ", ".join(f"{count} {status}" for status, count in body["counts"].items() if count)
    out.print(
        f"{body['problems']} problems: {counts}; {body['compiled']} compiled, "
        f"{body['correct']} correct"
    )
    for name, share in body["fast_p"].items():
        lower = body["fast_p_lower"][name]
        out.print(f"{name} = {share:.3f}  (by the lower bound {lower:.3f})")
    if body["fast_p_compile"] is not None:
        shares = ", ".join(f"{n} = {s:.3f}" for n, s in body["fast_p_compile"].items())
        out.print(f"against torch.compile: {shares}")
    if not body["timed"]:
        out.print("Nothing was timed: fast_p with p above 0 counts only what was.")
