"""``retuned validate CANDIDATE``: one candidate against the incumbent, with the whole protocol.

``retuned policy check FILE``: is a gate policy valid, what is wrong, what has no effect here?
``retuned policy explain FILE``: what it means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, ValidationError

from retuned import catalog
from retuned.cli.kernels_bench import lab_folder, learn, named, shape_of_text, workloads_for
from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.render import examine, exit_code, policies_body, print_policies
from retuned.contract import (
    Dim,
    Language,
    Name,
    Record,
    Scratch,
    Solution,
    SourceFile,
    Step,
    TrustClass,
    Workload,
)
from retuned.errors import HarnessError, UnreadableInput, UsageError
from retuned.experiment.__main__ import open_lab
from retuned.lab.generators.fixed import GivenGenerator
from retuned.lab.harness.sanity import DISAGREES, MEANINGLESS, require_meaning, telling_shape
from retuned.lab.reference.oracle import FAILED
from retuned.lab.resources import LabSettings
from retuned.lab.toolchain import environment_of, is_timed, toolchain_for
from retuned.ports import Finding
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.gate.description import (
    explain_policy,
    live_proof_words,
    own_overhead_words,
)
from retuned.stages.verdict import Reason, Status, Verdict
from retuned.store.policy_files import load_policy
from retuned.strict_yaml import NotPlainYaml, parse, read_text
from retuned.text import plural, print_table

_MAX_BYTES = 2_000_000
_LANGUAGES = {".py": Language.TRITON, ".cu": Language.GPU_CPP, ".hip": Language.GPU_CPP}
"""Language of a source file by how its name ends; C++ for the CPU otherwise."""
_HEADER = re.compile(r"\A\s*(//|#) ---[ \t]*\n((?:\1[^\n]*\n)*?)\1 ---[ \t]*\n")


class Header(Record):
    """What a candidate says in its first lines, as YAML between ``// ---`` (``.py``: ``# ---``)."""

    definition: Name | None = None
    """What it computes; ``--definition`` is stronger."""
    entry: str = "kernel"
    """Symbol to launch."""
    params: dict[Name, int | str] = Field(default_factory=dict)
    """Compile-time parameters."""
    layouts: dict[Name, str] = Field(default_factory=dict)
    """Layout of constant inputs."""
    scratch_bytes: int = Field(default=0, ge=0)
    """Workspace per part."""
    grid: tuple[str, ...] = ()
    """Programs per dimension of a Triton launch, such as ``cdiv(M, BLOCK_M)``."""
    steps: tuple[Step, ...] = ()
    """Launches of a Triton variant that needs several; then it has neither `entry` nor `grid`."""
    scratch: tuple[Scratch, ...] = ()
    """Memory that the steps share."""
    shapes: tuple[dict[Name, Dim], ...] = ()
    """Shapes to validate at; ``--at`` is stronger."""


