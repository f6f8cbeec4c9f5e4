"""``retuned kernels bench NAME``: the incumbent against the best that a search finds, here.

What the commands that measure share: which kernel, at which shapes, in which folder.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from retuned import catalog
from retuned.catalog import KernelEntry
from retuned.catalog.user import load_definition, load_definitions
from retuned.catalog.user.inputs import allows
from retuned.cli.output import JsonFlag, cell, check_writable, emit_json, safe, say, stdout
from retuned.cli.plugins import TraceFormat, trace_format
from retuned.cli.session import ConfigOption
from retuned.contract import Definition, Language, Workload
from retuned.errors import MissingDependency, UsageError
from retuned.experiment.__main__ import open_lab
from retuned.lab.harness.schedule import CANDIDATE
from retuned.lab.harness.timing import samples_of, units_for
from retuned.lab.languages.gpu import find_gpu
from retuned.lab.resources import LabResources, LabSettings
from retuned.lab.subject import numpy_dtype, shape_of
from retuned.lab.toolchain import is_timed, toolchain_for
from retuned.ports import Finding
from retuned.settings import load_settings
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.verdict import Status
from retuned.text import plural

LENGTHS = (1, 64, 256)
"""Lengths of the first variable axis where the command names no shapes."""
_OTHER_LENGTH = 256
"""Length of every other variable axis."""
_MOST_BYTES = 2 * 2**30
"""Most tensors of one launch: the lab keeps several sets of them in memory."""
_YAML = (".yaml", ".yml")
DefinitionFileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--definition-file",
        help="File or folder of your own definitions, beside those in the settings; may be given "
        "again.",
    ),
]


def learn(config: Path | None, files: Sequence[Path] = ()) -> None:
    """Make the users' own definitions known: those that the settings name, and `files`.

    Raises
    ------
    UnreadableInput
        If one cannot be read or used.
    UsageError
        If the catalog has one of their names, or the settings are wrong.
    """
    settings = load_settings(config)
    catalog.learn(
        load_definitions([*settings.definition_files, *files]),
        unconfined_references=settings.allow_unconfined_references,
    )


def named(text: str) -> str:
    """Return the name of a definition; one in a YAML file is added to the catalog first.

    Raises
    ------
    UnreadableInput
        If it is a file that cannot be read or used.
    UsageError
        If the catalog has the file's name.
    """
    path = Path(text)
    if path.suffix not in _YAML:
        return text
    own = load_definition(path)
    catalog.learn([own])
    return own.name


def shape_of_text(text: str, *, option: str) -> dict[str, int]:
    """Read a shape such as ``T=1,S=512``.

    Raises
    ------
    UsageError
        If the text is not a shape.
    """
    pairs = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    if not all(name and sign and digits.strip().isdecimal() for name, sign, digits in pairs):
        raise UsageError(f"{option} {text}: write a shape like M=64 or T=1,S=512")
    if len(set(names)) != len(names):
        raise UsageError(f"{option} {text}: names an axis twice")
    return {name.strip(): int(digits) for name, _, digits in pairs}


def workloads_for(definition: Definition, shapes: Sequence[dict[str, int]]) -> tuple[Workload, ...]:
    """Return one workload per shape; some usual ones where the command names none.

    Raises
    ------
    UsageError
        If a shape names other axes than the variable ones, or one that the definition is not for.
    """
    variable = definition.variable_axes
    if not shapes:
        first, others = variable[:1], dict.fromkeys(variable[1:], _OTHER_LENGTH)
        shapes = [{**dict.fromkeys(first, length), **others} for length in LENGTHS]
    for shape in shapes:
        if set(shape) != set(variable):
            raise UsageError(f"{definition.name} needs the axes {', '.join(variable)}, got {shape}")
        size = _tensor_bytes(definition, shape)
        if size > _MOST_BYTES:
            raise UsageError(f"{shape} is {size / 2**30:.1f} GiB of tensors; the lab takes 2 GiB")
        own = catalog.own_definition(definition.name)
        if own is not None and not allows(own, definition.lengths(shape)):
            raise UsageError(
                f"{definition.name} is only for lengths where {own.where}; not {shape}"
            )
    unique = {tuple(sorted(shape.items())): shape for shape in shapes}
    return tuple(Workload(definition=definition.name, axes=axes) for axes in unique.values())


def _tensor_bytes(definition: Definition, shape: Mapping[str, int]) -> int:
    lengths = definition.lengths(shape)
    tensors = (*definition.inputs.values(), *definition.outputs.values())
    return sum(math.prod(shape_of(each, lengths)) * numpy_dtype(each).itemsize for each in tensors)


def lab_folder() -> Path:
    """Return where compiled kernels of commands are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "retuned" / "lab"


