"""Compiled code of a variant for one kernel, ready by signature; compiled off the request path.

Code is kept by the part of a signature that Triton specialises on: a signature that is new takes
code that is there.

What Triton would look compiled code up by, found by asking Triton itself.
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
"""What asking a Triton raises that is not as expected."""


def compiled_source(
    jit: Any,  # noqa: ANN401 - a JITFunction
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:  # noqa: ANN401 - triton.CompiledKernel
    """Compile what an artifact brings for launches of a kernel: in its server, and for it in a lab.

    Parameters
    ----------
    jit
        The source's function; see `retuned.runtime.triton.importer.unspecialised`.
    args
        All its arguments, element types in place of tensors.
    options
        Of the variant.

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
    """Return what compiled code depends on, options apart; None where this Triton does not say.

    Nothing is compiled, and nothing that Triton makes for the current device is made here: before
    it has compiled anything there, it does not say.

    Parameters
    ----------
    jit
        What is launched.
    args
        All its arguments, element types in place of tensors.
    options
        Its options.
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
"""Signatures kept ready for one kernel; more start over."""
MAX_CODES = 256
"""Codes compiled for one kernel; launches that need more stay the server's."""
MAX_RUNNERS = 256
"""Grids kept ready per signature; more start over."""

Signature = tuple[Any, ...]
Code = tuple[Any, ...]
"""What compiled code is kept by: the same for all signatures that Triton compiles alike."""


class Ready:
    """Compiled code of one signature."""

    __slots__ = ("compiled", "count", "fits", "grids", "runners")

    def __init__(self, compiled: Any) -> None:  # noqa: ANN401 - triton.CompiledKernel or None
        self.compiled = compiled
        self.count = 0
        """Launches of the variant under this signature."""
        self.fits: dict[Key, bool] = {}
        """Whether launches of these lengths, and elements, are of the definition."""
        self.grids: dict[Any, GridNumbers] = {}
        """The variant's grids, where lengths, signature and the server's grid decide them."""
        self.runners: dict[GridNumbers, Any] = {}


class Codes:
    """What was compiled of one variant for one kernel.

    Parameters
    ----------
    jit
        What is launched.
    interpreted
        Whether Triton interprets the server's kernels: nothing is compiled then.
    arguments
        Of the variant: whether each is fixed, and its value or place.
    options
        Of the variant.
    scalars
        How many numbers a signature begins with.
    held
        What launches of another source are held to; None for the server's own code.
    shipped
        Compiled code that was delivered.
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
        """What launches under a signature."""
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
        """Return what decides the code of a launch; takes microseconds, and compiles nothing.

        Parameters
        ----------
        signature
            Of the launch.
        raw
            Its arguments; element types in place of pointers.
        options
            Its options.
        """
        if self._held is not None:
            return self._held.code_of(signature)
        if self._interpreted:
            return signature
        args = [what if fixed else raw[what] for fixed, what in self._arguments]
        found = specialisation_of(self._jit, args, {**options, **self._options})
        return signature if found is None else (found, signature[self._scalars :])

    def derived(self, signature: Signature, code: Code) -> Ready | None:
        """Return what launches under a new signature whose code is there already; else None."""
        if code not in self._codes:
            return None
        return self._keep(signature, self._codes[code])

    def compile(self, signature: Signature, raw: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Compile and load what launches of a signature need.

        Parameters
        ----------
        signature
            Of the launch.
        raw
            Its arguments; element types in place of pointers.
        options
            Its options.

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
            raise Refused(
                "pre-run-hooks", detail="the server hangs hooks on this kernel's launches"
            )
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
        except Exception as error:  # the compiler on a stranger's source: whatever it raises
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
        # Asked anew: before its first code Triton says of none what it depends on.
        self._codes[self.code_of(signature, raw, options)] = compiled
        self._keep(signature, compiled)

    def _keep(self, signature: Signature, compiled: Any) -> Ready:  # noqa: ANN401 - as above
        if len(self.ready) >= MAX_SIGNATURES:
            self.ready.clear()  # code stays: what comes again is ready at its next launch
        return self.ready.setdefault(signature, Ready(compiled))