def validate(
    candidate: Annotated[
        Path,
        typer.Argument(
            help="A .cpp file, or a .cu or .hip file for GPUs, with a header between two lines "
            "`// ---`; a Triton .py file with one between `# ---`; or a .json."
        ),
    ],
    definition: Annotated[
        str | None,
        typer.Option(
            help="What it computes: a name such as rmsnorm_h1024, or a definition file of your own "
            "(.yaml)."
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="A shape, such as M=64 or T=1,S=512; several times for several shapes."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=5.0, help="Time to spend; more narrows the interval.")
    ] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Prove or refute a candidate: contract, memory, numerics, speed. Exit code 0 if it wins."""
    learn(None)
    name = named(definition) if definition is not None else None
    solution, shapes = read_candidate(candidate, definition=name)
    entry = catalog.get(solution.definition, language=solution.language)
    timed = is_timed(environment_of(solution.language))
    if not timed and solution.language is Language.TRITON:
        say(
            "No GPU here: Triton is interpreted. What is wrong is found; times mean nothing, and "
            "nothing is promoted."
        )
    asked = [shape_of_text(text, option="--at") for text in at or ()]
    workloads = workloads_for(entry.definition, asked or list(shapes))
    say(
        f"Validating {solution.name} against {entry.incumbent.name} at "
        f"{plural(len(workloads), 'shape')}, about {seconds:.0f} s."
    )
    with _own_definition(entry, where=definition or solution.definition) as own:
        if own:  # before anything is compiled; the catalog's are known to be worth it
            require_meaning(entry, telling_shape(entry, [w.axes for w in workloads]), seed=1)
        found = _measure(solution, entry, workloads, seconds=seconds)
    verdict = found.verdict
    if not timed and verdict.status is Status.PROMOTE:
        verdict = _without_times(verdict)
    kept = lab_folder() / "evidence" / f"{(verdict.evidence or '').removeprefix('sha256:')}.json"
    file = str(kept) if kept.is_file() else None
    if as_json:
        emit_json({**answer(verdict), "timed": timed, "evidence_file": file})
    else:
        _print(verdict, file=file)
    raise typer.Exit(0 if verdict.status is Status.PROMOTE else 1)


@contextmanager
def _own_definition(entry: catalog.KernelEntry, *, where: str) -> Iterator[bool]:
    """Yield whether the definition is a user's; then its faults are an input's, not Retuned's.

    Raises
    ------
    UnreadableInput
        If its reference fails, proves nothing, or disagrees with its incumbent.
    """
    own = catalog.own_definition(entry.definition.name)
    try:
        yield own is not None and not own.judged_by_incumbent
    except HarnessError as error:
        if own is None or error.code not in (FAILED, MEANINGLESS, DISAGREES):
            raise
        raise UnreadableInput(error.code, where=where, message=str(error)) from error


def _without_times(verdict: Verdict) -> Verdict:
    """Return the verdict without an interpreter's times: no gate found a fault."""
    return verdict.model_copy(
        update={
            "status": Status.AMBIGUOUS,
            "reason": Reason.TOO_FEW_SAMPLES,
            "detail": "right as far as it was tried; interpreted here, so that times mean nothing",
            "speedup": None,
            "shapes": (),
        }
    )


def read_candidate(
    path: Path, *, definition: str | None
) -> tuple[Solution, tuple[dict[str, int], ...]]:
    """Read a candidate and the shapes it names.

    Raises
    ------
    UnreadableInput
        If the file is absent, too long, not text, or not a candidate.
    UsageError
        If neither `definition` nor the file's header names a definition.
    """
    text = read_text(path, max_bytes=_MAX_BYTES)
    if path.suffix == ".json":
        return _from_json(text, path, definition), ()
    header = _header(text, path)
    name = definition or header.definition
    if name is None:
        raise UsageError(f"{path}: say what it computes with --definition, or in its header")
    language = _LANGUAGES.get(path.suffix, Language.CPU_CPP)
    file_name = f"candidate{path.suffix if path.suffix in _LANGUAGES else '.cpp'}"
    body: dict[str, Any] = {
        "name": re.sub(r"[^a-zA-Z0-9_.-]", "_", path.stem)[:100] or "candidate",
        "definition": name,
        "language": language,
        "entry": header.steps[0].entry if header.steps else header.entry,
        "sources": (SourceFile(path=file_name, content=text),),
        "structure": "given",
        "params": header.params,
        "layouts": header.layouts,
        "scratch_bytes": header.scratch_bytes,
        "grid": header.grid,
        "steps": header.steps,
        "scratch": header.scratch,
        "trust": TrustClass.GENERATED,
        "author": "validate",
    }
    return _validated(body, path), header.shapes


def answer(verdict: Verdict) -> dict[str, Any]:
    """Return the object that ``--json`` prints; fields are added, never renamed."""
    return {
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "gate": verdict.gate,
        "speedup": verdict.speedup.model_dump(mode="json") if verdict.speedup else None,
        "evidence": verdict.evidence,
        "detail": verdict.detail,
        "guard": verdict.guard.model_dump(mode="json"),
        "noise_floor_ratio": verdict.noise_floor_ratio,
        "error_ratio": verdict.error_ratio,
        "candidate": verdict.candidate,
        "incumbent": verdict.incumbent,
        "shapes": [shape.model_dump(mode="json") for shape in verdict.shapes],
    }


def _measure(
    solution: Solution,
    entry: catalog.KernelEntry,
    workloads: tuple[Workload, ...],
    *,
    seconds: float,
) -> Finding:
    if solution.digest == entry.incumbent.digest:
        raise UsageError("this is the incumbent itself; there is nothing to compare")
    toolchain = toolchain_for(solution.language)
    plan = ExperimentPlan(
        id=f"validate-{solution.digest[7:19]}",
        hypothesis="given",
        definition=solution.definition,
        workloads=workloads,
        incumbent=entry.incumbent.digest,
        generators=("given",),
        budget=Budget(max_candidates=1, max_seconds=seconds + toolchain.pace.start_s, finalists=1),
        environment=toolchain.environment().digest,
    )
    lab = open_lab(
        lab_folder(),
        generators={"given": lambda _plan: GivenGenerator([solution])},
        lab=LabSettings(final_s=0.5 * seconds),
    )
    found = list(lab.run(plan, known={}))
    if not found:
        raise HarnessError("the time was over before it could be tried; give more with --seconds")
    return found[0]


def _header(text: str, path: Path) -> Header:
    match = _HEADER.match(text)
    if match is None:
        return Header()
    mark, block = match.groups()
    lines = [line.removeprefix(mark).removeprefix(" ") for line in block.splitlines()]
    before = "\n" * text.count("\n", 0, match.start(2))  # so that lines are those of the file
    try:
        return Header.model_validate(parse(before + "\n".join(lines), path=path).data or {})
    except NotPlainYaml as error:
        raise UnreadableInput("bad-header", where=error.where, message=error.message) from None
    except ValidationError as error:
        raise UnreadableInput(
            "bad-header", where=str(path), message=_first_problem(error)
        ) from None


def _from_json(text: str, path: Path, definition: str | None) -> Solution:
    try:
        solution = Solution.model_validate_json(text)
    except ValidationError as error:
        raise UnreadableInput(
            "bad-solution", where=str(path), message=_first_problem(error)
        ) from None
    if definition is not None and definition != solution.definition:
        raise UsageError(f"{path} is for {solution.definition}, not {definition}")
    # A file from outside may call itself what it likes; trust is not its to give.
    return solution.model_copy(update={"trust": TrustClass.GENERATED})


def _validated(body: dict[str, Any], path: Path) -> Solution:
    try:
        return Solution.model_validate(body)
    except ValidationError as error:
        raise UnreadableInput(
            "bad-header", where=str(path), message=_first_problem(error)
        ) from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "header"
    return f"{place}: {first['msg']}"


def _print(verdict: Verdict, *, file: str | None) -> None:
    console = stdout()
    console.print(f"{verdict.status}: {verdict.reason} at gate {verdict.gate}")
    console.print(safe(verdict.detail, limit=2000))
    for shape in verdict.shapes:
        axes = ", ".join(f"{name}={length}" for name, length in shape.axes.items())
        speedup = shape.speedup
        console.print(
            f"  {axes}: {shape.incumbent_us:.1f} us -> {shape.candidate_us:.1f} us, "
            f"{speedup.point:.3f}x [{speedup.lower:.3f}, {speedup.upper:.3f}]"
        )
    if file is not None:
        console.print(safe(f"  evidence, not signed: {file}", limit=4000), soft_wrap=True)


policy_app = typer.Typer(help="Gate policies.", no_args_is_help=True)


@policy_app.callback()
def policy() -> None:
    """Gate policies."""


@policy_app.command("check")
def check_policy(
    file: Annotated[Path, typer.Argument(help="Policy in YAML, or a folder of them.")],
    json: JsonFlag = False,
) -> None:
    """Check a policy, or all of a folder, and list the fields that one machine does not enforce.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    found = examine(file, one_machine=True)
    if json:
        emit_json(policies_body(found))
    else:
        print_policies(found)
    raise typer.Exit(exit_code(found))


@policy_app.command("explain")
def explain(
    file: Annotated[Path, typer.Argument(help="Policy in YAML.")],
    all: Annotated[bool, typer.Option("--all", help="Fields with their default, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Explain a policy: its fields in words, and the result of each verdict of a live proof.

    Exit 0 valid, 1 invalid, 3 unreadable.
    """
    policy = load_policy(file)
    fields = [each for each in explain_policy(policy) if all or each.given]
    sentences = live_proof_words(policy.spec.live_proof)
    if json:
        emit_json(
            {
                "policy": policy.metadata.name,
                "fields": [asdict(each) for each in fields],
                "live_proof": sentences,
                "own_overhead": own_overhead_words(policy.spec.live_proof),
            }
        )
        return
    print_table(
        ("field", "value", "", "meaning"),
        [(f.path, f.value, "" if f.given else "default", f.meaning) for f in fields],
    )
    stdout().print("")
    stdout().print("Live proof:")
    for sentence in (*sentences, own_overhead_words(policy.spec.live_proof)):
        stdout().print(safe(f"  {sentence}", limit=1000), soft_wrap=True)