_FINAL_SHARE = 0.15
"""Part of the time that one finalist's re-measurement may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benched:
    """What was measured."""

    entry: KernelEntry
    """The kernel."""
    workloads: tuple[Workload, ...]
    """The shapes."""
    findings: tuple[Finding, ...]
    """Every candidate."""
    environment: Mapping[str, Any]
    """Where."""
    incumbent_us: tuple[float, ...] = ()
    """Median time of the incumbent by shape, where no candidate was measured beside it."""

    @property
    def best(self) -> Finding | None:
        """Return the winner, or else the fastest that was measured to the end; None if none was."""
        measured = [found for found in self.findings if found.verdict.shapes]
        return max(measured, key=_merit, default=None)


def bench(
    name: Annotated[
        str, typer.Argument(help="A definition such as rmsnorm_h1024, or a YAML file of your own.")
    ],
    shape: Annotated[
        list[str] | None,
        typer.Option(help="A shape, such as M=64 or T=1,S=512; several times for several shapes."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="cpu_cpp or triton; else triton where there is a GPU.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=5.0, help="Time to spend on it all.")] = 60.0,
    candidates: Annotated[int, typer.Option(min=1, help="Most variants to compile.")] = 16,
    traces: Annotated[
        Path | None,
        typer.Option(help="Write every outcome here too, as FlashInfer-Bench traces (JSONL)."),
    ] = None,
    config: ConfigOption = None,
    definition_file: DefinitionFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Measure the incumbent against the best that a search finds on this machine."""
    learn(config, definition_file or ())
    known = named(name)
    lines_of = trace_format() if traces is not None else None
    if traces is not None:
        check_writable(traces)
    entry = catalog.get(known, language=_language(known, language))
    workloads = workloads_for(
        entry.definition, [shape_of_text(text, option="--shape") for text in shape or ()]
    )
    benched = measure(entry, workloads, seconds=seconds, candidates=candidates)
    if traces is not None and lines_of is not None:
        _write_traces(benched, traces, lines_of=lines_of)
    body = answer(benched)
    if json:
        emit_json(body)
    else:
        _print(body)


def measure(
    entry: KernelEntry, workloads: Sequence[Workload], *, seconds: float, candidates: int
) -> Benched:
    """Search, and judge what was found.

    Raises
    ------
    MissingDependency
        If times would mean nothing here: Triton without a GPU is interpreted.
    """
    toolchain = toolchain_for(entry.incumbent.language)
    environment = toolchain.environment()
    if not is_timed(environment):
        raise MissingDependency(
            "no GPU here: Triton would be interpreted, and its times mean nothing. `retuned "
            "validate` says whether a variant is right; --language cpu_cpp measures the processor"
        )
    shapes = plural(len(workloads), "shape")
    say(f"Measuring {entry.definition.name} at {shapes}, about {seconds:.0f} s.")
    plan = ExperimentPlan(
        id=f"bench-{secrets.token_hex(8)}",
        hypothesis="bench",
        definition=entry.definition.name,
        workloads=tuple(workloads),
        incumbent=entry.incumbent.digest,
        budget=Budget(
            max_candidates=candidates, max_seconds=seconds + toolchain.pace.start_s, finalists=1
        ),
        environment=environment.digest,
    )
    settings = LabSettings(final_s=_FINAL_SHARE * seconds)
    lab = open_lab(lab_folder(), solutions=[entry.incumbent], lab=settings)
    findings = []
    for found in lab.run(plan, known={}):
        findings.append(found)
        say(f"  {safe(found.solution.name, limit=80)}: {found.verdict.reason}")
    measured = any(found.verdict.shapes for found in findings)
    return Benched(
        entry=entry,
        workloads=tuple(workloads),
        findings=tuple(findings),
        environment=environment.model_dump(mode="json"),
        incumbent_us=() if measured else _alone(entry, workloads, settings=settings),
    )


def _alone(
    entry: KernelEntry, workloads: Sequence[Workload], *, settings: LabSettings
) -> tuple[float, ...]:
    """Time the incumbent beside its own clone."""
    found = []
    bay = LabResources(
        entry, workloads, incumbent=entry.incumbent, folder=lab_folder(), settings=settings
    )
    try:
        with bay.duel([bay.incumbent, bay.clone()]) as duel:
            for index, workload in enumerate(workloads):
                sets = bay.sets(index, bay.seeds)
                duel.prepare(workload.axes, sets, seed=bay.seeds.seed("bench", index))
                pairs = [duel.block(units_for(1, 0)) for _ in range(settings.search_blocks)]
                samples = samples_of(pairs, side=CANDIDATE, weight=1.0)
                found.append(float(np.median(samples.incumbent_us)))
    finally:
        bay.close()
    return tuple(found)


