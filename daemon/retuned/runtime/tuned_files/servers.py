"""Servers in this process and how they read tuned-config files, found by features, not by version.

Each entry has the one file that may be written for a lookup, calls the server's own function for
its picks, and clears the caches in front of it. The path is the server's, never an order's; files
inside an installed package are not written. Nothing is imported: a server that is not loaded is not
there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.changes import AITER, MOE_SGLANG, MOE_VLLM, Change
from retuned.runtime.tuned_files.rules import gemm_chain
from retuned.runtime.tuned_files.table_formats import kind_of

_VLLM = ("vllm.model_executor.layers.fused_moe.fused_moe",)
_SGLANG = (
    "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config",
    "sglang.srt.layers.moe.fused_moe_triton.fused_moe_triton_config",
)
_AITER = ("aiter.tuned_gemm",)
_TUNABLE = ("torch.cuda.tunable",)
_TELLING_M = (1, 3, 5, 7, 17, 100, 300, 1100, 5000, 8193, 10_000)
"""Batch sizes at which the padding rules differ."""
_MAX_DIM = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    target: Path
    sources: tuple[Path, ...]
    """Existing files, the one that is read first; none if the server uses its defaults."""
    pick: Callable[[Hashable], Any] | None = None
    """Calls the server's lookup; None if a change takes effect only at the next start."""
    clear: Callable[[], None] = lambda: None
    """Clears the caches; the next lookup reads the file."""
    matches: Callable[[Any, Any], bool] = lambda expected, found: bool(expected == found)
    """Whether the server's pick equals a row of a file."""

    @property
    def source(self) -> Path | None:
        """The file that is read now; None if the server uses its defaults."""
        return self.sources[0] if self.sources else None

    @property
    def fallback(self) -> Path | None:
        """The file that would be read without `target`."""
        return next((path for path in self.sources if path != self.target), None)


def find(change: Change) -> Server:
    """Return the server of a change in this process.

    Raises
    ------
    Refused
        ``server-not-here``, ``server-unknown`` (it lacks a required function), ``folder-not-set``,
        ``merged-table``, ``padding-unknown``, ``tuning-on``, ``tunable-off``, ``down-file-missing``
        or ``lookup-invalid``.
    """
    if change.format == MOE_VLLM:
        return _vllm(change.lookup)
    if change.format == MOE_SGLANG:
        return _sglang(change.lookup)
    return _aiter(change) if change.format == AITER else _tunable_op()


def found() -> dict[str, str]:
    """Return which of them are loaded here, by format; for people."""
    known = {MOE_VLLM: _VLLM, MOE_SGLANG: _SGLANG, AITER: _AITER, "tunable-op": _TUNABLE}
    return {
        kind: next((name for name in names if name in sys.modules), "")
        for kind, names in known.items()
    }


def _vllm(lookup: Mapping[str, Any]) -> Server:
    module = _module(_VLLM, "get_moe_configs", "get_config_file_name", "try_get_optimal_moe_config")
    e, n, k, top_k = (_dim(lookup, name) for name in ("E", "N", "K", "top_k"))
    dtype, block = _dtype(lookup), _block(lookup)
    wide = 2 * n if dtype == "int4_w4a16" else n  # two per byte; the name has the unpacked size
    name = _plain(_asked(lambda: module.get_config_file_name(e, wide, dtype, block)))
    folder = getattr(getattr(module, "envs", None), "VLLM_TUNED_CONFIG_FOLDER", None)
    target = _folder(folder, "VLLM_TUNED_CONFIG_FOLDER") / name
    packaged = _package_folder(module) / "configs" / name
    return Server(
        name="vllm",
        target=target,
        sources=tuple(path for path in (target, packaged) if path.exists()),
        pick=lambda m: _asked(
            lambda: dict(
                module.try_get_optimal_moe_config((e, 2 * n, k), (e, k, n), top_k, dtype, m, block)
            )
        ),
        clear=lambda: _asked(module.get_moe_configs.cache_clear),
    )


