"""Variant launches for nodes of a graph.

A node replays with the addresses of its capture, so a variant can only get these. The arguments
prove that the node is the recorded launch: every input and output tensor of the slot must be among
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retuned.runtime.artifacts.loaded import LoadedVariant
from retuned.runtime.core.active_order import Variant
from retuned.runtime.graphs.amd_metadata import object_layout
from retuned.runtime.graphs.calls import GraphCalls
from retuned.runtime.graphs.launch_notes import Note
from retuned.runtime.graphs.node_swap import Change
from retuned.runtime.graphs.structures import KernelParams, Layout
from retuned.runtime.native.gpu_variant import GpuVariant
from retuned.runtime.schema import Refused
from retuned.runtime.triton.launch import TritonKernel
from retuned.runtime.triton.variant import TritonVariant

_ALIGN = 16
_POINTER_BYTES = 8
MAX_SCRATCH_BYTES = 64 << 20
"""Workspace of one node; each has a separate one, since two of them may run at the same time."""


def change_of(
    variant: Variant, note: Note, *, original: KernelParams, calls: GraphCalls, mark: str
) -> Change:
    """Return what a node must launch.

    Parameters
    ----------
    variant
        Loaded; compiled for the lengths of the note.

    Raises
    ------
    Refused
        ``not-a-gpu``, ``several-launches``, ``not-compiled``, ``weight-not-packed``,
        ``arguments-unmatched``, ``tensor-kind``, ``scratch-too-large`` and others.
    """
    if not isinstance(variant, GpuVariant | TritonVariant):
        raise Refused("not-a-gpu", detail="only GPU C++ and Triton variants run in graphs")
    _check_tensors(variant, note, original)
    tensors, keeps = _addresses(variant, note)
    values = tuple(variant.spec.lengths(note.key).values())
    if isinstance(variant, GpuVariant):
        change = _gpu_change(variant, values, tensors=tensors, keeps=keeps, mark=mark)
        if calls.vendor == "amd":  # the contract: pointers and whole numbers of 64 bits
            count = len(change.arguments or ())
            calls.learn(change.function, [(8 * place, 8) for place in range(count)])
        return change
    return _triton_change(variant, values, tensors=tensors, keeps=keeps, mark=mark, calls=calls)


def triton_launch(compiled: Any) -> tuple[int, tuple[int, int, int], int]:  # noqa: ANN401 - CompiledKernel
    """Return function, block and shared memory of a kernel that Triton has compiled and loaded.

    Raises
    ------
    Refused
        ``not-compiled``, or ``launch-attribute`` for a launch that a changed node cannot be.
    """
    facts = compiled.metadata
    words = ("num_ctas", "launch_cooperative_grid", "launch_pdl")
    odd = [word for word in words if int(getattr(facts, word, 0) or 0) > (word == "num_ctas")]
    if odd:
        raise Refused("launch-attribute", detail=f"the variant is launched with {odd}")
    if not compiled.function:
        raise Refused("not-compiled", detail="the variant's code is not loaded")
    warp = getattr(facts, "warp_size", None) or facts.target.warp_size
    return int(compiled.function), (int(facts.num_warps) * int(warp), 1, 1), int(facts.shared)


def learn_layout(calls: GraphCalls, compiled: Any) -> None:  # noqa: ANN401 - CompiledKernel
    """Store the layout of a compiled kernel's arguments, if the driver cannot return it.

    Raises
    ------
    Refused
        ``layout-unknown``.
    """
    if calls.vendor == "amd":
        layout = object_layout(bytes(compiled.kernel), str(compiled.metadata.name))
        calls.learn(int(compiled.function), layout)


def null_scratch(compiled: Any, layout: Layout, given: int) -> list[bytes]:  # noqa: ANN401 - CompiledKernel
    """Return the arguments after those of a kernel's source: Triton's own workspaces, all null.

    Raises
    ------
    Refused
        ``scratch-needed`` if the kernel needs one.
    """
    facts = compiled.metadata
    if any(getattr(facts, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        raise Refused("scratch-needed", detail="the variant needs a workspace from Triton")
    return [bytes(_POINTER_BYTES)] * max(0, len(layout) - given)


def _check_tensors(variant: LoadedVariant, note: Note, original: KernelParams) -> None:
    spec, lengths = variant.spec, variant.spec.lengths(note.key)
    wanted, found = (*spec.inputs, *spec.outputs), (*note.inputs, *note.outputs)
    if len(wanted) != len(found):
        raise Refused("tensor-kind", detail=f"{len(found)} tensors noted, {len(wanted)} defined")
    device = variant.device.index or 0
    for tensor, seen in zip(wanted, found, strict=True):
        shape = tuple(lengths[axis] for axis in tensor.shape)
        same = (seen.shape, seen.dtype, seen.device, seen.dense) == (
            *(shape, tensor.dtype, device, True),
        )
        if not same or seen.address % _ALIGN:
            raise Refused("tensor-kind", detail=f"a variant does not accept this '{tensor.name}'")
    numbers = {
        int.from_bytes(value, "little")
        for value in original.arguments
        if len(value) == _POINTER_BYTES
    }
    for tensor, seen in zip(wanted, found, strict=True):
        if seen.address not in numbers:
            detail = f"the node has no argument '{tensor.name}': it is another launch"
            raise Refused("arguments-unmatched", detail=detail)


def _addresses(variant: LoadedVariant, note: Note) -> tuple[list[int], list[Any]]:
    """Return the address of every tensor, with weights in the layouts that the variant needs."""
    addresses = [seen.address for seen in (*note.inputs, *note.outputs)]
    keeps: list[Any] = [variant]
    weights = dict(note.weights)
    for index, layout in variant.repacked:
        weight = weights[index]() if index in weights else None
        packed = variant.packed.find(weight, layout) if weight is not None else None
        if packed is None:
            raise Refused("weight-not-packed", detail=f"input {index} is not in layout {layout}")
        addresses[index] = int(packed.data_ptr())
        keeps.append(packed)
    return addresses, keeps


def _gpu_change(
    variant: GpuVariant,
    values: Sequence[int],
    *,
    tensors: list[int],
    keeps: list[Any],
    mark: str,
) -> Change:
    kernel = variant.kernel
    if not kernel.handle:
        raise Refused("unloaded", detail="the object has been unloaded")
    if variant.scratch_floats:
        tensors = [*tensors, _scratch(variant.scratch_floats, variant.device, keeps)]
    numbers = [*tensors, *values]
    return Change(
        mark=mark,
        function=kernel.handle,
        grid=kernel.grid_at(values),
        block=kernel.shape.block,
        shared_bytes=kernel.shape.shared_bytes,
        arguments=tuple(number.to_bytes(8, "little") for number in numbers),
        keeps=tuple(keeps),
    )


def _triton_change(
    variant: TritonVariant,
    values: Sequence[int],
    *,
    tensors: list[int],
    keeps: list[Any],
    mark: str,
    calls: GraphCalls,
) -> Change:
    steps = variant.steps
    if len(steps.kernels) != 1 or steps.plan.scratch:
        detail = f"it launches {len(steps.kernels)} kernels; one node cannot become several"
        raise Refused("several-launches", detail=detail)
    kernel = steps.kernels[0]
    compiled = kernel.compiled_at(values, device=variant.device)
    if compiled is None:
        variant.runner(tuple(values))  # queues it for compiling, off the request path
        raise Refused("not-compiled", detail=f"nothing is compiled yet for {tuple(values)}")
    function, block, shared_bytes = triton_launch(compiled)
    learn_layout(calls, compiled)
    arguments = _triton_arguments(kernel, values, tensors=tensors, device=variant.device,
                                  keeps=keeps)  # fmt: skip
    arguments += null_scratch(compiled, calls.layout(function), len(arguments))
    return Change(
        mark=mark,
        function=function,
        grid=kernel.binding.grid_at(values),
        block=block,
        shared_bytes=shared_bytes,
        arguments=tuple(arguments),
        keeps=(*keeps, compiled),
    )


def _triton_arguments(
    kernel: TritonKernel,
    values: Sequence[int],
    *,
    tensors: Sequence[int],
    device: Any,  # noqa: ANN401 - torch.device
    keeps: list[Any],
) -> list[bytes]:
    binding = kernel.binding
    template, places = binding.template(values)
    holes = dict(places)
    arguments: list[bytes] = []
    for place, parameter in enumerate(binding.parameters):
        if parameter.constexpr:
            continue
        if place in holes:
            arguments.append(tensors[holes[place]].to_bytes(_POINTER_BYTES, "little"))
        elif place == binding.scratch_at:
            at = _scratch(kernel.scratch_floats, device, keeps)
            arguments.append(at.to_bytes(_POINTER_BYTES, "little"))
        else:
            length = template[place]
            assert isinstance(length, int), "run-time parameters that are not tensors are axes"
            arguments.append(length.to_bytes(4, "little"))
    return arguments


def _scratch(floats: int, device: Any, keeps: list[Any]) -> int:  # noqa: ANN401 - torch.device
    """Allocate the workspace of one node; it lives as long as the node uses it."""
    if 4 * floats > MAX_SCRATCH_BYTES:
        detail = f"{4 * floats} bytes for each node, at most {MAX_SCRATCH_BYTES}"
        raise Refused("scratch-too-large", detail=detail)
    torch = __import__("torch")  # the server has loaded it, since there are graphs
    try:
        made = torch.empty(floats, dtype=torch.float32, device=device)
    except RuntimeError as error:
        raise Refused("scratch-memory", detail=str(error)[:300]) from error
    keeps.append(made)
    return int(made.data_ptr())
