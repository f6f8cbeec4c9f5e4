"""``retuned kernels``: which kernels can be tuned, their priors, and their speed here.

Priors are what experiments on this machine showed; ``retuned kernels show`` prints them.

``retuned kernels lifted``: which live kernels can be tuned, which cannot, and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned import catalog
from retuned.catalog import Family, KernelEntry
from retuned.catalog.user import OwnDefinition
from retuned.cli import kernels_bench
from retuned.cli.kernels_bench import DefinitionFileOption, learn, named
from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.session import ConfigOption, StateOption, desk
from retuned.contract import AxisConst, TensorSpec
from retuned.errors import RetunedError, UsageError
from retuned.lab.generators.priors import Outcomes, Priors, StructurePrior
from retuned.lab.generators.spaces import Grid
from retuned.lifting.lift import SkippedKernel
from retuned.lifting.store_records import LiftedRecord
from retuned.ports import Store
from retuned.settings import load_settings
from retuned.standalone.findings import LabEnvironment, arch_of, learned, of_family, stored_findings
from retuned.standalone.kernels import lifted, refused
from retuned.store.sqlite import DATABASE, SqliteStore

_MOST_POINTS = 5


def believed(config: Path | None, name: str) -> list[dict[str, Any]]:
    """Return one entry per language in which kernels of the operator were tried here.

    Empty where no state exists or it cannot be read: the rest of the description does not need it.
    """
    folder = load_settings(config).state_dir
    if not (folder / DATABASE).is_file():
        return []
    try:
        store = SqliteStore(folder)
    except RetunedError as error:
        say(f"the store of priors cannot be opened: {error}")
        return []
    try:
        return [_entry(each) for each in _priors(store, name, now=datetime.now(UTC))]
    except RetunedError as error:
        say(f"the priors cannot be read: {error}")
        return []
    finally:
        store.close()


def believed_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the priors as text."""
    for entry in entries:
        where = f"{entry['language']} on {entry['arch'] or 'this machine'}"
        yield (
            f"  priors on {where}: {entry['findings']} variants of {entry['experiments']} "
            f"experiments on {entry['family']}"
        )
        for each in entry["structures"]:
            failed = "; ".join(
                f"{each[name]:.0%} {name}"
                for name in ("unbuilt", "starved", "wrong")
                if each[name] > 0.0
            )
            text = f"    {each['structure']}: {each['gain_ratio']:.2f}x of incumbents"
            text += f" in {each['tried']} tries"
            yield text + (f" ({failed})" if failed else "")
        for each in entry["points"]:
            params = " ".join(f"{name}={value}" for name, value in each["params"].items())
            yield f"    best known: {each['structure']} {params} ({each['tried']} tries)"
        for each in entry["generators"]:
            yield (
                f"    {each['generator']}: {each['advantage_ratio']:.2f} times the average gain a "
                f"second in {each['turns']:.0f} turns"
            )


def _priors(store: Store, name: str, *, now: datetime) -> Iterator[Priors]:
    """Yield the priors, by language; of the place where the newest experiment ran."""
    family = _family(name)
    done = of_family(store, family, family=_family)
    if not done or not family:
        return
    environment = str(done[-1].body.get("environment", ""))
    newest = next(iter(stored_findings(store, done[-1].id)), None)
    arch = arch_of(store, newest.verdict.evidence) if newest is not None else ""
    for language in catalog.languages(name):
        place = LabEnvironment(language=str(language), environment=environment, arch=arch)
        priors = learned(store, done, family=family, place=place, now=now)
        if priors.known:
            yield priors


def _family(definition: str) -> str:
    try:
        return catalog.get(definition).definition.op_type
    except UsageError:
        return ""


def _entry(priors: Priors) -> dict[str, Any]:
    return {
        "family": priors.family,
        "language": priors.language,
        "arch": priors.arch,
        "experiments": priors.experiments,
        "findings": priors.findings,
        "structures": [_structure(each) for each in priors.structures],
        "points": [
            {"structure": each.structure, "params": dict(each.params), "tried": each.tried}
            for each in priors.points[:_MOST_POINTS]
        ],
        "generators": [
            {
                "generator": each.generator,
                "advantage_ratio": round(each.advantage, 4),
                "turns": round(each.turns, 2),
            }
            for each in priors.generators
        ],
    }


def _structure(each: StructurePrior) -> dict[str, Any]:
    return {
        "structure": each.structure,
        "gain_ratio": round(math.exp(each.gain), 4),
        **_outcomes(each.outcomes),
        "values": [
            {
                "name": value.name,
                "value": value.value,
                "effect_ratio": round(math.exp(value.effect), 4),
                **_outcomes(value.outcomes),
            }
            for value in each.values
        ],
    }


def _outcomes(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "tried": outcomes.tried,
        "weight": round(outcomes.weight, 4),
        "unbuilt": round(outcomes.unbuilt, 4),
        "starved": round(outcomes.starved, 4),
        "wrong": round(outcomes.wrong, 4),
    }


