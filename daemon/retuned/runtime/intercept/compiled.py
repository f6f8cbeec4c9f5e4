"""Compiled code of a variant for one kernel, by signature; compiled off the request path.

Code is stored by the part of a signature that Triton specialises on, so that a new signature can
use existing code. Triton itself computes the key by which it would look compiled code up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.intercept.call import GridNumbers
from retuned.runtime.intercept.shape_limits import ShapeLimits, Wanted
from retuned.runtime.schema import Key, Refused
from retuned.runtime.triton.precompiled import Shipped

_ODD = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Exceptions of a Triton that differs from the expected one."""


def compiled_source(
    jit: Any,  # noqa: ANN401 - a JITFunction
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:  # noqa: ANN401 - triton.CompiledKernel
    """Compile the source of an artifact for launches of a kernel, in its server or in the lab.

    Parameters
    ----------
    jit
        The source's function; see `retuned.runtime.triton.importer.unspecialised`.
    args
        All its arguments, element types in place of tensors.

    Raises
    ------
    Exception
        What the compiler raises.
    """
    return jit.warmup(*args, grid=(1,), **{"enable_fp_fusion": True, **options})


def specialisation_of(
    jit: Any,  # noqa: ANN401 - a JITFunction
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> tuple[Any, ...] | None:
    """Return what compiled code depends on, without options.

    None if this Triton does not provide it.

    It compiles nothing and creates none of Triton's state for the current device. Before Triton has
    compiled anything for the device, the result is None.

    Parameters
    ----------
    args
        All its arguments, element types in place of tensors.
    """
    home = sys.modules.get(type(jit).__module__)
    try:
        assert home is not None, "it was imported"
        caches = jit.device_caches
        device = home.driver.active.get_current_device()
        if device not in caches:
            return None
        binder, wrap = caches[device][-1], home.MockTensor.wrap_dtype
        _, specialisation, _ = binder(*map(wrap, args), **options)
        found = tuple(specialisation)
        hash(found)
    except _ODD:
        return None
    return found if len(found) == len(args) else None


MAX_SIGNATURES = 256
"""Signatures cached for one kernel; beyond it the cache is cleared."""
MAX_CODES = 256
"""Codes compiled for one kernel; launches that need further ones run the server's code."""
MAX_RUNNERS = 256
"""Grids cached per signature; beyond it the cache is cleared."""

Signature = tuple[Any, ...]
Code = tuple[Any, ...]
"""Key of compiled code: the same for all signatures that Triton compiles alike."""


class Ready:
    __slots__ = ("compiled", "count", "fits", "grids", "runners")

    def __init__(self, compiled: Any) -> None:  # noqa: ANN401 - triton.CompiledKernel or None
        self.compiled = compiled
        self.count = 0
        self.fits: dict[Key, bool] = {}
        """Whether launches of these lengths and element counts match the definition."""
        self.grids: dict[Any, GridNumbers] = {}
        """The variant's grids, where lengths, signature and the server's grid determine them."""
        self.runners: dict[GridNumbers, Any] = {}


class Codes:
    """Compiled code of one variant for one kernel.

    Parameters
    ----------
    interpreted
        Whether Triton interprets the server's kernels: nothing is compiled then.
    arguments
        Of the variant: whether each is fixed, and its value or position.
    scalars
        How many numbers a signature starts with.
    held
        Limits for launches of another source; None for the server's own code.
    """

    def __init__(
        self,
        jit: Any,  # noqa: ANN401 - a JITFunction
        *,
        interpreted: bool,
        arguments: Sequence[Wanted],
        options: Mapping[str, Any],
        scalars: int,
        held: ShapeLimits | None,
        shipped: Shipped,
    ) -> None:
        self.ready: dict[Signature, Ready] = {}
        self.watched: list[tuple[Mapping[str, Any], str, Any]] = []
        """Globals that the server's code was compiled with, as (names, name, value)."""
        self._codes: dict[Code, Any] = {}
        self._jit = jit
        self._live = held is None
        self._interpreted = interpreted
        self._arguments = arguments
        self._options = options
        self._scalars = scalars
        self._held = held
        self._shipped = shipped

    @property
    def count(self) -> int:
        return len(self._codes)

    def code_of(self, signature: Signature, raw: Sequence[Any], options: Mapping[str, Any]) -> Code:
        """Return the key of the code that a launch needs; takes microseconds, and compiles nothing.

        Parameters
        ----------
        raw
            Its arguments; element types in place of pointers.
        """
        if self._held is not None:
            return self._held.code_of(signature)
        if self._interpreted:
            return signature
        args = [what if fixed else raw[what] for fixed, what in self._arguments]
        found = specialisation_of(self._jit, args, {**options, **self._options})
        return signature if found is None else (found, signature[self._scalars :])

    def derived(self, signature: Signature, code: Code) -> Ready | None:
        """Return the code of a new signature if it exists already; else None."""
        if code not in self._codes:
            return None
        return self._keep(signature, self._codes[code])

    def compile(self, signature: Signature, raw: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Compile and load what launches of a signature need.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``pre-run-hooks``, or as `Shipped.compiled`.
        """
        if self.derived(signature, self.code_of(signature, raw, options)) is not None:
            return
        if self._interpreted:
            self._compiled(signature, raw, options, None)
            return
        if self._jit.pre_run_hooks:
            raise Refused("pre-run-hooks", detail="the server has pre-run hooks on this kernel")
        args = [what if fixed else raw[what] for fixed, what in self._arguments]

        def compile_it() -> Any:  # noqa: ANN401 - triton.CompiledKernel
            if not self._live:
                return compiled_source(self._jit, args, self._options)
            return self._jit.warmup(*args, grid=(1,), **{**options, **self._options})

        try:
            compiled = self._shipped.compiled(compile_it)
            compiled._init_handles()
        except Refused:
            raise
        except Exception as error:  # a compiler on untrusted source may raise anything
            reason = "out-of-resources" if "OutOfResources" in repr(type(error)) else ""
            detail = f"{type(error).__name__}: {str(error)[-1500:]}"
            raise Refused(reason or "compile-failed", detail=detail) from error
        if self._live:
            self.watched = [
                (names, name, names.get(name))
                for (name, _), (_, names) in self._jit.used_global_vals.items()
            ]
        self._compiled(signature, raw, options, compiled)

    def _compiled(
        self,
        signature: Signature,
        raw: Sequence[Any],
        options: Mapping[str, Any],
        compiled: Any,  # noqa: ANN401 - triton.CompiledKernel or None
    ) -> None:
        # Computed again: before its first compilation Triton does not provide the key.
        self._codes[self.code_of(signature, raw, options)] = compiled
        self._keep(signature, compiled)

    def _keep(self, signature: Signature, compiled: Any) -> Ready:  # noqa: ANN401 - as above
        if len(self.ready) >= MAX_SIGNATURES:
            self.ready.clear()  # the code stays: a signature is ready again at its next launch
        return self.ready.setdefault(signature, Ready(compiled))
