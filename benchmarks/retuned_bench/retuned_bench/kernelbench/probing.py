"""Whether a problem's model is a function of its inputs and weights, and of which weights.

A reference that draws numbers, remembers, hides weights or rounds on the way would judge kernels
wrongly. Runs inside the problem's child.
"""

from __future__ import annotations

import random
from typing import Any

from retuned_bench.kernelbench.tensors import NARROW, WIDE, Refused, Tensors, state_of, type_of

_MOST_TENSORS = 512


class Probe:
    """Runs models in float64 to see what their answers depend on.

    Parameters
    ----------
    tensors
        PyTorch on the problem's device.
    device
        That device: ``cpu`` or ``cuda``.
    """

    def __init__(self, tensors: Tensors, *, device: str) -> None:
        import numpy
        import torch

        self._numpy, self._torch, self._device = numpy, torch, device
        self._tensors = tensors

    def used(self, model: Any, values: list[Any]) -> list[str]:  # noqa: ANN401
        """Return the weights that a model touches.

        Raises
        ------
        Refused
            ``no-double`` for a model that rounds on the way; ``too-large``.
        """
        from torch.overrides import TorchFunctionMode

        state = state_of(model)
        seen: set[int] = set()
        rounded: list[str] = []
        torch = self._torch

        class Watch(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(
                self,
                func: Any,  # noqa: ANN401
                types: Any,  # noqa: ANN401
                args: Any = (),  # noqa: ANN401
                kwargs: Any = None,  # noqa: ANN401
            ) -> Any:  # noqa: ANN401
                seen.update(id(each) for each in _leaves((args, kwargs or {})))
                found = func(*args, **(kwargs or {}))
                for each in _leaves(found):
                    if isinstance(each, torch.Tensor) and type_of(each) in NARROW:
                        rounded.append(getattr(func, "__name__", "an operator"))
                return found

        with self._tensors.precision(double=True), torch.no_grad():
            widened = [self._tensors.widen(value, double=True) for value in values]
            with Watch():
                model(*widened)
        if rounded:
            text = f"computes in less than float64 when asked for float64, in {rounded[0][:60]}"
            raise Refused("no-double", text)
        used = [name for name, tensor in state.items() if id(tensor) in seen]
        if len(used) > _MOST_TENSORS:
            raise Refused("too-large", f"{len(used)} weights are more than {_MOST_TENSORS}")
        return used

    def examine(self, model: Any, other: Any, values: list[Any], later: list[Any]) -> None:  # noqa: ANN401
        """Refuse what is no function of inputs and weights: chance, memory, hidden weights.

        Parameters
        ----------
        model, other
            Of two seeds, in float64.
        values, later
            Inputs of two seeds.

        Raises
        ------
        Refused
            With what is wrong.
        """
        tensors = self._tensors
        before = {name: each.detach().clone() for name, each in state_of(model).items()}
        with tensors.precision(double=True):
            widened = [tensors.widen(value, double=True) for value in values]
            kept = [v.clone() if hasattr(v, "clone") else v for v in widened]
            chance = self._chance()
            first = [each.clone() for each in tensors.answers(model, widened, double=True)]
            if self._chance() != chance:
                raise Refused("draws-random-numbers", "forward draws random numbers")
            if not all(tensors.alike([a], [b]) for a, b in zip(widened, kept, strict=True)):
                raise Refused("changes-inputs", "forward writes into its inputs")
            changed = [n for n, e in state_of(model).items() if not self._torch.equal(e, before[n])]
            if changed:
                text = f"forward changes {changed[0][:60]}; is it a normalisation in training mode?"
                raise Refused("changes-state", text)
            second = [tensors.widen(value, double=True) for value in later]
            tensors.put(other, before)
            if not tensors.alike(first, tensors.wide_answers(other, kept)):
                text = "the answer follows from more than inputs, parameters and buffers: a tensor "
                raise Refused("hidden-state", text + "that is not registered depends on the seed")
            fresh = tensors.wide_answers(other, second)
            if not tensors.alike(fresh, tensors.wide_answers(model, second)):
                raise Refused("hidden-state", "the answer depends on earlier calls")
            if not tensors.alike(first, tensors.wide_answers(model, kept)):
                raise Refused("hidden-state", "the same call twice has two answers")
        if any(type_of(each) in WIDE and bool(each.isnan().all()) for each in first):
            raise Refused("nan-output", "the answer is not a number, everywhere")
        if all(each.numel() >= 8 and bool((each == each.reshape(-1)[0]).all()) for each in first):
            raise Refused("constant-output", "every element of the answer is the same number")
        if tensors.alike(first, fresh):
            raise Refused("constant-output", "the answer does not depend on the inputs")

    def _chance(self) -> list[Any]:
        state = [self._torch.get_rng_state().tolist(), random.getstate()]
        state.append(str(self._numpy.random.get_state()))
        if self._device != "cpu":
            state.append(self._torch.cuda.get_rng_state().tolist())
        return state


def _leaves(tree: Any) -> list[Any]:  # noqa: ANN401 - nested lists, tuples and dicts
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [leaf for each in tree for leaf in _leaves(each)]
    return [tree]
