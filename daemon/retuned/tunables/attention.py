"""A call of vLLM's Triton attention on a private pool of keys and values."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.attention import FUNCTION, AttentionHook
from retuned.runtime.tunables.state import Registry
from retuned.tunables.cases import MAX_POOL_BYTES, Arena, Config, dtype_of, fill, table_of
from retuned.tunables.references import Rows, attention_rows

_MADE = ("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "block_table")
_SCRATCH = ("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum")


class AttentionCase:
    """One batch of sequences.

    Parameters
    ----------
    recipe
        As the server described the call; its lengths are those of a real step, else even ones.
    """

    def __init__(self, recipe: Mapping[str, Any], *, torch: Any, device: str) -> None:  # noqa: ANN401
        self._torch, self._device = torch, device
        self._module = importlib.import_module(str(recipe["module"]))
        self._registry = Registry()
        self._hook = AttentionHook(self._registry)
        state = self._hook.install()
        if state != "on":
            raise Refused("module-missing", detail=f"Triton attention is {state} here")
        specs = dict(recipe["call"]["arguments"])
        self._arena = Arena(torch, device)
        axes = recipe["axes"]
        self.queries, self.keys = lengths_of(
            recipe["call"].get("lengths") or (), axes=axes, longest=int(axes["longest"])
        )
        self._call = self._build(specs)
        self._run()  # the adapter sees the call, and knows the tunable from then on
        (self._tunable,) = self._registry

    def _build(self, specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        torch, arena = self._torch, self._arena
        call: dict[str, Any] = {name: _plain(spec) for name, spec in specs.items()}
        rows = sum(self.queries)
        for name in ("q", "out"):
            found = specs[name]["tensor"]
            shape = [rows, *found["shape"][1:]]
            call[name] = arena.tensor(shape, dtype_of(torch, found["dtype"]))
        call |= self._pool(specs)
        starts = [0]
        for each in self.queries:
            starts.append(starts[-1] + each)
        whole = {"dtype": torch.int32, "device": self._device}
        call["cu_seqlens_q"] = torch.tensor(starts, **whole)
        call["seqused_k"] = torch.tensor(self.keys, **whole)
        call["max_seqlen_q"], call["max_seqlen_k"] = max(self.queries), max(self.keys)
        for name in _SCRATCH:
            if "tensor" in specs.get(name, {}):
                found = specs[name]["tensor"]
                call[name] = arena.tensor(found["shape"], dtype_of(torch, found["dtype"]))
        for name, spec in specs.items():
            if "tensor" in spec and name not in (*_MADE, *_SCRATCH):
                found = spec["tensor"]
                dtype = dtype_of(torch, found["dtype"])
                if not dtype.is_floating_point:
                    raise Refused("inputs-not-recorded", detail=f"{name} holds whole numbers")
                call[name] = arena.tensor(found["shape"], dtype, stride=found["stride"])
                call[name].fill_(1.0)
            if "unsupported" in spec:
                raise Refused("inputs-unsupported", detail=f"{name} is a {spec['unsupported']}")
        return call

    def _pool(self, specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return keys, values and a block table of valid pages in random order.

        Pages are shared where the pool would be too large. The kernel reads keys and values of a
        page through the strides that the server uses.
        """
        torch = self._torch
        found = specs["k"]["tensor"]
        _, block, heads, head = found["shape"]
        dtype = dtype_of(torch, found["dtype"])
        item = torch.empty((), dtype=dtype).element_size()
        needed = [-(-each // block) for each in self.keys]
        page_bytes = 2 * block * heads * head * item
        pages = max(1, min(sum(needed), MAX_POOL_BYTES // page_bytes))
        order = {index: stride for index, stride in enumerate(found["stride"][1:], 1)}
        shape = (pages, block, heads, head)
        inner = sorted((1, 2, 3), key=lambda axis: order[axis])
        strides, step = [0, 0, 0, 0], 1
        for axis in inner:
            strides[axis] = step
            step *= shape[axis]
        strides[0] = step
        call = {n: self._arena.tensor(shape, dtype, stride=strides) for n in ("k", "v")}
        chance = random.Random(0)
        drawn = [chance.sample(range(pages), pages) for _ in range(1 + sum(needed) // pages)]
        places = [page for each in drawn for page in each]
        width = specs["block_table"]["tensor"]["shape"][1]
        table = torch.zeros((len(self.keys), max(width, *needed)), dtype=torch.int32)
        at = 0
        for row, count in enumerate(needed):
            table[row, :count] = torch.tensor(places[at : at + count], dtype=torch.int32)
            at += count
        return {**call, "block_table": table.to(self._device)}

    def _run(self) -> None:
        getattr(self._module, FUNCTION)(**self._call)

    def run(self, config: Config | None) -> None:
        """Call the server's function; a configuration is applied as the server applies it."""
        self._tunable.table = table_of(self._tunable, config)
        try:
            self._run()
        finally:
            self._tunable.table = None

    def outputs(self) -> list[Any]:
        return [self._call["out"]]

    def reset(self, seed: int) -> None:
        generator = self._torch.Generator(self._device).manual_seed(seed)
        for name in ("q", "k", "v"):
            fill(self._torch, self._call[name], generator=generator)
        self._call["out"].zero_()

    def reference(self, seed: int) -> Rows | None:
        return attention_rows(self._torch, self._call, seed=seed)

    def intact(self) -> bool:
        return self._arena.intact()


def _plain(spec: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an argument without tensors
    if "items" in spec:
        return tuple(spec["items"])
    return float(spec["number"]) if "number" in spec else spec.get("value")


def lengths_of(
    recorded: Sequence[Mapping[str, Sequence[int]]], *, axes: Mapping[str, int], longest: int
) -> tuple[list[int], list[int]]:
    """Return new rows and keys of each sequence: of a real step of this size, else even ones.

    Examples
    --------
    >>> lengths_of((), axes={"rows": 6, "sequences": 2, "decode": 0}, longest=9)
    ([3, 3], [9, 9])
    """
    rows, sequences = axes["rows"], max(1, axes["sequences"])
    fitting = [
        each
        for each in recorded
        if len(each["queries"]) == len(each["keys"]) and each["queries"] and max(each["keys"]) > 0
    ]
    if fitting:
        nearest = min(
            reversed(fitting),  # of equal ones the latest
            key=lambda each: (
                abs(len(each["queries"]) - sequences),
                abs(sum(each["queries"]) - rows),
                abs(max(each["keys"]) - longest),
            ),
        )
        return [max(1, int(n)) for n in nearest["queries"]], [
            max(1, int(n)) for n in nearest["keys"]
        ]
    each, more = divmod(max(rows, sequences), sequences)
    queries = [each + (index < more) for index in range(sequences)]
    return queries, [max(longest, query) for query in queries]
