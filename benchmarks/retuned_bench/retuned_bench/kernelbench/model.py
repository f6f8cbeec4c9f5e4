"""A problem inside its child: its model in float32 and float64, its inputs, its time.

Runs where a stranger's Python runs, so that nothing here is believed by the parent further than a
problem may speak for itself: what it computes, and how long its own model takes. Imports PyTorch
when used.
"""

from __future__ import annotations

import inspect
import random
from time import perf_counter_ns
from typing import Any

from retuned_bench.kernelbench.probing import Probe
from retuned_bench.kernelbench.tensors import Refused, Tensors, spec_of, state_of


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
        """Keep one more set of inputs and weights for timing, with a model of its own."""
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
            raise Refused("wrong-signature", "Model is no torch.nn.Module")
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