def _sglang(lookup: Mapping[str, Any]) -> Server:
    wanted = ("get_moe_configs", "get_config_file_name", "try_get_optimal_moe_config")
    module = _module(_SGLANG, *wanted)
    e, n, k, top_k = (_dim(lookup, name) for name in ("E", "N", "K", "top_k"))
    dtype, block = _dtype(lookup), _block(lookup)
    channel, down = (lookup.get(name) is True for name in ("per_channel_quant", "down"))
    name = _plain(
        _asked(
            lambda: module.get_config_file_name(
                e, n, dtype, block or [0, 0], channel, down_moe=down
            )
        )
    )
    variable = "SGLANG_MOE_CONFIG_DIR"
    root = _folder(os.environ.get(variable), variable) / "configs"
    triton = getattr(sys.modules.get("triton"), "__version__", "")
    mine = f"triton_{triton.replace('.', '_')}"
    target = root / mine / name
    if not target.parent.is_dir():
        detail = f"{target.parent} does not exist; create it, since this server reads it first"
        raise Refused("folder-not-set", detail=detail)
    sources = tuple(path for path in (target, *_older(root, mine, name)) if path.exists())
    if down and not sources:
        detail = f"{name} does not exist: the server reuses the other projection's, without TMA"
        raise Refused("down-file-missing", detail=detail)

    def pick(m: Hashable) -> Any:  # noqa: ANN401 - the server's
        picked = module.try_get_optimal_moe_config(
            *((e, 2 * n, k), (e, k, n), top_k, dtype, m),
            block_shape=block,
            per_channel_quant=channel,
            return_down_config=down,
        )
        return dict(picked[1][0] if down else picked)

    return Server(
        name="sglang",
        target=target,
        sources=sources,
        pick=lambda m: _asked(lambda: pick(m)),
        clear=lambda: _asked(module.get_moe_configs.cache_clear),
    )


def _older(root: Path, mine: str, name: str) -> list[Path]:
    """Return the same file for other Tritons, the newest first, in the server's order."""
    versions = []
    for folder in root.glob("triton_*"):
        parts = folder.name.removeprefix("triton_").split("_")
        if folder.name != mine and all(part.isdecimal() for part in parts):
            versions.append((tuple(map(int, parts)), folder / name))
    return [path for _, path in sorted(versions, reverse=True)]


def _aiter(change: Change) -> Server:
    table = str(change.lookup.get("table", "GEMM_BF16"))
    variable = f"AITER_CONFIG_{table}"
    named = os.environ.get(variable, "")
    if not table.replace("_", "").isalnum() or not named or os.pathsep in named:
        detail = (
            f"{variable} must name one file: of several, the server reads a merged copy, and "
            "rewrites all of them if two have the same shape"
        )
        raise Refused("merged-table", detail=detail)
    target = Path(named)
    if table != "GEMM_BF16":  # looked up in compiled code, or by arguments that are not known
        return Server(name="aiter", target=target, sources=(target,))
    module = _module(_AITER, "get_GEMM_A16W16_config_", "get_GEMM_A16W16_config")
    configs: Any = getattr(module, "AITER_CONFIGS", None)
    padded = getattr(module, "get_padded_m", None)
    if not hasattr(getattr(configs, "get_config_file", None), "cache_clear") or padded is None:
        raise _unknown(module, "AITER_CONFIGS.get_config_file.cache_clear or get_padded_m")
    lookup = change.lookup
    n, k = _dim(lookup, "N"), _dim(lookup, "K")
    flags = [lookup.get(name) is True for name in ("bias", "scaleAB", "bpreshuffle")]
    types = [str(lookup.get(name, "torch.bfloat16")) for name in ("dtype", "outdtype")]
    chain = gemm_chain(change.rule, n)
    for m in _TELLING_M:
        here = (m, *(int(_asked(partial(padded, m, n, k, level))) for level in (0, 1)))
        if here != chain(m):
            detail = f"this server looks M={m} up as {here}, but {change.rule!r} as {chain(m)}"
            raise Refused("padding-unknown", detail=detail)

    def clear() -> None:
        configs.get_config_file.cache_clear()
        module.get_GEMM_A16W16_config_.cache_clear()
        module.get_GEMM_A16W16_config.cache_clear()

    return Server(
        name="aiter",
        target=target,
        sources=(target,),
        pick=lambda m: _asked(
            lambda: dict(
                module.get_GEMM_A16W16_config(m, n, k, flags[0], *types, flags[1], flags[2])
            )
        ),
        clear=lambda: _asked(clear),
        matches=same_cells,
    )


