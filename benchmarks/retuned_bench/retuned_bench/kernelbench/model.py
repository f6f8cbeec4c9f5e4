"""A problem inside its child: its model in float32 and float64, its inputs, its time.

This module runs beside untrusted Python. The parent uses only what a problem may state about
itself: what it computes, and how long its own model takes. `Probe` refuses a model that is not a
function of its inputs and weights: a reference that draws random numbers, keeps state, hides
weights or rounds on the way would judge kernels wrongly. PyTorch is imported when it is used.
"""

from __future__ import annotations

import inspect
import random
from time import perf_counter_ns
from typing import Any

from retuned_bench.kernelbench.tensors import (
    NARROW,
    WIDE,
    Refused,
    Tensors,
    spec_of,
    state_of,
    type_of,
)

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
        """Refuse a model that also depends on chance, on earlier calls or on hidden weights.

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


class Problem:
    """One problem file, executed.

    Parameters
    ----------
    text
        Its source.
    device
        Where the model runs: ``cpu`` or ``cuda``.
    """

    def __init__(self, text: str, *, device: str) -> None:
        import numpy
        import torch

        self._numpy, self._torch, self._device = numpy, torch, device
        self._tensors = Tensors(device)
        self._probe = Probe(self._tensors, device=device)
        self._names: dict[str, Any] = {"__name__": "problem"}
        self._inputs: list[tuple[str, str]] = []
        self._weights: list[tuple[str, str]] = []
        self._outputs: list[str] = []
        self._models: dict[bool, Any] = {}
        self._sets: list[tuple[Any, list[Any]]] = []
        self._calls: list[Any] = []
        self._seed(0)
        exec(compile(text, "problem", "exec"), self._names)
        missing = [n for n in ("Model", "get_inputs", "get_init_inputs") if n not in self._names]
        if missing:
            raise Refused("not-a-problem", f"defines no {', '.join(missing)}")

    def describe(self, seed: int) -> dict[str, Any]:
        """Return names, shapes and types of inputs, weights and outputs; refuse what cannot be."""
        model, values = self._build(seed), self._given(seed)
        self._inputs = self._name_inputs(model, values)
        wide, other = self._build(seed).double(), self._build(seed + 1).double()
        taken = {name for name, _ in self._inputs}
        self._weights = [
            (_unique(_word(name), taken), name) for name in self._probe.used(wide, values)
        ]
        copies = [value.clone() if hasattr(value, "clone") else value for value in values]
        answer = self._tensors.answers(model, copies, double=False)
        self._outputs = ["out"] if len(answer) == 1 else [f"out{n}" for n in range(len(answer))]
        self._probe.examine(wide, other, values, self._given(seed + 1))
        self._models = {False: model, True: wide}
        parts = state_of(model)
        weights = [(called, parts[name]) for called, name in self._weights]
        return {
            "inputs": [
                {**spec_of(called, value), "scalar": kind == "scalar"}
                for (called, kind), value in zip(
                    self._inputs, self._as_tensors(values), strict=True
                )
            ],
            "weights": [spec_of(called, tensor) for called, tensor in weights],
            "outputs": [
                spec_of(called, tensor)
                for called, tensor in zip(self._outputs, answer, strict=True)
            ],
        }

    def draw(self, seed: int) -> list[Any]:
        """Return one array per input and weight, as the problem itself makes them."""
        model, values = self._build(seed), self._given(seed)
        if len(values) != len(self._inputs):
            raise Refused("inputs-vary", "makes another number of inputs for another seed")
        state = state_of(model)
        tensors = self._as_tensors(values) + [state[name] for _, name in self._weights]
        return [self._tensors.array(tensor) for tensor in tensors]

    def forward(self, arrays: list[Any], *, double: bool) -> list[Any]:
        """Return one array per output, in float64 where asked."""
        model = self._models[double]
        with self._tensors.precision(double=double):
            values = self._load(model, arrays, double=double)
            return [
                self._tensors.array(each)
                for each in self._tensors.answers(model, values, double=double)
            ]

    def place(self, arrays: list[Any]) -> None:
        """Keep one more set of inputs and weights for timing, with a separate model."""
        model = self._build(0)
        self._sets.append((model, self._load(model, arrays, double=False)))
        self._calls = [model for model, _ in self._sets]

    def threads(self, count: int) -> None:
        """Use so many threads from now on."""
        self._torch.set_num_threads(count)

    def compile(self) -> None:
        """Let PyTorch's compiler take the models of all sets, and run each once."""
        import torch._inductor.config as config

        config.cpp_cache_precompile_headers = False  # larger than a file may get here
        self._calls = [self._torch.compile(model) for model, _ in self._sets]
        with self._torch.no_grad():
            for call, (_, values) in zip(self._calls, self._sets, strict=True):
                call(*values)
        self._tensors.wait()

    def time(self, calls: int, first: int, group: int) -> list[int]:
        """Call the model, sets in turn; return the time of each group of calls, ns."""
        count, sets, times = len(self._sets), self._sets, []
        with self._torch.no_grad():
            for start in range(first, first + calls, group):
                begin = perf_counter_ns()
                for turn in range(start, start + group):
                    self._calls[turn % count](*sets[turn % count][1])
                self._tensors.wait()
                times.append(perf_counter_ns() - begin)
        return times

    def _build(self, seed: int) -> Any:  # noqa: ANN401 - a torch.nn.Module
        self._seed(seed)
        made = self._names["get_init_inputs"]()
        if not isinstance(made, (list, tuple)):
            raise Refused("wrong-signature", "get_init_inputs() returns no list")
        model = self._names["Model"](*made)
        if not isinstance(model, self._torch.nn.Module):
            raise Refused("wrong-signature", "Model is not a torch.nn.Module")
        return model.to(self._device)

    def _given(self, seed: int) -> list[Any]:
        self._seed(seed + 7_919)
        made = self._names["get_inputs"]()
        if not isinstance(made, (list, tuple)) or not made:
            raise Refused("wrong-signature", "get_inputs() returns no list of inputs")
        for value in made:
            tensor = isinstance(value, self._torch.Tensor)
            if not tensor and not isinstance(value, (bool, int, float)):
                text = f"an input is {type(value).__name__}; only tensors and numbers are passed on"
                raise Refused("unsupported-input", text)
        return [v.detach().to(self._device) if hasattr(v, "detach") else v for v in made]

    def _seed(self, seed: int) -> None:
        self._torch.manual_seed(seed)
        random.seed(seed)
        self._numpy.random.seed(seed % 2**32)

    def _name_inputs(self, model: Any, values: list[Any]) -> list[tuple[str, str]]:  # noqa: ANN401
        try:
            bound = inspect.signature(model.forward).bind(*values)
        except TypeError as error:
            raise Refused("wrong-signature", f"forward does not take its inputs: {error}") from None
        words: list[str] = []
        for name, value in bound.arguments.items():
            many = inspect.signature(model.forward).parameters[name].kind
            if many is inspect.Parameter.VAR_POSITIONAL:
                words += [f"{name}{n}" for n in range(len(value))]
            else:
                words.append(name)
        taken: set[str] = set()
        kinds = ["tensor" if isinstance(v, self._torch.Tensor) else "scalar" for v in values]
        return [(_unique(_word(w), taken), k) for w, k in zip(words, kinds, strict=True)]

    def _load(self, model: Any, arrays: list[Any], *, double: bool) -> list[Any]:  # noqa: ANN401
        """Put weights into a model, and return the values to call it with."""
        state = state_of(model)
        count = len(self._inputs)
        self._tensors.put(
            model,
            {
                name: self._tensors.tensor(array, like=state[name])
                for (_, name), array in zip(self._weights, arrays[count:], strict=True)
            },
        )
        values = []
        for (_, kind), array in zip(self._inputs, arrays[:count], strict=True):
            tensor = self._tensors.tensor(array)
            values.append(
                tensor.reshape(-1)[0].item() if kind == "scalar" else
                self._tensors.widen(tensor, double=double)
            )  # fmt: skip
        return values

    def _as_tensors(self, values: list[Any]) -> list[Any]:
        found = []
        for (_, kind), value in zip(self._inputs, values, strict=True):
            if (kind == "scalar") is isinstance(value, self._torch.Tensor):
                raise Refused("inputs-vary", "makes other kinds of inputs for another seed")
            if kind == "tensor":
                found.append(value)
                continue
            kinds = {bool: self._torch.bool, int: self._torch.int64, float: self._torch.float32}
            found.append(self._torch.tensor([value], dtype=kinds[type(value)]))
        return found


def _word(name: str) -> str:
    """Return a name that C++ and Triton know as one."""
    word = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    word = word.strip("_") or "tensor"
    return (f"t{word}" if word[0].isdigit() else word)[:60].replace("__", "_")


def _unique(word: str, taken: set[str]) -> str:
    found, number = word, 2
    while found in taken or found in ("out", "axes", "scratch", "part", "parts"):
        found, number = f"{word}_{number}", number + 1
    taken.add(found)
    return found
