"""``retuned kernels``: what can be tuned, what is known of it, how fast it is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from retuned import catalog
from retuned.catalog import Family, KernelEntry
from retuned.cli import kernels_bench, kernels_exchange
from retuned.cli.kernels_believed import believed, believed_lines
from retuned.cli.lifted import list_lifted
from retuned.cli.output import JsonFlag, emit_json, safe, stdout
from retuned.cli.shapes import DefinitionFileOption, learn, named
from retuned.cli.state import ConfigOption
from retuned.contract import AxisConst, TensorSpec
from retuned.errors import UsageError
from retuned.lab.generators.spaces import Grid

app = typer.Typer(
    help="Kernels that can be tuned: the catalog's and your own.", no_args_is_help=True
)
app.command("bench")(kernels_bench.bench)
app.command("import")(kernels_exchange.import_file)
app.command("export")(kernels_exchange.export)
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
    """Say what a kernel computes, what may run, and what experiments here make believe of it."""
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
        If there is none of that name.
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
