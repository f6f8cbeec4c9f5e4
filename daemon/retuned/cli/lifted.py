"""``retuned kernels lifted``: which live kernels can be tuned, which cannot, and why."""

from __future__ import annotations

from typing import Any

from retuned.catalog.own import OwnDefinition
from retuned.cli.output import JsonFlag, emit_json, safe, stdout
from retuned.cli.state import ConfigOption, StateOption, desk
from retuned.contract import AxisConst
from retuned.lifting.kept import LiftedRecord
from retuned.lifting.lift import SkippedKernel
from retuned.local.lifting import lifted, refused

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
