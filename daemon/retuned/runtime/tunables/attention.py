"""vLLM's Triton attention: tile, rows, warps, stages and segments by size, instead of literals.

``unified_attention`` chooses its configuration by literals in its code. Its wrapper notes the sizes
of a call and chooses a rule of the table; stand-ins for the two kernels that it launches change
their constants. Both kernels of the segmented form stay in step. No code of vLLM is copied.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.checks import Sides, tensors_of
from retuned.runtime.tunables.records import Config, Table, bucket, digest_of_text
from retuned.runtime.tunables.state import (
    Pointer,
    Registry,
    SizeClass,
    Tunable,
    capturing,
    compile_only,
    replace_among,
    replace_everywhere,
    spec_of,
    timed,
)

MODULE = "vllm.v1.attention.ops.triton_unified_attention"
FUNCTION, KERNEL, REDUCE = "unified_attention", "kernel_unified_attention", "reduce_segments"
AXES = ("rows", "sequences", "decode", "longest")
_OUTPUT = "out"
"""The only tensor that a call writes, beside its scratch."""
_PARAMETERS = (
    *("q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k"),
    *("window_size", "softcap", "seq_threshold_3D", "num_par_softmax_segments"),
    *("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"),
)
_LAUNCHED = (
    *("query_ptr", "num_queries_per_kv", "num_seqs", "BLOCK_M", "BLOCK_Q", "TILE_SIZE"),
    *("NUM_SEGMENTS_PER_SEQ", "IS_3D", "USE_TD", "BLOCK_SIZE"),
)
"""Parameters of the kernel that are read or changed."""
TILES = (16, 32, 64, 128)
ROWS = (16, 32, 64, 128)
SEGMENTS = (0, 2, 4, 8, 16, 32, 64)
WARPS = (2, 4, 8)
STAGES = (2, 3, 4)
_SPACE = {
    "BLOCK_M": list(ROWS),
    "TILE_SIZE": list(TILES),
    "num_warps": list(WARPS),
    "num_stages": list(STAGES),
    "segments": list(SEGMENTS),
}
_LEAST_ROWS = 16
_MAX_QUICK = 1024
_INT4 = 4
"""``KVQuantMode.INT4_PER_TOKEN_HEAD``."""
Launch = Callable[..., Any]


class AttentionHook:
    """Hook on ``unified_attention`` and the kernels that it launches.

    Parameters
    ----------
    registry
        Where found tunables go.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._now = threading.local()
        self._stock: Launch | None = None
        self._ours: Launch | None = None
        self._holders: list[Any] = []
        """Modules that hold the function."""
        self._kernels: dict[str, Any] = {}
        self._known: dict[tuple[Any, ...], tuple[Tunable, _Form] | None] = {}
        self._quick: dict[tuple[Any, ...], tuple[Tunable, SizeClass]] = {}
        """By what tells one call from another: all but the data."""
        self.state = "vllm-missing"

    def install(self) -> str:
        """Put the wrapper before the function, in every module that holds it. Idempotent.

        Returns
        -------
        str
            ``on`` or a reason code. Later importers get the wrapper from the module.
        """
        module = sys.modules.get(MODULE)
        stock = getattr(module, FUNCTION, None)
        if module is None or stock is None or self._stock is not None:
            self._hold()
            return self.state
        kernels = {name: getattr(module, name, None) for name in (KERNEL, REDUCE)}
        lacking = set(_PARAMETERS) - set(inspect.signature(stock).parameters)
        arguments = getattr(kernels[KERNEL], "arg_names", None) or ()
        if lacking or kernels[REDUCE] is None or not set(_LAUNCHED) <= set(arguments):
            self.state = "attention-unknown"
            return self.state
        if getattr(module, "is_batch_invariant", False):
            self.state = "batch-invariant"
            return self.state
        self._stock, self._kernels = stock, kernels
        self._ours = self._wrapper(stock)
        self._hold()
        self.resume()
        self.state = "on"
        return self.state

    def resume(self) -> None:
        """Put the wrapper before the function again; see `core.own_overhead.Wrapper`."""
        if self._stock is None:
            return
        module = sys.modules.get(MODULE)
        for name, rewrite in ((KERNEL, self._rewrite), (REDUCE, self._rewrite_reduce)):
            setattr(module, name, _StandIn(self._kernels[name], rewrite, self._now))
        replace_among(self._holders, FUNCTION, self._stock, self._ours)

    def suspend(self) -> None:
        """Restore the function and the kernels for a while."""
        if self._stock is None:
            return
        replace_among(self._holders, FUNCTION, self._ours, self._stock)
        module = sys.modules.get(MODULE)
        for name, kernel in self._kernels.items():
            if isinstance(getattr(module, name, None), _StandIn):
                setattr(module, name, kernel)

    def _hold(self) -> None:
        """Replace the function in modules that have imported its name."""
        if self._stock is not None:
            self._holders = replace_everywhere(FUNCTION, self._stock, self._ours)

    def in_place(self) -> bool:
        """Whether launches still pass through the stand-ins."""
        module = sys.modules.get(MODULE)
        kernels = (getattr(module, name, None) for name in self._kernels)
        whole = getattr(module, FUNCTION, None) is self._ours and self._ours is not None
        return whole and all(isinstance(each, _StandIn) for each in kernels)

    def uninstall(self) -> None:
        """Restore the function and the kernels."""
        if self._stock is None:
            return
        self._hold()  # also modules that have taken the wrapper since
        self.suspend()
        self._stock = self._ours = None
        self._holders.clear()
        self._known.clear()
        self._quick.clear()
        self.state = "uninstalled"

    # --- a call -----------------------------------------------------------------------------------

    def _wrapper(self, stock: Launch) -> Launch:
        registry, quick = self._registry, self._quick
        names = tuple(inspect.signature(stock).parameters)

        @functools.wraps(stock)
        def unified_attention(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM's
            try:
                alike = _alike(kwargs)
                known = quick.get(alike)
            except (AttributeError, KeyError, TypeError):  # positional arguments
                known = alike = None
            if known is not None and known[0].only_counts(known[1]) and not registry.assumed:
                known[1].launches += 1
                return stock(**kwargs)
            try:
                given = {**dict(zip(names, args, strict=False)), **kwargs} if args else kwargs
                seen = self._seen(given)
            except Exception:
                registry.failed("attention")
                seen = None
            if seen is None:
                return stock(*args, **kwargs)
            if alike is not None and not seen.in_capture and seen.sized.config:
                if len(quick) >= _MAX_QUICK:
                    quick.clear()
                quick[alike] = seen.tunable, seen.sized

            def run(config: Config | None, outputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
                return self._run(stock, seen, {**given, **outputs} if outputs else given, config)

            if seen.config is not None:
                try:
                    return _under_table(seen, seen.config, given, run)
                except Exception:  # such as no memory for segments, or for a block
                    registry.failed("attention")
                    seen.tunable.leave_out(seen.config)
            return timed(seen.sized, lambda: run(None, {}), in_capture=seen.in_capture)

        return unified_attention

    def _run(
        self, stock: Launch, call: _Call, given: Mapping[str, Any], config: Config | None
    ) -> Any:  # noqa: ANN401 - as vLLM's
        now = self._now
        if config is not None:
            given = call.form.given(given, config, in_capture=call.in_capture)
        now.form, now.config = call.form, config
        try:
            return stock(**given)
        finally:
            now.form = now.config = None

    def _seen(self, given: Mapping[str, Any]) -> _Call | None:
        q, k = given["q"], given["k"]
        if given.get("kv_quant_mode") == _INT4:  # another kernel, with the same reduction
            return None
        if given.get("use_td"):  # tensor descriptors (Intel) bind the tile to the block
            return None
        key = (
            *(q.shape[1], q.shape[2], k.shape[1], k.shape[2], q.dtype, k.dtype),
            *(given["window_size"], bool(given["softcap"]), given.get("sinks") is None),
        )
        found = self._known.get(key, _MISSING)
        if found is _MISSING:
            found = self._known[key] = self._made(given)
        if found is None:
            return None
        tunable, form = found
        axes = {
            "rows": q.shape[0],
            "sequences": given["seqused_k"].shape[0],
            "decode": int(given["max_seqlen_q"] == 1),
            "longest": int(given["max_seqlen_k"]),
            **self._registry.assumed,
        }
        sized = tunable.sized(axes)
        config = tunable.choose(axes, sized)
        if config is None:
            sized.how = "literal"
        in_capture = capturing()
        if not in_capture and tunable.wants_recipe(sized):
            tunable.record(sized, _recipe(tunable, given, axes))
        form.sized = sized
        return _Call(tunable, form, sized, axes, config, in_capture)

    def _made(self, given: Mapping[str, Any]) -> tuple[Tunable, _Form] | None:
        q, k = given["q"], given["k"]
        form = _Form(self._kernels, queries_per_kv=q.shape[1] // k.shape[2])
        module = sys.modules[MODULE]
        source = "".join(str(getattr(each, "src", "")) for each in self._kernels.values())
        tunable = Tunable(
            "attention",
            kernel=KERNEL,
            module=module.__name__,
            source=digest_of_text(source),
            geometry={
                "query_heads": q.shape[1],
                "kv_heads": k.shape[2],
                "head_size": q.shape[2],
                "block_size": k.shape[1],
                "dtype": str(q.dtype).removeprefix("torch."),
                "kv_dtype": str(k.dtype).removeprefix("torch."),
                "window": list(given["window_size"]),
                "softcap": bool(given["softcap"]),
                "sinks": given.get("sinks") is not None,
            },
            axes=AXES,
            space={"parameters": _SPACE},
            check=form.check,
            warm=form.warm,
        )
        added = self._registry.add(tunable)
        return (added, form) if added is tunable else None

    def _rewrite(self, grid: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        form, config = getattr(self._now, "form", None), getattr(self._now, "config", None)
        if form is None:
            return grid, kwargs
        try:
            form.note(kwargs)
            return (grid, kwargs) if config is None else form.rewritten(grid, kwargs, config)
        except Exception:
            self._registry.failed("attention")
            self._now.config = None  # the second kernel must stay in step
            return grid, kwargs

    def _rewrite_reduce(self, grid: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        config = getattr(self._now, "config", None)
        return (grid, kwargs) if config is None else (grid, _reduced(kwargs, config))


def _alike(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what decides the tunable and the size class of a call."""
    q, k = given["q"], given["k"]
    return (
        *(q.shape, q.dtype, k.shape, k.dtype, given["seqused_k"].shape, given["max_seqlen_q"] == 1),
        *(bucket(given["max_seqlen_k"]), given["window_size"], given["softcap"]),
        *(given.get("sinks") is None, given.get("kv_quant_mode") == _INT4, given.get("use_td")),
    )


_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the server's function."""

    tunable: Tunable
    form: _Form
    sized: SizeClass
    axes: Mapping[str, int]
    config: Config | None
    """Of the table; None is the server's own choice."""
    in_capture: bool


def _under_table(
    call: _Call,
    config: Config,
    given: Mapping[str, Any],
    run: Callable[[Config | None, Mapping[str, Any]], Any],
) -> Any:  # noqa: ANN401 - as vLLM's
    """Launch under a table, checked if it is due."""
    checks = call.tunable.checks
    at = checks.due(call.axes) if checks is not None and not call.in_capture else None
    if checks is None or at is None:
        return timed(call.sized, lambda: run(config, {}), in_capture=call.in_capture)
    others = [value for name, value in given.items() if name != _OUTPUT]
    sides = Sides({_OUTPUT: given[_OUTPUT]}, tensors_of(others), run)
    return checks.launch(at, config, sides)


class _StandIn:
    """In place of a kernel: its launch may be changed, all else is the kernel's."""

    def __init__(
        self,
        kernel: Any,  # noqa: ANN401 - a JITFunction
        rewrite: Callable[[Any, dict[str, Any]], tuple[Any, dict[str, Any]]],
        now: threading.local,
    ) -> None:
        self._kernel, self._rewrite, self._now = kernel, rewrite, now

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the kernel's
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Launch:  # noqa: ANN401 - as Triton's
        if getattr(self._now, "form", None) is None:
            return self._kernel[grid]  # type: ignore[no-any-return]

        def launch(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            if args:  # not launched as any known version does
                return self._kernel[grid](*args, **kwargs)
            changed_grid, changed = self._rewrite(grid, kwargs)
            return self._kernel[changed_grid](**changed)

        return launch


class _Form:
    """How one tunable's kernels are launched: checks, changes and compiles configurations."""

    def __init__(self, kernels: Mapping[str, Any], *, queries_per_kv: int) -> None:
        self._kernels = kernels
        self._per_kv = queries_per_kv
        self._buffers: dict[int, tuple[Any, Any, Any]] = {}
        self._launched: dict[bool, dict[str, Any]] = {}
        """One launch of the kernel for each form, tensors replaced by their types."""
        self.sized: SizeClass | None = None

    def check(self, config: Config) -> None:
        """Verify a configuration.

        Raises
        ------
        Refused
            ``config-unknown`` or ``config-unfit``.
        """
        for name, value in config.items():
            if type(value) is not int or value not in _SPACE.get(name, ()):
                detail = f"'{name:.32}' is not a parameter of Triton attention with this value"
                raise Refused("config-unknown", detail=detail)
        rows = config.get("BLOCK_M")
        if rows is not None and (rows % self._per_kv or rows < self._per_kv):
            detail = f"BLOCK_M is not a multiple of {self._per_kv} queries for each KV head"
            raise Refused("config-unfit", detail=detail)
        if rows not in (None, _LEAST_ROWS) and config.get("segments"):
            raise Refused("config-unfit", detail="BLOCK_M changes in the 2D form only")

    def given(
        self, given: Mapping[str, Any], config: Config, *, in_capture: bool
    ) -> Mapping[str, Any]:
        """Return the arguments of a call for the form that a configuration asks for."""
        segments = config.get("segments")
        if segments is None or (segments and given["max_seqlen_q"] > 1):
            return given
        if segments == 0:
            return {**given, "seq_threshold_3D": None}
        buffers = self._segment_buffers(given, segments, in_capture=in_capture)
        if buffers is None:
            return given
        output, most, sums = buffers
        return {
            **given,
            "seq_threshold_3D": given["seqused_k"].shape[0],
            "num_par_softmax_segments": segments,
            "softmax_segm_output": output,
            "softmax_segm_max": most,
            "softmax_segm_expsum": sums,
        }

    def _segment_buffers(
        self, given: Mapping[str, Any], segments: int, *, in_capture: bool
    ) -> tuple[Any, Any, Any] | None:
        """Return the server's buffers where they are large enough, else our own.

        None if a capture would have to allocate them.
        """
        q = given["q"]
        rows = q.shape[0] * q.shape[1] * segments
        width = 1 << (q.shape[2] - 1).bit_length()
        own = given.get("softmax_segm_output")
        most = given.get("softmax_segm_max")
        enough = own is not None and own.numel() >= rows * width
        if enough and most is not None and most.shape[0] >= q.shape[0]:
            return own, most, given["softmax_segm_expsum"]
        size = 1 << (rows - 1).bit_length()
        if size not in self._buffers:
            if in_capture:
                return None
            torch = sys.modules["torch"]
            empty = functools.partial(torch.empty, device=q.device, dtype=torch.float32)
            self._buffers[size] = (empty(size * width), empty(size), empty(size))
        return self._buffers[size]

    def note(self, kwargs: Mapping[str, Any]) -> None:
        """Remember how the kernel is launched, and what is in force."""
        sized = self.sized
        if sized is not None and sized.how == "literal" and not sized.config:
            sized.config = _in_force(kwargs)
        form = bool(kwargs["IS_3D"])
        if form not in self._launched:
            self._launched[form] = {
                name: Pointer(value.dtype) if hasattr(value, "data_ptr") else value
                for name, value in kwargs.items()
            }

    def rewritten(
        self,
        grid: Any,  # noqa: ANN401 - as Triton's
        kwargs: Mapping[str, Any],
        config: Config,
    ) -> tuple[Any, dict[str, Any]]:
        """Return grid and arguments of the kernel under a configuration."""
        changed = {**kwargs, **{n: config[n] for n in ("num_warps", "num_stages") if n in config}}
        changed["TILE_SIZE"] = _tile(kwargs, config)
        rows = config.get("BLOCK_M")
        if rows is not None and not kwargs["IS_3D"]:
            changed["BLOCK_M"] = rows
            changed["BLOCK_Q"] = queries = rows // self._per_kv
            blocks = kwargs["query_ptr"].shape[0] // queries + kwargs["num_seqs"]
            grid = (blocks, *grid[1:])
        return grid, changed

    def warm(self, table: Table) -> None:
        """Compile a table's configurations for the kinds of launches that were seen."""
        for rule in table.rules:
            segments = rule.config.get("segments")
            for segmented in (False, True):
                if (segments == 0 and segmented) or (segments and not segmented):
                    continue
                launched = self._launch(segmented, rule.config)
                if launched is not None:
                    self._compile(launched, rule.config, segmented=segmented)

    def _launch(self, segmented: bool, config: Config) -> dict[str, Any] | None:
        """Return a launch to compile; one of the other form is derived if none was seen."""
        own = self._launched.get(segmented)
        if own is None and config.get("segments") is not None and self._launched:
            other = next(iter(self._launched.values()))
            torch = sys.modules["torch"]
            pointer = Pointer(torch.float32) if segmented else None
            own = {**other, "IS_3D": segmented}
            own |= dict.fromkeys(("segm_output_ptr", "segm_max_ptr", "segm_expsum_ptr"), pointer)
        if own is None:
            return None
        segments = config.get("segments") or own["NUM_SEGMENTS_PER_SEQ"]
        return {**own, "NUM_SEGMENTS_PER_SEQ": segments if segmented else 1}

    def _compile(self, launched: dict[str, Any], config: Config, *, segmented: bool) -> None:
        changed = {**launched, **{n: config[n] for n in ("num_warps", "num_stages") if n in config}}
        changed["TILE_SIZE"] = _tile(launched, config)
        rows = config.get("BLOCK_M")
        if rows is not None and not segmented:
            changed |= {"BLOCK_M": rows, "BLOCK_Q": rows // self._per_kv}
        for sequences in (1, 2, 16):  # Triton specialises on 1 and on multiples of 16
            compile_only(self._kernels[KERNEL], {**changed, "num_seqs": sequences})
            if segmented:
                compile_only(
                    self._kernels[REDUCE],
                    _reduced(_reduce_of({**changed, "num_seqs": sequences}), config),
                )


def _tile(kwargs: Mapping[str, Any], config: Config) -> int:
    tile: int = config.get("TILE_SIZE", kwargs["TILE_SIZE"])
    return min(tile, kwargs["BLOCK_SIZE"]) if kwargs["USE_TD"] else tile


def _in_force(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        n: kwargs[n] for n in ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages") if n in kwargs
    }
    return {**named, "segments": kwargs["NUM_SEGMENTS_PER_SEQ"] if kwargs["IS_3D"] else 0}


def _reduced(kwargs: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return the arguments of the second kernel, in step with the first."""
    if "TILE_SIZE" in kwargs and "TILE_SIZE" in config:
        return {**kwargs, "TILE_SIZE": config["TILE_SIZE"]}
    return dict(kwargs)


def _reduce_of(launched: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch of the second kernel that follows a launch of the first."""
    shared = (
        *("output_ptr", "segm_output_ptr", "segm_max_ptr", "segm_expsum_ptr", "seq_lens_ptr"),
        *("num_seqs", "num_query_heads", "output_stride_0", "output_stride_1"),
        *("block_table_stride", "TILE_SIZE", "HEAD_SIZE", "HEAD_SIZE_PADDED"),
        *("query_start_len_ptr", "BLOCK_Q", "NUM_SEGMENTS_PER_SEQ", "USE_FP8"),
    )
    return {"out_scale_inv": 1.0, **{name: launched[name] for name in shared if name in launched}}


def _recipe(tunable: Tunable, given: Mapping[str, Any], axes: Mapping[str, int]) -> dict[str, Any]:
    budget = tunable.data_budget
    return {
        "tunable": tunable.id,
        "family": "attention",
        "module": tunable.module,
        "name": FUNCTION,
        "axes": dict(axes),
        "call": {
            "arguments": [[name, spec_of(value, budget=budget)] for name, value in given.items()],
            "lengths": [],
            "in_force": {},
        },
    }
