"""What Triton would look compiled code up by, found by asking Triton itself.

Triton specialises a launch on far less than its arguments: of a whole number on its width, on
whether it is 1 and whether 16 divides it. A server whose prompts have hundreds of lengths has a few
codes. Which ones, Triton's own binder says, for its version and its device; where it is not as
expected, or says what cannot be a key, every signature is a code of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
        The source's function; see `retuned.runtime.triton_import.unspecialised`.
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
