"""What a problem's child does with tensors: run a model on them, compare answers, and pass them on.

Imports PyTorch when used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

WIDE = ("float64", "float32", "float16", "bfloat16")
NARROW = ("float32", "float16", "bfloat16")
_TYPES = (*WIDE, "int64", "int32", "int8", "uint8", "bool")
_ALIKE = 1e-9
"""Relative difference of two float64 answers to the same question."""
_MOST_ANSWERS = 64


class Refused(Exception):
    """A problem that cannot be used; the first argument is a stable code, the second says why."""


class Tensors:
    """PyTorch on one device.

    Parameters
    ----------
    device
        ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, device

    def answers(self, model: Any, values: list[Any], *, double: bool) -> list[Any]:  # noqa: ANN401
        """Run a model and return what it answers.

        Raises
        ------
        Refused
            ``unsupported-output`` or ``no-double``.
        """
        with self._torch.no_grad():
            answers = self._call(model, values)
        self.wait()
        if len(answers) > _MOST_ANSWERS:
            raise Refused("unsupported-output", f"returns {len(answers)} tensors")
        for each in answers:
            if type_of(each) not in _TYPES or each.layout is not self._torch.strided:
                raise Refused("unsupported-output", f"returns {type_of(each)}, {each.layout}")
            if double and type_of(each) in NARROW:
                raise Refused("no-double", f"returns {type_of(each)} when asked for float64")
        return answers

    def wide_answers(self, model: Any, values: list[Any]) -> list[Any]:  # noqa: ANN401
        """Return copies of the answers in float64 to copies of the values."""
        values = [value.clone() if hasattr(value, "clone") else value for value in values]
        return [each.clone() for each in self.answers(model, values, double=True)]

    def _call(self, model: Any, values: list[Any]) -> list[Any]:  # noqa: ANN401
        found = model(*values)
        answers = list(found) if isinstance(found, (tuple, list)) else [found]
        if not answers or not all(isinstance(each, self._torch.Tensor) for each in answers):
            kinds = ", ".join(type(each).__name__ for each in answers) or "nothing"
            raise Refused("unsupported-output", f"returns {kinds[:80]}; tensors are compared")
        return answers

    def alike(self, left: list[Any], right: list[Any]) -> bool:
        """Whether two lists of tensors or numbers are the same, but for the order of sums."""
        return len(left) == len(right) and all(
            self._same(a, b) for a, b in zip(left, right, strict=True)
        )

    def _same(self, left: Any, right: Any) -> bool:  # noqa: ANN401
        if not isinstance(left, self._torch.Tensor):
            return bool(left == right)
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        scale = (
            float(right.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if right.numel() else 0.0
        )
        return bool(
            self._torch.allclose(
                left.double(), right.double(), rtol=_ALIKE, atol=_ALIKE * scale, equal_nan=True
            )
        )

    @contextlib.contextmanager
    def precision(self, *, double: bool) -> Iterator[None]:
        """Make float64, or float32, PyTorch's default type."""
        before = self._torch.get_default_dtype()
        self._torch.set_default_dtype(self._torch.float64 if double else self._torch.float32)
        try:
            yield
        finally:
            self._torch.set_default_dtype(before)

    def widen(self, value: Any, *, double: bool) -> Any:  # noqa: ANN401
        """Return a value in float64 if `double` is set and its type can be widened."""
        wide = double and isinstance(value, self._torch.Tensor) and type_of(value) in WIDE
        return value.double() if wide else value

    def put(self, model: Any, weights: dict[str, Any]) -> None:  # noqa: ANN401
        """Give a model these parameters and buffers."""
        state = state_of(model)
        with self._torch.no_grad():
            for name, tensor in weights.items():
                state[name].copy_(tensor)

    def tensor(self, array: Any, like: Any = None) -> Any:  # noqa: ANN401
        """Return a tensor with separate memory from (bytes, type, shape)."""
        data, name, shape = array
        kind = getattr(self._torch, name)
        flat = (
            self._torch.frombuffer(data, dtype=kind) if data else self._torch.empty(0, dtype=kind)
        )
        return flat.reshape(shape if like is None else like.shape).clone().to(self._device)

    def array(self, tensor: Any) -> tuple[bytes, str, list[int]]:  # noqa: ANN401
        """Return a tensor's bytes, type and shape."""
        flat = tensor.detach().to("cpu").contiguous()
        raw = flat.reshape(-1).view(self._torch.uint8) if flat.numel() else flat.reshape(-1)
        return bytes(memoryview(raw.numpy())), type_of(flat), list(flat.shape)

    def wait(self) -> None:
        """Wait for what was launched."""
        if self._device != "cpu":
            self._torch.cuda.synchronize()


def state_of(model: Any) -> dict[str, Any]:  # noqa: ANN401 - a torch.nn.Module
    """Return parameters, then buffers, in the order of their registration."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def spec_of(name: str, tensor: Any) -> dict[str, Any]:  # noqa: ANN401 - torch.Tensor
    """Describe a tensor; refuse what has no place in a definition."""
    if type_of(tensor) not in _TYPES:
        raise Refused("unsupported-input", f"'{name}' is {type_of(tensor)}")
    return {"name": name, "dtype": type_of(tensor), "shape": list(tensor.shape)}


def type_of(tensor: Any) -> str:  # noqa: ANN401 - torch.Tensor
    """Return the name of a tensor's element type."""
    return str(tensor.dtype).removeprefix("torch.")