_HINTS = {
    "needs-more-launches": "it is looked at again as soon as launches of other lengths are seen",
    "index-bounds-unknown": "docs/lifting.md says how",
    "bounds-unknown": "correct the setting kernel_bounds",
}

_NONE_SEEN = (
    "No live kernel was seen yet. A running `retuned run` asks attached servers for them, where "
    "the setting lab_language is triton, or auto on a machine with a GPU."
)


def list_lifted(
    config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False
) -> None:
    """List live Triton kernels that became definitions, and those that did not, and why."""
    with desk(config, state_dir) as open_desk:
        found = list(lifted(open_desk.store))
        kept = list(refused(open_desk.store))
    if json:
        emit_json(
            {
                "lifted": [_told(record) for record in found],
                "refused": [_refusal(each) for each in kept],
            }
        )
        return
    _print_lifted(found, kept)


def _told(record: LiftedRecord) -> dict[str, Any]:
    own = record.own
    definition = own.definition
    variant = own.variants[0]
    return {
        "name": own.name,
        "kernel": own.lifted.kernel if own.lifted is not None else "",
        "axes": {
            name: axis.value if isinstance(axis, AxisConst) else None
            for name, axis in definition.axes.items()
        },
        "inputs": list(definition.inputs),
        "outputs": list(definition.outputs),
        "in_place": dict(definition.updated),
        "grid": list(variant.grid),
        "incumbent": dict(variant.incumbent or {}),
        "choices": {name: list(values) for name, values in variant.params.items()},
        "oracle": "incumbent" if own.judged_by_incumbent else "reference",
        "notes": list(own.lifted.notes) if own.lifted is not None else [],
        "shapes": [
            {"axes": workload.axes, "launches": int(workload.weight)}
            for workload in record.workloads
        ],
    }


def _refusal(each: SkippedKernel) -> dict[str, Any]:
    return {
        "kernel": each.kernel,
        "reason": each.reason,
        "detail": each.detail,
        "launches": each.launches,
    }


def _print_lifted(found: list[LiftedRecord], kept: list[SkippedKernel]) -> None:
    out = stdout()
    if not found and not kept:
        out.print(_NONE_SEEN, soft_wrap=True)
        return
    for record in found:
        own = record.own
        kernel = own.lifted.kernel if own.lifted is not None else ""
        out.print(safe(f"{own.name}  {kernel}", limit=300), soft_wrap=True)
        out.print(safe(f"  {_shape(own)}", limit=400), soft_wrap=True)
        choices = ", ".join(
            f"{name} {'|'.join(map(str, values))}"
            for name, values in own.variants[0].params.items()
        )
        out.print(safe(f"  to try: {choices}", limit=400), soft_wrap=True)
    for each in kept:
        out.print(safe(f"not lifted: {each.kernel}", limit=300), soft_wrap=True)
        hint = f"; {_HINTS[each.reason]}" if each.reason in _HINTS else ""
        text = f"  {each.reason}: {each.detail}{hint}"
        out.print(safe(text, limit=600), soft_wrap=True)
    out.print(f"{len(found)} lifted, {len(kept)} not.")


def _shape(own: OwnDefinition) -> str:
    definition, variant = own.definition, own.variants[0]
    inputs = ", ".join(f"{n}[{', '.join(s.shape)}]" for n, s in definition.inputs.items())
    outputs = ", ".join(
        f"{n}[{', '.join(s.shape)}]" + (f" over {s.updates}" if s.updates else "")
        for n, s in definition.outputs.items()
    )
    oracle = "its own outputs" if own.judged_by_incumbent else "a reference"
    return f"{inputs} -> {outputs}, grid ({', '.join(variant.grid)}), judged by {oracle}"


app = typer.Typer(
    help="Kernels that can be tuned: the catalog's and your own.", no_args_is_help=True
)
app.command("bench")(kernels_bench.bench)
app.command("lifted")(list_lifted)

NameArgument = Annotated[
    str, typer.Argument(help="A definition such as rmsnorm_h1024, or a YAML file of your own.")
]


@app.callback()
def kernels() -> None:
    """Kernels that can be tuned: the catalog's and your own."""


