"""``kernel[grid](...)`` without a call in between: the usual way to launch, made cheaper.

Triton's ``kernel[grid]`` is a function that calls ``kernel.run``. Standing in its place costs less
than standing in front of ``run``: no argument is packed and unpacked once more. Where anything is
not as usual, it does what Triton's does, and `run` intercepts.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

UNKNOWN = (AttributeError, IndexError, KeyError, TypeError)
"""What looking a shape key up raises where it is new or no key."""

_NO_GRID = ()


def shortcut(
    cls: type,
    *,
    stock: Callable[..., Any],
    run: Callable[..., Any],
    through: Callable[..., Any],
) -> Any:  # noqa: ANN401
    """Return what stands for ``JITFunction.__getitem__``; None where Triton's is not as expected.

    Parameters
    ----------
    cls
        ``JITFunction``.
    stock
        Triton's own ``run``.
    run
        What stands for it.
    through
        Leads a launch through its kernel's slot.
    """
    found = getattr(cls, "__getitem__", None)
    if "__getitem__" in cls.__dict__ or not _launches_by_run(found):
        return None

    def getitem(self: Any, grid: Any) -> Callable[..., Any]:  # noqa: ANN401 - as Triton's
        try:
            kernel = self._retuned_kernel
            usual = self.run.__func__ is run  # nobody stands in front of us
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
    """Whether a ``__getitem__`` makes a function that calls ``run``, as every known one does."""
    if not isinstance(found, types.FunctionType) or found.__code__.co_argcount != 2:
        return False
    inner = [each for each in found.__code__.co_consts if isinstance(each, types.CodeType)]
    return len(inner) == 1 and inner[0].co_names == ("run",)
