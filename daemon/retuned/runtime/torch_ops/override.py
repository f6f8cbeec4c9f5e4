"""Override of an operator in PyTorch's dispatcher: one library per operator and key.

The previous kernel is kept and called for everything that is not changed. Removing the library
restores it, whatever was compiled in between, because PyTorch's compiler treats operators other
than its own as opaque. If the effect of an override is not certain, the operator is refused with a
reason code.

Registering is not safe under traffic: PyTorch changes its table of kernels without a lock that
launches take. So operators are overridden when a server starts and restored when it ends. A swap
and its rollback only change a slot's table.

`Arguments` maps an operator's arguments to tensors of a definition, and back.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from retuned.runtime.artifacts.loaded import loaded_torch
from retuned.runtime.schema import Refused, Spec, Tensor
from retuned.runtime.shadow.sampler import as_outputs
from retuned.runtime.torch_ops.binding import Binding, InputBinding, OutputBinding, View
from retuned.runtime.torch_ops.frames import Call, Frame, Keyset, Plan, Target

log = logging.getLogger(__name__)

KEYS = ("CPU", "CUDA")
"""Keys that can be overridden; AMD's devices use CUDA's."""
BUILT_IN = frozenset(("aten", "prim", "prims", "quantized"))
"""Namespaces whose operators the compiler may replace by generated code."""

Body = Callable[..., Any]
"""(keyset, arguments in the schema's order) -> result of the operator."""

_LINE = re.compile(r"(\w+)(\[alias\])?( \(inactive\))?: (.*)")
_MISSING = (AttributeError, RuntimeError, TypeError, ValueError)
"""Exceptions of a PyTorch that does not have the requested part."""


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
    """Whether an operator has exactly this schema, including names and defaults."""
    torch = loaded_torch()
    try:
        return str(torch._C.parse_schema(schema)) == str(operator._schema)
    except _MISSING as error:  # no parser: the text itself must be the same
        log.debug("cannot parse %s: %s", schema, error)
        return schema == str(operator._schema)


def registrations(dump: str) -> dict[str, list[str]]:
    """Parse the registered kernels, the active one first: key -> file and registration.

    Keys that combine several, such as ``Autograd``, appear under their own name.
    """
    found: dict[str, list[str]] = {}
    for line in dump.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            found.setdefault(match.group(1), []).append(match.group(4))
    return found


def check(operator: Any, key: str) -> int:  # noqa: ANN401 - torch._ops.OpOverload
    """Verify that an override of an operator changes only the intended calls.

    Returns
    -------
    int
        Kernels registered for the key: one, or none if a kernel for every device serves it.

    Raises
    ------
    Refused
        ``original-unreachable``, ``ownership-unknown``, ``composite-implicit``, ``key-missing``,
        ``overridden``, ``inductor-inlines`` or ``autograd-formula``.
    """
    torch, name = loaded_torch(), operator._schema.name
    if key not in KEYS:
        raise Refused("key-missing", detail=f"{key} is not one of {KEYS}")
    if not hasattr(torch.library, "get_kernel"):
        raise Refused(
            "original-unreachable",
            detail="this PyTorch has no torch.library.get_kernel; the original could not be called",
        )
    try:
        known = registrations(torch._C._dispatch_dump(operator._name))
    except _MISSING as error:
        raise Refused(
            "ownership-unknown", detail=f"the registration of {name} cannot be read: {error}"
        ) from error
    if "CompositeImplicitAutograd" in known:
        raise Refused(
            "composite-implicit",
            detail=f"{name} is made of other operators, and compiled graphs call those",
        )
    ours = known.get(key, [])
    called = ours or known.get("CompositeExplicitAutograd", [])
    if not called or "fallthrough" in called[0]:
        raise Refused("key-missing", detail=f"{name} has no separate kernel for {key}")
    if len(ours) > 1 or _has_python_kernel(torch, operator, key):
        raise Refused("overridden", detail=f"{name} is overridden already: {ours[0]:.200}")
    if name.partition("::")[0] in BUILT_IN and "torch._inductor.compile_fx" in sys.modules:
        raise Refused(
            "inductor-inlines",
            detail=f"Inductor replaces {name} by generated kernels; code that it has compiled "
            "would not use the override",
        )
    if _has_formula(operator, known):
        raise Refused(
            "autograd-formula",
            detail=f"{name} has a formula for gradients that belongs to its own kernel",
        )
    return len(ours)


def _has_python_kernel(torch: Any, operator: Any, key: str) -> bool:  # noqa: ANN401
    """Whether calls from Python reach a kernel that is not in the dispatcher."""
    return getattr(torch._C.DispatchKey, key) in getattr(operator, "py_kernels", {})


def _has_formula(operator: Any, known: dict[str, list[str]]) -> bool:  # noqa: ANN401
    formulas = [
        lines[0]
        for name, lines in known.items()
        if name.startswith("Autograd") and "fallthrough" not in lines[0]
    ]
    if not formulas:
        return False
    # torch.library.custom_op always registers for Autograd, also without a formula
    defined = getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {})
    definition = defined.get(operator._schema.name)
    return definition is None or getattr(definition, "_backward_fn", 0) is not None