@app.command("list")
def list_kernels(
    config: ConfigOption = None,
    definition_file: DefinitionFileOption = None,
    json: JsonFlag = False,
) -> None:
    """List the catalog's families and your own definitions."""
    learn(config, definition_file or ())
    rows = [
        {
            "name": family.template,
            "op_type": family.op_type,
            "description": family.description,
            "origin": "catalog",
            "languages": [str(language) for language in family.languages],
        }
        for family in catalog.families()
    ]
    rows += [
        {
            "name": own.name,
            "op_type": own.definition.op_type,
            "description": own.definition.description,
            "origin": "own",
            "languages": [str(language) for language in own.languages],
        }
        for own in catalog.own_definitions()
    ]
    if json:
        emit_json({"kernels": rows})
        return
    out = stdout()
    names = max(len(str(row["name"])) for row in rows)
    words = max(len(", ".join(row["languages"])) for row in rows)
    for row in rows:
        languages = ", ".join(row["languages"])
        text = f"{row['name']:{names}}  {languages:{words}}  {row['description']}"
        out.print(safe(text, limit=400), soft_wrap=True)
    out.print("Braces stand for lengths: rmsnorm_h{H} is rmsnorm_h1024, rmsnorm_h4096 and so on.")


@app.command()
def show(
    name: NameArgument,
    reference: Annotated[bool, typer.Option(help="Print the reference too.")] = False,
    config: ConfigOption = None,
    definition_file: DefinitionFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Show what a kernel computes, which variants exist, and its priors from experiments here."""
    learn(config, definition_file or ())
    body = description(named(_whole(name)))
    body["believed"] = believed(config, body["name"])
    if json:
        emit_json(body)
    else:
        _print(body, reference=reference)


def description(name: str) -> dict[str, Any]:
    """Return everything about a definition as JSON data.

    Raises
    ------
    UsageError
        If the catalog has no kernel of that name.
    """
    entry = catalog.get(name)
    definition = entry.definition
    return {
        "name": definition.name,
        "op_type": definition.op_type,
        "description": definition.description,
        "origin": "own" if catalog.own_definition(name) is not None else "catalog",
        "axes": {
            axis: {"length": each.value}
            if isinstance(each, AxisConst)
            else {"length": None, "description": each.description}
            for axis, each in definition.axes.items()
        },
        "inputs": _tensors(definition.inputs),
        "outputs": _tensors(definition.outputs),
        "families": list(entry.families),
        "languages": {
            str(language): _language(catalog.get(name, language=language))
            for language in catalog.languages(name)
        },
        "reference": definition.reference,
    }


def _whole(name: str) -> str:
    """Refuse a template: its braces want lengths.

    Raises
    ------
    UsageError
        With an example.
    """
    if any(family.parse(name) is not None for family in catalog.families()):
        return name
    for family in catalog.families():
        if name in (family.template, family.op_type):
            raise UsageError(f"'{name}' is a family; name one of it{_example(family)}")
    return name


def _example(family: Family) -> str:
    for length in (1024, 64, 8):
        example = family.name(dict.fromkeys(family.constants, length))
        try:
            catalog.get(example)
        except UsageError:  # not every length will do for every family
            continue
        return f", such as {example}"
    return ""


def _tensors(tensors: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {
        name: {"shape": list(spec.shape), "dtype": str(spec.dtype), "constant": spec.constant}
        for name, spec in tensors.items()
    }


def _language(entry: KernelEntry) -> dict[str, Any]:
    every = Grid(entry, cores=1 << 30).points
    return {
        "incumbent": {
            "name": entry.incumbent.name,
            "structure": entry.incumbent.structure,
            "params": dict(entry.incumbent.params),
            "digest": entry.incumbent.digest,
        },
        "structures": [
            {
                "name": space.name,
                "entry": space.entry,
                "grid": list(space.grid),
                "steps": [step.model_dump(mode="json") for step in space.steps],
                "scratch": [each.model_dump(mode="json") for each in space.scratch],
                "params": {name: list(choices) for name, choices in space.params.items()},
                "points": sum(point.structure == space.name for point in every),
            }
            for space in entry.spaces
        ],
    }


def _print(body: Mapping[str, Any], *, reference: bool) -> None:
    lines = [f"{body['name']} ({body['op_type']}, {body['origin']}): {body['description']}"]
    for axis, each in body["axes"].items():
        told = each["length"] if each["length"] is not None else each["description"] or "variable"
        lines.append(f"  axis   {axis}: {told}")
    for side in ("inputs", "outputs"):
        for name, each in body[side].items():
            weight = ", a weight" if each["constant"] else ""
            shape = ", ".join(each["shape"])
            lines.append(f"  {side[:-1]:6} {name}[{shape}] {each['dtype']}{weight}")
    lines.append(f"  tried with {', '.join(body['families'])}")
    for language, each in body["languages"].items():
        lines.append(f"  {language}: incumbent {each['incumbent']['name']}")
        for structure in each["structures"]:
            choices = "; ".join(
                f"{name} {' '.join(map(str, values))}"
                for name, values in structure["params"].items()
            )
            text = f"    {structure['name']}: {structure['points']} points"
            lines.append(f"{text} ({choices})" if choices else text)
    lines += believed_lines(body["believed"])
    out = stdout()
    for line in lines:
        out.print(safe(line, limit=1000), soft_wrap=True)
    if reference:
        for line in body["reference"].splitlines():
            out.print(safe(f"    {line}", limit=1000), soft_wrap=True)
