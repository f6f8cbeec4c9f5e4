"""A layer of vLLM's fused experts on private weights, routed as the server's traffic is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.moe import MODULE, MoeHook
from retuned.runtime.tunables.state import Registry
from retuned.tunables.cases import Arena, Config, fill, table_of
from retuned.tunables.references import Rows, Weights, expert_rows

_CONFIG = "vllm.model_executor.layers.fused_moe.config"
_LAYERS = 2
"""Weights that take turns, so that the cache does not hold those of one layer."""


class MoeCase:
    """One number of tokens.

    Parameters
    ----------
    recipe
        As the server described the look-up; routes are the recorded shares of experts, else even.
    """

    def __init__(self, recipe: Mapping[str, Any], *, torch: Any, device: str) -> None:  # noqa: ANN401
        call = recipe["call"]
        geometry = call["geometry"]
        self._torch, self._device = torch, device
        self._module = importlib.import_module(MODULE)
        self._registry = Registry()
        state = MoeHook(self._registry).install()
        if state != "on":
            raise Refused("module-missing", detail=f"the experts' look-up is {state} here")
        self._tokens, self._top_k = int(call["tokens"]), int(geometry["top_k"])
        self._experts, self._routes = int(geometry["E"]), call.get("routes")
        width, hidden = int(geometry["N"]), int(geometry["K"])
        self._arena = Arena(torch, device)
        self._turn = 0
        kind, block = geometry["dtype"], geometry["block_shape"]
        self._layers = [self._layer(width, hidden, kind=kind, block=block) for _ in range(_LAYERS)]
        self._hidden = self._arena.tensor((self._tokens, hidden), torch.bfloat16)
        self._weights = torch.empty((self._tokens, self._top_k), device=device)
        self._chosen = torch.zeros((self._tokens, self._top_k), dtype=torch.int32, device=device)
        self._answer: Any = None
        self.reset(0)
        self._call()
        (self._tunable,) = self._registry

    def _layer(
        self, width: int, hidden: int, *, kind: str | None, block: list[int]
    ) -> tuple[Weights, Any]:
        """Return weights, and vLLM's configuration of their scales."""
        torch = self._torch
        shapes = (self._experts, 2 * width, hidden), (self._experts, hidden, width)
        if kind is None:
            own = [self._arena.tensor(shape, torch.bfloat16) for shape in shapes]
            generator = torch.Generator(self._device).manual_seed(1)
            for each in own:
                fill(torch, each, generator=generator, scale=each.shape[-1] ** -0.5)
            return Weights(own[0], own[1]), None
        if kind != "fp8_w8a8" or len(block) != 2:
            raise Refused("inputs-unsupported", detail=f"no experiment for {kind} with {block}")
        config = importlib.import_module(_CONFIG)
        eight, scales, scale = [], [], (hidden**-0.5, width**-0.5)
        for shape, each in zip(shapes, scale, strict=True):
            drawn = torch.randn(shape[1:], device=self._device).to(torch.float8_e4m3fn)
            whole = self._arena.tensor(shape, torch.float8_e4m3fn)
            whole.copy_(drawn.expand(shape))
            eight.append(whole)
            blocks = (shape[0], -(-shape[1] // block[0]), -(-shape[2] // block[1]))
            scales.append(torch.full(blocks, each, device=self._device))
        quant = config.fp8_w8a8_moe_quant_config(
            w1_scale=scales[0], w2_scale=scales[1], block_shape=list(block)
        )
        return Weights(eight[0], eight[1], scale), quant

    def _call(self) -> None:
        weights, quant = self._layers[self._turn % _LAYERS]
        self._turn += 1
        self._answer = self._module.fused_experts(
            self._hidden,
            weights.first,
            weights.second,
            self._weights,
            self._chosen,
            quant_config=quant,
        )

    def run(self, config: Config | None) -> None:
        """Call the server's function; a row is applied as the server applies it."""
        self._tunable.table = table_of(self._tunable, config)
        try:
            self._call()
        finally:
            self._tunable.table = None

    def outputs(self) -> list[Any]:
        return [self._answer]

    def reset(self, seed: int) -> None:
        torch = self._torch
        generator = torch.Generator(self._device).manual_seed(seed)
        fill(torch, self._hidden, generator=generator)
        shares = torch.ones(self._experts, device=self._device)
        if self._routes:
            shares = torch.tensor(self._routes, device=self._device, dtype=torch.float32) + 1e-6
        drawn = torch.multinomial(shares.expand(self._tokens, -1), self._top_k, generator=generator)
        self._chosen.copy_(drawn)
        self._weights.uniform_(0.05, 1.0, generator=generator)
        self._weights /= self._weights.sum(-1, keepdim=True)
        self._turn = 0

    def reference(self, seed: int) -> Rows:
        weights, _ = self._layers[(self._turn - 1) % _LAYERS]
        return expert_rows(
            self._torch,
            self._hidden,
            weights,
            chosen=self._chosen,
            shares=self._weights,
            seed=seed,
        )

    def intact(self) -> bool:
        return self._arena.intact()
