"""Kernel target: a Triton kernel of the server inside graphs, which follows its intercepted slot.

The slot of an intercepted kernel is opened when an order arrives, long after most graphs were
captured. So its launches are found by the notes of every Triton launch at the capture. A variant's
arguments are the bytes in the node, matched one by one by the names of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retuned.runtime.core.active_order import Ineligible, Swapped
from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.index import IndexedGraph, Site
from retuned.runtime.graphs.launch_notes import TritonLaunch
from retuned.runtime.graphs.node_swap import Change
from retuned.runtime.graphs.structures import KernelParams, Size
from retuned.runtime.graphs.variants import learn_layout, null_scratch, triton_launch
from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.plan import Plan
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.rules import key_reader
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.schema import Key, Refused

_CONSTEXPR = "constexpr"
_ODD = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""Exceptions of a server's grid function when it is called again."""


class KernelTarget:
    """One intercepted kernel.

    Parameters
    ----------
    name
        Unique among all targets.
    kernels
        Returns the kernels that go through the slot now.
    serves
        Returns the order that runs the variant at these lengths; None for the original.
    """

    def __init__(
        self,
        slot: KernelSlot,
        *,
        name: str,
        kernels: Callable[[], Sequence[Kernel]],
        serves: Callable[[Key], Swapped | None],
    ) -> None:
        self._name = name
        self._slot = slot
        self._kernels = kernels
        self._serves = serves

    @property
    def name(self) -> str:
        return self._name

    @property
    def slot(self) -> Slot:
        return self._slot

    def is_mine(self, site: Site) -> bool:
        """Whether a node was captured for this kernel, and for no slot in front of it."""
        return site.note is None and self._kernel_of(site.launch) is not None

    def admitted(self, site: Site) -> str | None:
        order = self._order_at(site)
        return None if order is None else order.mark

    def change(self, graph: IndexedGraph, site: Site, original: KernelParams) -> Change:
        """Return what a node must launch.

        Raises
        ------
        Refused
            ``not-compiled``, ``grid-unknown``, ``layout-differs``, ``arguments-unmatched`` or the
            reason for which the variant cannot take the launch.
        """
        order, launch, key = self._order_at(site), site.launch, self._key_at(site)
        kernel = self._kernel_of(launch)
        if order is None or kernel is None or launch is None or key is None:
            raise Refused("not-prepared", detail="the order has just been rolled back")
        variant = order.variant
        if not isinstance(variant, KernelVariant):
            raise Refused("language-unsupported", detail="the slot runs another kind of variant")
        if original.function != int(launch.compiled.function):
            raise Refused("arguments-unmatched", detail="the node launches another kernel")
        call = _call_of(kernel, launch)
        plan = variant._plan(kernel)
        compiled, grid = _ready(variant, plan, call, key)
        function, block, shared_bytes = triton_launch(compiled)
        learn_layout(graph.calls, compiled)
        arguments = _arguments(plan._arguments, launch, call, compiled, original)
        arguments += null_scratch(compiled, graph.calls.layout(function), len(arguments))
        return Change(
            mark=order.mark,
            function=function,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            arguments=tuple(arguments),
            keeps=(variant, compiled),
        )

    def note_captures(self, on: bool) -> None:
        """Do nothing: launches of every Triton kernel are recorded."""

    def _kernel_of(self, launch: TritonLaunch | None) -> Kernel | None:
        if launch is None:
            return None
        for kernel in self._kernels():
            if kernel.target() is launch.jit:
                return kernel
        return None

    def _order_at(self, site: Site) -> Swapped | None:
        key = self._key_at(site)
        return None if key is None else self._serves(key)

    def _key_at(self, site: Site) -> Key | None:
        kernel = self._kernel_of(site.launch)
        if kernel is None or site.launch is None:
            return None
        try:
            return key_reader(self._slot.rule, self._slot.spec, kernel)(
                _call_of(kernel, site.launch)
            )
        except (Refused, *_ODD):
            return None


def _call_of(kernel: Kernel, launch: TritonLaunch) -> LaunchCall:
    kwargs = dict(launch.kwargs)
    return LaunchCall(
        kernel, launch.jit, launch.args, kwargs, grid=kwargs.get("grid"),
        plain=_never, counted=_never,
    )  # fmt: skip


def _never(*_: object, **__: object) -> Any:  # noqa: ANN401 - returns nothing
    raise Refused("not-launched", detail="a recorded launch is not repeated")


def _ready(variant: KernelVariant, plan: Plan, call: LaunchCall, key: Key) -> tuple[Any, Size]:
    signature = plan.signature(call)
    if isinstance(signature, Ineligible):
        raise Refused(signature.reason, detail="the variant cannot take this launch")
    ready = variant.ready_for(plan, call, signature)
    if ready is None:
        raise Refused("not-compiled", detail="the variant has no code for this launch yet")
    if ready.compiled is None:
        raise Refused("not-a-gpu", detail="Triton's interpreter cannot launch into graphs")
    problem = plan.hindrance(call)
    if problem is not None:
        raise Refused(problem.reason, detail="the variant cannot take this launch")
    try:
        fits = plan.geometry.fits(call, ready, key)
        grid = plan.geometry.grid(call, ready, key)
    except _ODD as error:
        raise Refused("grid-unknown", detail=repr(error)[:300]) from error
    if not fits:
        raise Refused("other-arguments", detail="the launch does not match the definition")
    if isinstance(grid, Ineligible):
        raise Refused(grid.reason, detail="the variant's grid is invalid")
    return ready.compiled, grid


def _arguments(
    sources: Sequence[tuple[bool, Any]],
    launch: TritonLaunch,
    call: LaunchCall,
    compiled: Any,  # noqa: ANN401 - a CompiledKernel
    original: KernelParams,
) -> list[bytes]:
    """Return the variant's arguments: for each the bytes that the node has under its name."""
    theirs = _positions(launch.compiled)
    kinds = list(compiled.src.signature.values())
    if len(kinds) != len(sources):
        raise Refused("layout-differs", detail=f"{len(kinds)} parameters, {len(sources)} bound")
    found = []
    for kind, (fixed, place) in zip(kinds, sources, strict=True):
        if kind == _CONSTEXPR:
            continue
        if fixed or not isinstance(kind, str):
            raise Refused("layout-differs", detail=f"a parameter of kind {str(kind)[:40]}")
        position, theirs_kind = theirs[place]
        if position is None:  # a constant of the node's code, and an argument of the variant
            found.append(_integer(call.values()[place], kind))
        elif theirs_kind != kind or position >= len(original.arguments):
            detail = f"parameter {place} is {theirs_kind} in the node, {kind} in the variant"
            raise Refused("layout-differs", detail=detail)
        else:
            found.append(original.arguments[position])
    return found


def _positions(compiled: Any) -> list[tuple[int | None, Any]]:  # noqa: ANN401 - a CompiledKernel
    """Return for each parameter its position among the arguments, and its type."""
    found: list[tuple[int | None, Any]] = []
    count = 0
    for kind in compiled.src.signature.values():
        if kind == _CONSTEXPR:
            found.append((None, kind))
        elif isinstance(kind, str) and not kind.startswith("tensordesc"):
            found.append((count, kind))
            count += 1
        else:
            raise Refused("layout-differs", detail=f"a parameter of kind {str(kind)[:40]}")
    return found


def _integer(value: object, kind: str) -> bytes:
    if type(value) is not int or kind not in ("i32", "i64"):
        raise Refused("layout-differs", detail=f"{kind} is a constant of the node's code")
    return value.to_bytes(int(kind[1:]) // 8, "little", signed=True)
