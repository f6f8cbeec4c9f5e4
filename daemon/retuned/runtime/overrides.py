"""An operator of PyTorch's dispatcher, taken over: one library per operator and key.

The kernel that was there is held and called for everything that is not changed; removing the
library is the way back, whatever has been compiled in between, because operators that are not
PyTorch's own stay opaque to its compiler. Where it cannot be said for sure what an override would
change, the operator is left alone, with a reason.

Registering is not made for traffic: PyTorch changes its table of kernels without a lock that
launches take. So operators are taken over when a server starts and given back when it ends; a swap
and its way back change a slot's table and never come here.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from retuned.runtime.loaded import loaded_torch
from retuned.runtime.spec import Refused

log = logging.getLogger(__name__)

KEYS = ("CPU", "CUDA")
"""Keys that can be taken over; AMD's devices have CUDA's."""
BUILT_IN = frozenset(("aten", "prim", "prims", "quantized"))
"""Namespaces whose operators the compiler may replace by code of its own."""

Body = Callable[..., Any]
"""(keyset, arguments as the schema has them) -> what the operator returns."""

_LINE = re.compile(r"(\w+)(\[alias\])?( \(inactive\))?: (.*)")
_MISSING = (AttributeError, RuntimeError, TypeError, ValueError)
"""What asking a PyTorch for something that it does not have raises."""


def find(name: str) -> Any:  # noqa: ANN401 - torch._ops.OpOverload
    """Return an operator by its name, such as ``_C::rms_norm`` or ``aten::add.Tensor``.

    Raises
    ------
    Refused
        ``torch-missing``, or ``operator-missing`` if this process has not loaded it.
    """
    torch = loaded_torch()
    namespace, _, rest = name.partition("::")
    plain, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), plain), overload or "default")
    except _MISSING as error:
        raise Refused("operator-missing", detail=f"{name} is not loaded here") from error


def same_schema(operator: Any, schema: str) -> bool:  # noqa: ANN401 - torch._ops.OpOverload
    """Whether an operator has exactly this schema, names and defaults included."""
    torch = loaded_torch()
    try:
        return str(torch._C.parse_schema(schema)) == str(operator._schema)
    except _MISSING as error:  # no parser here: the text itself must be the same
        log.debug("cannot parse %s: %s", schema, error)
        return schema == str(operator._schema)


def registrations(dump: str) -> dict[str, list[str]]:
    """Read who has registered kernels, the active one first: key -> where and how.

    Keys that stand for several, such as ``Autograd``, are told by their own name.
    """
    found: dict[str, list[str]] = {}
    for line in dump.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            found.setdefault(match.group(1), []).append(match.group(4))
    return found


def check(operator: Any, key: str) -> int:  # noqa: ANN401 - torch._ops.OpOverload
    """Make sure that an override of an operator changes what it says and nothing else.

    Returns
    -------
    int
        Kernels registered for the key: one, or none where one for every device stands in.

    Raises
    ------
    Refused
        ``original-unreachable``, ``ownership-unknown``, ``composite-implicit``, ``key-missing``,
        ``overridden``, ``inductor-inlines`` or ``autograd-formula``.
    """
    torch, name = loaded_torch(), operator._schema.name
    if key not in KEYS:
        raise Refused("key-missing", detail=f"{key} is none of {KEYS}")
    if not hasattr(torch.library, "get_kernel"):
        raise Refused(
            "original-unreachable",
            detail="this PyTorch has no torch.library.get_kernel; the original could not be called",
        )
    try:
        known = registrations(torch._C._dispatch_dump(operator._name))
    except _MISSING as error:
        raise Refused(
            "ownership-unknown", detail=f"who has registered {name} cannot be found out: {error}"
        ) from error
    if "CompositeImplicitAutograd" in known:
        raise Refused(
            "composite-implicit",
            detail=f"{name} is made of other operators, and compiled graphs call those",
        )
    ours = known.get(key, [])
    called = ours or known.get("CompositeExplicitAutograd", [])
    if not called or "fallthrough" in called[0]:
        raise Refused("key-missing", detail=f"{name} has no kernel of its own for {key}")
    if len(ours) > 1 or _has_python_kernel(torch, operator, key):
        raise Refused("overridden", detail=f"somebody has overridden {name}: {ours[0]:.200}")
    if name.partition("::")[0] in BUILT_IN and "torch._inductor.compile_fx" in sys.modules:
        raise Refused(
            "inductor-inlines",
            detail=f"Inductor calls kernels of its own in place of {name}; code that it has "
            "compiled would go on without the override",
        )
    if _has_formula(operator, known):
        raise Refused(
            "autograd-formula",
            detail=f"{name} has a formula for gradients, made for the kernel that is there",
        )
    return len(ours)


def _has_python_kernel(torch: Any, operator: Any, key: str) -> bool:  # noqa: ANN401
    """Whether calls from Python go to a kernel that the dispatcher does not know."""
    return getattr(torch._C.DispatchKey, key) in getattr(operator, "py_kernels", {})


def _has_formula(operator: Any, known: dict[str, list[str]]) -> bool:  # noqa: ANN401
    formulas = [
        lines[0]
        for name, lines in known.items()
        if name.startswith("Autograd") and "fallthrough" not in lines[0]
    ]
    if not formulas:
        return False
    # torch.library.custom_op registers for Autograd always, also where nobody gave a formula
    defined = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    definition = defined.get(operator._schema.name)
    return definition is None or getattr(definition, "_backward_fn", 0) is not None


class Override:
    """One operator at one key, taken over until `destroy`.

    Parameters
    ----------
    operator
        From `find`.
    key
        One of `KEYS`.
    body
        Makes what is called, given the original; both take the keyset first. It must not raise what
        the original has not raised.

    Raises
    ------
    Refused
        As `check`, or ``library-refused``.
    """

    def __init__(self, operator: Any, key: str, body: Callable[[Body], Body]) -> None:  # noqa: ANN401
        torch = loaded_torch()
        self.name: str = operator._name
        self.key = key
        with _LOCK:
            self._registered = check(operator, key) + 1
            try:
                # both are held: the operator's, since it is called; ours, see `_RETIRED`
                self.original = torch.library.get_kernel(operator, key)
                self._library = torch.library.Library(operator.namespace, "IMPL")
                self._library.impl(operator, body(self.original.call_boxed), key, with_keyset=True)
                self._held = torch.library.get_kernel(operator, key)
            except _MISSING as error:
                self._abandon()
                raise Refused("library-refused", detail=f"{self.name}: {error}"[:400]) from error
            _OWNED[self.name, key] = self

    @property
    def active(self) -> bool:
        """Whether launches come here: nobody has overridden the operator since."""
        if self._library is None:
            return False
        lines = registrations(loaded_torch()._C._dispatch_dump(self.name)).get(self.key, [])
        return len(lines) == self._registered

    def destroy(self) -> None:
        """Give the operator back; again does nothing."""
        with _LOCK:
            if self._library is not None:
                _RETIRED.append(self._held)
                self._abandon()
                del _OWNED[self.name, self.key]

    def _abandon(self) -> None:
        library, self._library = getattr(self, "_library", None), None
        if library is not None:
            library._destroy()


_LOCK = threading.RLock()
_OWNED: dict[tuple[str, str], Override] = {}
_RETIRED: list[Any] = []
"""Kernels of ours that are registered no more, for good: a launch that was about to enter one when
it was taken away would else find memory that is somebody else's. A server makes a dozen."""


def owned() -> list[Override]:
    """Return the operators of this process that are taken over."""
    return list(_OWNED.values())


def _new_lock() -> None:
    """Replace what another thread of the parent may have held when this child was forked."""
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)