class Override:
    """One operator at one key, overridden until `destroy`.

    Parameters
    ----------
    operator
        From `find`.
    key
        One of `KEYS`.
    body
        Returns the new kernel, given the original; both take the keyset first. It must raise only
        what the original has raised.

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
                # both are kept: the operator's because it is called; for ours see `_RETIRED`
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
        """Whether launches reach this override: no later override exists."""
        if self._library is None:
            return False
        lines = registrations(loaded_torch()._C._dispatch_dump(self.name)).get(self.key, [])
        return len(lines) == self._registered

    def destroy(self) -> None:
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
"""Retuned's unregistered kernels, kept for ever.

A launch that was about to enter such a kernel when it was removed would otherwise access freed
memory. A server has about a dozen.
"""


def owned() -> list[Override]:
    return list(_OWNED.values())


def _new_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class Arguments:
    """Positions of an operator's arguments.

    Raises
    ------
    Refused
        ``binding-invalid``: a mistake in the binding.
    """

    def __init__(self, binding: Binding, schema: Any) -> None:  # noqa: ANN401 - torch._C.FunctionSchema
        self.binding = binding
        self._all = list(schema.arguments)
        self._names = [each.name for each in self._all]
        self._defaults = [each.default_value for each in self._all]
        self._positional = sum(not each.kwarg_only for each in self._all)
        self._returns = [_place_of(each, self._all) for each in schema.returns]
        self._check()
        place = {name: index for index, name in enumerate(self._names)}
        self._inputs = [(place[each.argument], each) for each in binding.inputs]
        self._outputs = [
            (place[each.argument] if each.argument else None, each) for each in binding.outputs
        ]
        tensors = {index for index, _ in (*self._inputs, *self._outputs)}
        self.values = tuple(index for index in range(len(self._all)) if index not in tensors)
        self.shown = tuple(place[name] for name in binding.shown())
        """Positions of the tensors that distinguish launches."""
        self.typed = next(index for index, each in self._inputs if not each.dtype)
        """Position of the tensor whose element type is the form's."""
        self.weight = next((index for index, each in self._inputs if each.constant), None)
        self.varied = any(each.has_default_value() or each.kwarg_only for each in self._all)
        """Whether calls may omit or name arguments."""
        self._in_place = binding.in_place
        self._both = tuple(each.argument in self._in_place for each in binding.outputs)
        self.bound = self._inputs, self._outputs

    def _check(self) -> None:
        """Check that every tensor of the operator is bound, and every written one is an output."""
        binding = self.binding
        written = {each.argument for each in binding.outputs if each.argument}
        named = {each.argument for each in binding.inputs} | written
        named |= {name for name, _ in binding.equal} | {name for _, name in binding.sized}
        tensors = {each.name for each in self._all if "Tensor" in str(each.type)}
        writes = {each.name for each in self._all if each.alias_info and each.alias_info.is_write}
        returned = [each for each in binding.outputs if not each.argument]
        problems = {
            "not an argument": named - {*self._names},
            "not bound": tensors - named,
            "written, or not": written ^ writes,
            "returned in another form": {e.name for e in returned if e.view is not View.EXACT},
        }
        if len(returned) != self._returns.count(None):
            problems["returned"] = {each.name for each in returned}
        if all(each.dtype for each in binding.inputs):
            problems["without the form's type"] = {each.name for each in binding.inputs}
        found = "; ".join(f"{what}: {sorted(which)}" for what, which in problems.items() if which)
        if found:
            raise Refused("binding-invalid", detail=f"{binding.operator}: {found}")

    def caller(self, boxed: Body) -> Call:
        count, names = self._positional, self._names[self._positional :]
        if not names:
            return lambda keyset, args: boxed(keyset, *args)
        return lambda keyset, args: boxed(
            keyset, *args[:count], **dict(zip(names, args[count:], strict=True))
        )

    def filled(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return every argument; omitted ones have their defaults."""
        count = self._positional
        full = (*args, *self._defaults[len(args) : count])
        if count == len(self._names):
            return full
        rest = zip(self._names[count:], self._defaults[count:], strict=True)
        return (*full, *[named.get(name, default) for name, default in rest])

    def read(self, args: Sequence[Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
        """Return lengths of the tensors and the other values; refuses other element types."""
        form = self.dtype_of(args)
        wanted_of = {index: each.dtype or form for index, each in self._inputs}
        wanted_of |= {index: form for index, _ in self._outputs if index is not None}
        names, shapes = self._names, {}
        for index, wanted in wanted_of.items():
            value = args[index]
            if not hasattr(value, "shape") or str(value.dtype) != f"torch.{wanted}":
                raise Refused("dtype-differs", detail=f"{names[index]} is not {wanted}")
            shapes[names[index]] = tuple(value.shape)
        return shapes, {names[index]: args[index] for index in self.values}

    def dtype_of(self, args: Sequence[Any]) -> str:
        return str(args[self.typed].dtype).removeprefix("torch.")

    def frame(self, plan: Plan, keyset: Keyset, args: Sequence[Any]) -> Frame:
        """Start a launch; raises RuntimeError if the memory layout does not fit the definition."""
        return Frame(plan, keyset, args, in_place=self._both)

    def outputs(self, own: Sequence[Tensor | None], raw: Any) -> Any:  # noqa: ANN401
        results = [] if raw is None else list(as_outputs(raw))
        fresh = iter([r for r, at in zip(results, self._returns, strict=True) if at is None])
        made = tuple(next(fresh) if each is None else each for each in own)
        return made[0] if len(made) == 1 else made

    def answer(self, args: Sequence[Any], outputs: Sequence[Tensor]) -> Any:  # noqa: ANN401
        if not self._returns:
            return None
        fresh = iter([v for v, (at, _) in zip(outputs, self._outputs, strict=True) if at is None])
        values = tuple(next(fresh) if at is None else args[at] for at in self._returns)
        return values[0] if len(values) == 1 else values

    def pattern(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the numbers of a launch in their positions, for later calls of the original."""
        return tuple(args[i] if i in self.values else None for i in range(len(self._names)))

    def aside(
        self,
        call: Call,
        keyset: Keyset,
        pattern: Sequence[Any],
        inputs: Sequence[Tensor],
        spec: Spec,
    ) -> Any:  # noqa: ANN401 - the outputs
        """Run the original on inputs of the definition, with separate outputs."""
        args, taken = list(pattern), dict[int, Tensor]()
        lengths = {axis: length for axis, length in spec.axes if length is not None}
        for (place, each), value in zip(self._inputs, inputs, strict=True):
            lengths.update(zip(each.shape, value.shape, strict=True))
            taken[place] = value.detach().clone() if each.argument in self._in_place else value
            args[place] = _flat(taken[place], each)
        like, own = taken[self.typed], list[Tensor | None]()
        for index, made in self._outputs:
            if index is not None and index not in taken:
                taken[index] = like.new_empty([lengths[axis] for axis in made.shape])
                args[index] = _flat(taken[index], made)
            own.append(None if index is None else taken[index])
        return self.outputs(own, call(keyset, args))


def plan_of(arguments: Arguments, lengths: Mapping[str, int], args: Sequence[Any]) -> Plan:
    def target(index: int, each: InputBinding | OutputBinding) -> Target:
        return index, tuple(lengths[axis] for axis in each.shape)

    def size(index: int | None, each: InputBinding | OutputBinding) -> int:
        if index is None:
            return 0
        return int(prod(target(index, each)[1]) * args[index].element_size())

    inputs, outputs = arguments.bound
    return Plan(
        inputs=tuple(target(index, each) for index, each in inputs),
        outputs=tuple(None if index is None else target(index, each) for index, each in outputs),
        input_bytes=tuple(size(index, each) for index, each in inputs),
        output_bytes=tuple(size(index, each) for index, each in outputs),
    )


def _flat(value: Tensor, each: InputBinding | OutputBinding) -> Tensor:
    """Return a tensor of the definition in the operator's shape."""
    return value.reshape(value.shape[0], -1) if each.view is View.HEADS else value


def _place_of(result: Any, arguments: Sequence[Any]) -> int | None:  # noqa: ANN401 - of a schema
    """Return which argument an operator returns; None for a new tensor."""
    if result.alias_info is None:
        return None
    for index, each in enumerate(arguments):
        if (
            each.alias_info is not None
            and each.alias_info.before_set & result.alias_info.before_set
        ):
            return index
    return None
