"""Dispatch of intercepted launches: the two hooks and their checks; the hot path.

Each check inspects the place itself, not a version number. ``kernel[grid](...)``, the usual way to
launch, has a shortcut without the call in between.
"""

from __future__ import annotations

import copy
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol

from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.fast_path import FAILED, MISSED, remember, repeat
from retuned.runtime.intercept.registry import Kernel, Probe

UNKNOWN = (AttributeError, IndexError, KeyError, TypeError)
"""Exceptions of looking up a shape key that is new or not a key."""

_NO_GRID = ()


def shortcut(
    cls: type,
    *,
    stock: Callable[..., Any],
    run: Callable[..., Any],
    through: Callable[..., Any],
) -> Any:  # noqa: ANN401
    """Return a replacement of ``JITFunction.__getitem__``; None if Triton's is not as expected.

    Parameters
    ----------
    cls
        ``JITFunction``.
    stock
        Triton's own ``run``.
    """
    found = getattr(cls, "__getitem__", None)
    if "__getitem__" in cls.__dict__ or not _launches_by_run(found):
        return None

    def getitem(self: Any, grid: Any) -> Callable[..., Any]:  # noqa: ANN401 - as Triton's
        try:
            kernel = self._retuned_kernel
            usual = self.run.__func__ is run  # no other wrapper around this one
        except AttributeError:
            usual = False
        if not usual or kernel is None:
            return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)  # noqa: B026

        def launch(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            if kernel.led is not None:
                return through(kernel, self, args, kwargs, grid)
            compiled = stock(self, *args, grid=grid, warmup=False, **kwargs)
            try:
                form = kernel.forms[compiled]
                found = form.places(args)
                if form.named is not None:
                    found = (found, form.named(kwargs))
                form.cells[grid, found].count += 1
            except UNKNOWN:
                kernel.sighted(compiled, args, kwargs, grid)
            return compiled

        if grid.__class__ is tuple:
            return launch

        def launch_by_rule(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            if kernel.led is not None:
                return through(kernel, self, args, kwargs, grid)
            numbers: Any = _NO_GRID

            def noting(meta: Any) -> Any:  # noqa: ANN401 - as the server's
                nonlocal numbers
                numbers = grid(meta)
                return numbers

            compiled = stock(self, *args, grid=noting, warmup=False, **kwargs)
            try:
                form = kernel.forms[compiled]
                found = form.places(args)
                if form.named is not None:
                    found = (found, form.named(kwargs))
                form.cells[numbers, found].count += 1
            except UNKNOWN:
                kernel.sighted(compiled, args, kwargs, numbers, rule=grid)
            return compiled

        return launch_by_rule if callable(grid) else launch

    return getitem


def _launches_by_run(found: object) -> bool:
    """Whether a ``__getitem__`` returns a function that calls ``run``, as every known one does."""
    if not isinstance(found, types.FunctionType) or found.__code__.co_argcount != 2:
        return False
    inner = [each for each in found.__code__.co_consts if isinstance(each, types.CodeType)]
    return len(inner) == 1 and inner[0].co_names == ("run",)


ATTRIBUTE = "_retuned_kernel"
"""Attribute of a kernel for its record; it is freed with the kernel."""

Stock = Callable[..., Any]


class KernelRegistry(Protocol):
    """Registers kernels; implemented by `hook.Interceptor`."""

    def sight(
        self,
        target: Any,  # noqa: ANN401 - of the server's Triton
        function: Callable[[], Any],
        constexprs: Callable[[], list[str]],
        *,
        interpreted: bool,
    ) -> Kernel | None:
        """Register a kernel at its first launch; None for one that is not followed."""
        ...


def _noting(grid: Callable[..., Any], box: list[Any]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the server's
        found = grid(*args, **kwargs)
        box.append(found)
        return found

    return noting


def _given(kwargs: dict[str, Any], grid: Any) -> dict[str, Any]:  # noqa: ANN401 - as the server's
    kwargs["grid"] = grid
    kwargs["warmup"] = False
    return kwargs


# --- compiled kernels -----------------------------------------------------------------------------


def _wrap_run(hook: KernelRegistry, stock: Stock) -> Stock:
    """Return the replacement of ``JITFunction.run``; this is the hot path."""

    def counted(
        kernel: Kernel,
        jit: Any,  # noqa: ANN401 - a JITFunction
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        probe: Probe | None = None,
    ) -> Any:  # noqa: ANN401 - as Triton's
        begun = None if probe is None else probe.begin(kernel)
        grid = rule = kwargs.get("grid")
        if grid.__class__ is not tuple and callable(grid):
            box: list[Any] = []
            kwargs["grid"] = _noting(grid, box)
            compiled = stock(jit, *args, **kwargs)
            grid = box[0] if box else ()
        else:
            compiled = stock(jit, *args, **kwargs)
        try:
            form = kernel.forms[compiled]
            found = form.places(args)
            if form.named is not None:
                found = (found, form.named(kwargs))
            cell = form.cells[grid, found]
            cell.count += 1
        except UNKNOWN:
            kernel.sighted(compiled, args, kwargs, grid, rule=rule)
        else:
            if probe is not None and begun is not None:
                probe.end(begun, cell)
        return compiled

    def meet(jit: Any) -> Kernel | None:  # noqa: ANN401 - a JITFunction
        return hook.sight(
            jit,
            lambda: jit.fn,
            lambda: [each.name for each in jit.params if each.is_constexpr],
            interpreted=False,
        )

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
        try:
            kernel = self._retuned_kernel
        except AttributeError:
            kernel = meet(self)
        if kernel is None or kwargs.get("warmup"):
            return stock(self, *args, **kwargs)
        if kernel.led is None:
            return counted(kernel, self, args, kwargs)
        kwargs.pop("warmup", None)
        return through(kernel, self, args, kwargs, kwargs.pop("grid", None))

    def through(
        kernel: Kernel,
        jit: Any,  # noqa: ANN401 - a JITFunction
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grid: Any,  # noqa: ANN401 - numbers or a function
    ) -> Any:  # noqa: ANN401 - as Triton's
        slot = kernel.slot
        if slot is None:  # armed, or closed by another thread
            return counted(kernel, jit, args, _given(kwargs, grid), kernel.probe)
        table = slot.table
        if table.repeats:
            found = repeat(table, kernel, jit, args, kwargs, grid)
            if found is FAILED:
                return counted(kernel, jit, args, _given(kwargs, grid))
            if found is not MISSED:
                return found
        call = LaunchCall(
            kernel, jit, args, _given(kwargs, grid), grid=grid, plain=stock, counted=counted
        )
        result = call.through_slot()
        if call.ran is not None:
            remember(slot, table, call)
        return result

    run.__through__ = through  # type: ignore[attr-defined]
    return run


def _check_run(cls: type, found: object) -> str | None:
    """Return why ``JITFunction.run`` cannot be intercepted; None if it can."""
    if not isinstance(found, types.FunctionType):
        return "run-not-python"
    if hasattr(found, "__retuned__"):
        return "intercepted-already"
    kinds = {each.name: each.kind for each in inspect.signature(found).parameters.values()}
    takes = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    if not takes <= set(kinds.values()) or not {"grid", "warmup"} <= kinds.keys():
        return "run-signature-unknown"
    return None


# --- the interpreter ------------------------------------------------------------------------------


def _wrap_executor(hook: KernelRegistry, stock: Stock) -> Stock:
    def counted(
        kernel: Kernel,
        executor: Any,  # noqa: ANN401 - a GridExecutor
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - as Triton's
        grid = rule = executor.grid
        if callable(grid):
            box: list[Any] = []
            executor = copy.copy(executor)
            executor.grid = _noting(grid, box)
            result = stock(executor, *args, **kwargs)
            grid = box[0] if box else ()
        else:
            result = stock(executor, *args, **kwargs)
        kernel.sighted(None, args, kwargs, grid, rule=rule)
        return result

    def meet(executor: Any) -> Kernel | None:  # noqa: ANN401 - a GridExecutor
        rewritten = executor.fn
        return hook.sight(
            rewritten,
            lambda: _original(rewritten),
            lambda: list(executor.constexprs),
            interpreted=True,
        )

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
        try:
            kernel = getattr(self.fn, ATTRIBUTE)
        except AttributeError:
            kernel = meet(self)
        if kernel is None:
            return stock(self, *args, **kwargs)
        if kernel.slot is None:
            return counted(kernel, self, args, kwargs)
        return LaunchCall(kernel, self, args, kwargs, grid=self.grid,
                    plain=stock, counted=counted).through_slot()  # fmt: skip

    return call


def _original(rewritten: Any) -> Any:  # noqa: ANN401 - functions
    """Return the server's function, of which the interpreter runs a rewritten copy."""
    interpreted = sys.modules["triton.runtime.interpreter"].InterpretedFunction
    known = getattr(interpreted, "rewritten_fn", {})
    return next((fn for fn, copied in list(known.items()) if copied is rewritten), rewritten)


def _check_executor(cls: type, found: object) -> str | None:
    """Return why ``GridExecutor`` cannot be intercepted; None if it can."""
    if not isinstance(found, types.FunctionType):
        return "call-not-python"
    if hasattr(found, "__retuned__"):
        return "intercepted-already"
    takes = {each.kind for each in inspect.signature(found).parameters.values()}
    if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= takes:
        return "call-signature-unknown"
    if not {"fn", "arg_names", "grid"} <= set(inspect.signature(cls).parameters):
        return "executor-unknown"
    return None


PLACES: dict[str, tuple[str, str, str, Callable[[type, object], str | None]]] = {
    "jit": ("triton.runtime.jit", "JITFunction", "run", _check_run),
    "interpreter": ("triton.runtime.interpreter", "GridExecutor", "__call__", _check_executor),
}
WRAPPERS: dict[str, Callable[[KernelRegistry, Stock], Any]] = {
    "jit": _wrap_run,
    "interpreter": _wrap_executor,
}
