"""vLLM's fused mixture of experts in Triton: rows of the launch table by tokens, live.

``try_get_optimal_moe_config`` returns the row for a number of tokens, from a file, by the nearest
number, or from literals. Its wrapper returns the table's row where a rule matches. The alignment of
tokens to experts, both products and their workspaces follow from that row in vLLM's own code.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.steps.launch_times import LaunchSpan
from retuned.runtime.tunables.checks import UNKNOWN
from retuned.runtime.tunables.expert_layers import ExpertLayers
from retuned.runtime.tunables.records import Config, Table, digest_of_text
from retuned.runtime.tunables.state import (
    Pointer,
    Registry,
    SizeClass,
    Tunable,
    capturing,
    compile_only,
    replace_among,
    replace_everywhere,
)

MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"
FUNCTION, KERNEL = "try_get_optimal_moe_config", "fused_moe_kernel"
_PARAMETERS = ("w1_shape", "w2_shape", "top_k", "dtype", "M", "block_shape")
_NEEDED = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)
SPACE: Mapping[str, list[int]] = {
    "BLOCK_SIZE_M": [16, 32, 64, 128],
    "BLOCK_SIZE_N": [32, 64, 128, 256],
    "BLOCK_SIZE_K": [64, 128, 256],
    "GROUP_SIZE_M": [1, 16, 32, 64],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4, 5],
}
_KEPT = frozenset({"SPLIT_K", "waves_per_eu", "matrix_instr_nonkdim", "kpack"})
_LAUNCHES = 2
"""The kernel runs twice for each look-up."""
_KINDS = ("MUL_ROUTED_WEIGHT", "top_k", "naive_block_assignment", "HAS_BIAS")
"""Constants by which the launches of one tunable differ."""


class MoeHook:
    """Hook on the look-up of rows.

    Parameters
    ----------
    registry
        Where found tunables go.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._stock: Callable[..., dict[str, Any]] | None = None
        self._ours: Callable[..., dict[str, Any]] | None = None
        self._holders: list[Any] = []
        """Modules that hold the function."""
        self._known: dict[tuple[Any, ...], Tunable | None] = {}
        self._timer = _Timer()
        self._launches = _Launches()
        self._layers = ExpertLayers(lambda: registry.failed("moe"))
        self.state = "vllm-missing"

    def install(self) -> str:
        """Put the wrapper before the look-up, in every module that holds it. Idempotent."""
        module = sys.modules.get(MODULE)
        stock = getattr(module, FUNCTION, None)
        if module is None or stock is None or self._stock is not None:
            self._hold()
            return self.state
        if tuple(inspect.signature(stock).parameters) != _PARAMETERS:
            self.state = "moe-unknown"
            return self.state
        self._stock, self._ours = stock, self._wrapper(stock)
        self._hold()
        self.resume()
        self.state = "on"
        return self.state

    def _hold(self) -> None:
        """Replace the look-up in modules that have imported its name, and wrap the layers."""
        if self._stock is not None:
            self._holders = replace_everywhere(FUNCTION, self._stock, self._ours)
            self._layers.hold()

    def resume(self) -> None:
        """Put the wrapper before the look-up again; see `core.own_overhead.Wrapper`."""
        if self._stock is None:
            return
        replace_among(self._holders, FUNCTION, self._stock, self._ours)
        self._layers.hold()
        module = sys.modules.get(MODULE)
        kernel = getattr(module, KERNEL, None)
        if kernel is not None and not isinstance(kernel, _Kernel):
            setattr(module, KERNEL, _Kernel(kernel, self._launched))

    def suspend(self) -> None:
        """Restore the look-up, the layers and the kernel for a while."""
        if self._stock is None:
            return
        self._layers.suspend()
        replace_among(self._holders, FUNCTION, self._ours, self._stock)
        module = sys.modules.get(MODULE)
        kernel = getattr(module, KERNEL, None)
        if isinstance(kernel, _Kernel):
            setattr(module, KERNEL, kernel.kernel)

    def in_place(self) -> bool:
        """Whether look-ups still pass through the wrapper."""
        found = getattr(sys.modules.get(MODULE), FUNCTION, None)
        return found is not None and found is self._ours

    def uninstall(self) -> None:
        """Restore the look-up, the layers and the kernel."""
        if self._stock is None:
            return
        self._hold()  # also modules that have taken the wrapper since
        self.suspend()
        self._layers.uninstall()
        self._stock = self._ours = None
        self._holders.clear()
        self._known.clear()
        self.state = "uninstalled"

    def _launched(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        try:
            self._launches.seen(kernel, args, kwargs)
            self._timer.launched()
        except (
            Exception
        ):  # nothing of ours reaches the server; its next call meets a device's error
            self._timer.forget()
            self._registry.failed("moe")

    def _wrapper(self, stock: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(stock)
        def try_get_optimal_moe_config(*args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
            row = stock(*args, **kwargs)
            try:
                given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
                config = self._seen(given, row)
            except Exception:
                self._registry.failed("moe")
                config = None
            return row if config is None else {**row, **config}

        return try_get_optimal_moe_config

    def _seen(self, given: Mapping[str, Any], row: Mapping[str, Any]) -> Config | None:
        w1, w2 = tuple(given["w1_shape"]), tuple(given["w2_shape"])
        block = tuple(given.get("block_shape") or ())
        key = (w1, w2, given["top_k"], given["dtype"], block)
        tunable: Tunable | None = self._known.get(key, _MISSING)
        if tunable is _MISSING:
            tunable = self._known[key] = self._registry.add(self._made(given, w1, w2, block))
        if tunable is None or tunable.refused or _overridden():
            return None
        self._launches.expect(tunable)
        tokens = int(given["M"])
        forced = self._layers.looked_up(tunable, tokens)
        if forced is not None:  # counted by the check
            self._timer.forget()
            return forced.config
        axes = {"tokens": tokens}
        sized = tunable.sized(axes)
        in_capture = capturing()
        sized.captured += in_capture
        if self._layers.learn(tunable) and tunable.checks is not None and not in_capture:
            config = None  # a table serves no layer before a check of it
            sized.launches += 1
        else:
            config = tunable.choose(axes, sized)
        if config is None:
            sized.config = dict(row)
            sized.how, sized.detail = _resolved(given, w2, block)
        elif tunable.checks is not None and not in_capture and not self._layers.inside:
            tunable.checks.pass_over(axes, UNKNOWN)
        if tunable.wants_recipe(sized):
            tunable.record(sized, _recipe(tunable, tokens, row))
        if not in_capture:
            self._timer.begin(sized)
        return config

    def _made(
        self,
        given: Mapping[str, Any],
        w1: tuple[int, ...],
        w2: tuple[int, ...],
        block: tuple[int, ...],
    ) -> Tunable:
        module = sys.modules[MODULE]
        kernel = getattr(module, KERNEL, None)
        tunable = Tunable(
            "moe",
            kernel=KERNEL,
            module=MODULE,
            source=digest_of_text(str(getattr(kernel, "src", ""))),
            geometry={
                "E": w2[0],
                "N": w2[2],
                "K": w1[2],
                "top_k": int(given["top_k"]),
                "dtype": given["dtype"],
                "block_shape": list(block),
            },
            axes=("tokens",),
            space={"parameters": {name: list(values) for name, values in SPACE.items()}},
            check=_check,
            warm=lambda table: self._launches.warm(table),
        )
        tunable.refused = _refusal(module)
        return tunable


_MISSING: Any = object()


def _overridden() -> bool:
    """Whether vLLM's own override of all rows is in force, as in its tuning scripts."""
    override = getattr(sys.modules.get(MODULE.rpartition(".")[0]), "get_config", None)
    return override is not None and bool(override())


def _refusal(module: Any) -> str:  # noqa: ANN401 - vLLM's
    """Return why this server ignores tables; empty if it does not."""
    envs = getattr(module, "envs", None)
    return "batch-invariant" if getattr(envs, "VLLM_BATCH_INVARIANT", False) else ""


def _check(config: Config) -> None:
    """Verify a row.

    Raises
    ------
    Refused
        ``config-unknown``.
    """
    lacking = [name for name in _NEEDED if type(config.get(name)) is not int]
    unknown = set(config) - set(_NEEDED) - _KEPT
    blocks = (config.get(name, 0) for name in _NEEDED[:3])
    if lacking or unknown or not all(16 <= b <= 512 and not b & (b - 1) for b in blocks):
        detail = f"lacks {lacking[:3]}, has unknown {sorted(unknown)[:3]}, or a block is unusual"
        raise Refused("config-unknown", detail=detail)


def _resolved(
    given: Mapping[str, Any], w2: tuple[int, ...], block: tuple[int, ...]
) -> tuple[str, str]:
    """Return how the server found its row, and at which number of tokens."""
    module = sys.modules[MODULE]
    wide = w2[2] * 2 if given["dtype"] == "int4_w4a16" else w2[2]
    first, second = block if block else (0, 0)
    rows = module.get_moe_configs(w2[0], wide, given["dtype"], first, second)
    if not rows:
        return "default", "no file for this card and shape"
    tokens = int(given["M"])
    nearest = min(rows, key=lambda each: abs(each - tokens))
    return ("exact" if nearest == tokens else "nearest"), f"row of {nearest} tokens"


def _recipe(tunable: Tunable, tokens: int, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tunable": tunable.id,
        "family": "moe",
        "module": MODULE,
        "name": FUNCTION,
        "axes": {"tokens": tokens},
        "call": {
            "geometry": tunable.geometry,
            "tokens": tokens,
            "activation": "silu",
            "routes": None,
            "in_force": dict(row),
        },
    }


class _Timer:
    """Times expert layers that are due: from the look-up to the second launch.

    While a live proof times layers, it decides which ones. To it a layer is one launch: its two
    products take different times, of which no median says anything.
    """

    def __init__(self) -> None:
        self._span: SizeClass | LaunchSpan | None = None
        self._begun: Any = None
        self._launches = 0

    def begin(self, sized: SizeClass) -> None:
        self._launches = 0
        self._span = sized.proof or sized
        self._begun = self._span.begin()

    def forget(self) -> None:
        self._span = self._begun = None

    def launched(self) -> None:
        if self._span is None or self._begun is None:
            return
        self._launches += 1
        if self._launches == _LAUNCHES:
            self._span.end(self._begun)
            self.forget()


class _Launches:
    """Both launches of each tunable as they were seen, without tensors: what a row compiles for."""

    def __init__(self) -> None:
        self._expected: str | None = None
        self._left = 0
        self._seen: dict[str, dict[tuple[Any, ...], tuple[Any, dict[str, Any]]]] = {}

    def expect(self, tunable: Tunable) -> None:
        """Count the next launches as this tunable's: its row was looked up."""
        self._expected, self._left = tunable.id, _LAUNCHES

    def seen(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Note a launch, once for each kind."""
        if self._expected is None or not self._left:
            return
        self._left -= 1
        kind = tuple(kwargs.get(name) for name in _KINDS)
        known = self._seen.setdefault(self._expected, {})
        if kind not in known:
            named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
            known[kind] = kernel, {name: _untouched(value) for name, value in named.items()}

    def warm(self, table: Table) -> None:
        """Compile the rows of a table for the kinds of launches that were seen.

        Triton specialises on whether tokens, and tokens with padding, are multiples of 16.
        """
        for rule in table.rules:
            for kernel, named in list(self._seen.get(table.tunable, {}).values()):
                changed = _under(rule.config, named)
                for padded, tokens in itertools.product((16, 17), repeat=2):
                    compile_only(kernel, {**changed, "EM": padded, "num_valid_tokens": tokens})


def _untouched(value: Any) -> Any:  # noqa: ANN401 - an argument
    if not hasattr(value, "data_ptr"):
        return value
    return Pointer(value.dtype, address=value.data_ptr() % 16)


def _under(config: Config, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a launch under a row, as vLLM's launcher derives them."""
    changed = {**named, **config, "SPLIT_K": named["SPLIT_K"]}
    block = [each for each in (named.get("group_n"), named.get("group_k")) if each]
    changed["BLOCK_SIZE_K"] = min([config["BLOCK_SIZE_K"], *block])
    swaps = getattr(sys.modules[MODULE], "enable_swap_ab", None)
    if "SWAP_AB" in named and named["use_fp8_w8a8"] and swaps is not None:
        changed["SWAP_AB"] = swaps(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
    if named.get("USE_TD") and named["K"] % changed["BLOCK_SIZE_K"]:
        changed["USE_TD"] = False
    return changed


class _Kernel:
    """In place of the kernel: reports its launches."""

    def __init__(self, kernel: Any, launched: Callable[..., None]) -> None:  # noqa: ANN401 - a JITFunction
        self.kernel, self._launched = kernel, launched

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the kernel's
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:  # noqa: ANN401 - as Triton's
        def launch(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            found = self.kernel[grid](*args, **kwargs)
            self._launched(self.kernel, args, kwargs)
            return found

        return launch