def answer(benched: Benched) -> dict[str, Any]:
    """Return the object that ``--json`` prints; fields are added, never renamed."""
    best = benched.best
    incumbent = benched.entry.incumbent
    reasons = Counter(str(found.verdict.reason) for found in benched.findings)
    return {
        "definition": benched.entry.definition.name,
        "language": str(incumbent.language),
        "environment": dict(benched.environment),
        "incumbent": {
            "name": incumbent.name,
            "params": dict(incumbent.params),
            "digest": incumbent.digest,
        },
        "candidates": len(benched.findings),
        "verdicts": dict(sorted(reasons.items())),
        "best": None if best is None else _found(best),
        "shapes": list(_shapes(benched)),
    }


def _shapes(benched: Benched) -> Iterator[dict[str, Any]]:
    """Yield what was measured by shape; nulls where no candidate came so far."""
    best = benched.best
    for each in best.verdict.shapes if best is not None else ():
        yield {
            "axes": dict(each.axes),
            "incumbent_us": each.incumbent_us,
            "best_us": each.candidate_us,
            "speedup": each.speedup.model_dump(mode="json"),
            "floor_us": each.floor_us,
        }
    toolchain = toolchain_for(benched.entry.incumbent.language)
    for workload, time_us in zip(benched.workloads, benched.incumbent_us, strict=False):
        floor_us = toolchain.floor_us(benched.entry.definition, workload.axes, parts=1)
        yield {
            "axes": dict(workload.axes),
            "incumbent_us": time_us,
            "best_us": None,
            "speedup": None,
            "floor_us": floor_us,
        }


def _found(best: Finding) -> dict[str, Any]:
    verdict = best.verdict
    return {
        "name": best.solution.name,
        "structure": best.solution.structure,
        "params": dict(best.solution.params),
        "digest": best.solution.digest,
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "detail": verdict.detail,
        "guard": verdict.guard.model_dump(mode="json"),
        "speedup": verdict.speedup.model_dump(mode="json") if verdict.speedup else None,
        "noise_floor_ratio": verdict.noise_floor_ratio,
    }


def _merit(found: Finding) -> tuple[bool, float]:
    speedup = found.verdict.speedup
    return found.verdict.status is Status.PROMOTE, speedup.lower if speedup else 0.0


def _language(name: str, said: str | None) -> Language:
    there = catalog.languages(name)
    if said is not None:
        if said not in [str(each) for each in Language]:
            raise UsageError(f"--language {said}: there are {', '.join(Language)}")
        return Language(said)
    if Language.TRITON in there:
        try:
            found = find_gpu()
        except MissingDependency:
            found = None
        if found is not None:
            return Language.TRITON
    return there[0] if there else Language.CPU_CPP


def _write_traces(benched: Benched, path: Path, *, lines_of: TraceFormat) -> None:
    toolchain = toolchain_for(benched.entry.incumbent.language)
    lines = list(
        lines_of(
            benched.findings,
            benched.workloads,
            definition=benched.entry.definition,
            environment=toolchain.environment(),
            measured_at=datetime.now(UTC).replace(microsecond=0),
        )
    )
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    say(f"{len(lines)} traces are in {path}")


def _print(body: Mapping[str, Any]) -> None:
    out = stdout()
    best = body["best"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in body["verdicts"].items())
    out.print(safe(f"{body['candidates']} candidates: {reasons or 'no time for one'}", limit=400))
    table = Table(box=None, pad_edge=False)
    for column in ("shape", "incumbent us", "best us", "speedup", "interval", "floor us"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for each in body["shapes"]:
        speedup, floor = each["speedup"], each["floor_us"]
        table.add_row(
            cell(", ".join(f"{name}={length}" for name, length in each["axes"].items())),
            f"{each['incumbent_us']:.2f}",
            f"{each['best_us']:.2f}" if speedup else "-",
            f"{speedup['point']:.3f}x" if speedup else "-",
            f"{speedup['lower']:.3f} to {speedup['upper']:.3f}" if speedup else "-",
            f"{floor:.2f}" if floor else "unknown",
        )
    out.print(table)
    out.print(safe(f"incumbent {body['incumbent']['name']}", limit=300), soft_wrap=True)
    if best is not None:
        out.print(safe(f"best      {best['name']}", limit=300), soft_wrap=True)
        text = f"{best['status']}: {best['reason']}; {best['detail']}"
        out.print(safe(text, limit=1000), soft_wrap=True)
    if best is None or best["status"] != Status.PROMOTE:
        out.print("Nothing that was tried is proven to be faster; the incumbent stays.")