def _tunable_op() -> Server:
    module = _module(_TUNABLE, "get_results", "get_filename", "read_file", cached=())
    if not _asked(module.is_enabled):
        raise Refused("tunable-off", detail="TunableOp is off in this process: nothing reads a row")
    if _asked(module.tuning_is_enabled):
        detail = "TunableOp tunes in this process and writes its file itself; turn tuning off first"
        raise Refused("tuning-on", detail=detail)
    target = _folder(_asked(module.get_filename), "PYTORCH_TUNABLEOP_FILENAME")
    if not hasattr(module, "_clear_all"):  # existing rows are never replaced
        return Server(name="tunable-op", target=target, sources=(target,))

    def clear() -> None:
        module._clear_all()
        module.read_file(str(target))

    return Server(
        name="tunable-op",
        target=target,
        sources=(target,),
        pick=lambda key: tunable_results().get(key),
        clear=lambda: _asked(clear),
    )


def tunable_results() -> dict[Hashable, str]:
    """Return the solutions in PyTorch's memory, by operator and parameters."""
    module = _module(_TUNABLE, "get_results", cached=())
    return {(row[0], row[1]): row[2] for row in _asked(module.get_results)}


def same_cells(expected: Mapping[str, str], found: Mapping[str, Any]) -> bool:
    """Whether a row as parsed by pandas equals the cells: numbers by value, others by spelling."""
    return all(_same_cell(cell, found.get(column)) for column, cell in expected.items())


def _same_cell(cell: str, value: object) -> bool:
    if kind_of(cell) == "missing":
        return value is None or value != value or value == ""
    if kind_of(cell) in ("whole", "real") and isinstance(value, (int, float)):
        return float(cell) == float(value)
    return str(value) == cell


def _module(names: tuple[str, ...], *functions: str, cached: tuple[str, ...] | None = None) -> Any:  # noqa: ANN401 - a server's
    module = next((sys.modules[name] for name in names if name in sys.modules), None)
    if module is None:
        raise Refused("server-not-here", detail=f"{names[0]} is not loaded in this process")
    for name in functions:
        if not callable(getattr(module, name, None)):
            raise _unknown(module, name)
    for name in functions[:1] if cached is None else cached:
        if not callable(getattr(getattr(module, name), "cache_clear", None)):
            raise _unknown(module, f"{name}.cache_clear")
    return module


def _unknown(module: Any, what: str) -> Refused:  # noqa: ANN401 - a server's
    name = getattr(module, "__name__", "the server")
    return Refused("server-unknown", detail=f"{name} has no {what}; it can only be restarted")


def _asked(ask: Callable[[], Any]) -> Any:  # noqa: ANN401 - the server's
    """Call the server's own code; an exception becomes a refusal."""
    try:
        return ask()
    except Refused:
        raise
    except Exception as error:  # untrusted function: the incumbent continues, whatever is raised
        raise Refused(
            "lookup-failed", detail=f"the server's own function: {error!r:.300}"
        ) from error


def _folder(value: object, variable: str) -> Path:
    if not isinstance(value, str) or not value:
        detail = f"start the server with {variable}; files inside the package are not changed"
        raise Refused("folder-not-set", detail=detail)
    return Path(value).absolute()


def _package_folder(module: Any) -> Path:  # noqa: ANN401 - a server's
    return Path(os.path.realpath(getattr(module, "__file__", None) or "/")).parent


def _plain(name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name or name[0] == ".":
        raise Refused("server-unknown", detail=f"{name!r:.100} is not a name of a file")
    return name


def _dim(lookup: Mapping[str, Any], name: str) -> int:
    value = lookup.get(name)
    if type(value) is not int or not 0 < value < _MAX_DIM:
        raise Refused("lookup-invalid", detail=f"'{name}' is not a whole number above 0")
    return value


def _dtype(lookup: Mapping[str, Any]) -> str | None:
    value = lookup.get("dtype")
    if value is None or (isinstance(value, str) and 0 < len(value) < 64 and value.isidentifier()):
        return value
    raise Refused("lookup-invalid", detail="'dtype' is not a name that the server's files use")


def _block(lookup: Mapping[str, Any]) -> list[int] | None:
    value = lookup.get("block_shape")
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(x) is int for x in value):
        return list(value)
    raise Refused("lookup-invalid", detail="'block_shape' is not a pair of whole numbers")
