"""Profiler windows of the served model as files that anybody may have: no paths, no names of hosts.

A window is what the server's profiler wrote. What is kept of it are the parts of the format that a
reader needs; text that looks like a path becomes ``<path>``, and a file that still names this host
or a folder of it is not written.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retuned.errors import HarnessError
from retuned.traces import read_trace

KEPT = frozenset({
    "schemaVersion", "deviceProperties", "cuda_runtime_version", "cuda_driver_version",
    "record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory",
    "displayTimeUnit", "baseTimeNanoseconds", "traceEvents",
})  # fmt: skip
"""Fields of a file that are kept."""
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:/[\w.+@~-]+){2,}/?")
_FOLDERS = ("/home/", "/root/", "/tmp/", "/opt/", "/usr/", "/var/", "/mnt/")
_OWN = f"/{Path(__file__).resolve().parts[1]}/"
"""Where the project lies."""


def pick(windows: Sequence[Path], *, most_bytes: int) -> Path | None:
    """Return the largest window that fits, else the smallest; None if there is none."""
    sizes = [(path.stat().st_size, path) for path in windows]
    fitting = [each for each in sizes if each[0] <= most_bytes]
    if fitting:
        return max(fitting)[1]
    return min(sizes)[1] if sizes else None


def publish(window: Path, target: Path) -> dict[str, Any]:
    """Write a window without private names; return a summary of it.

    Raises
    ------
    HarnessError
        If it still names this host or a folder of it.
    """
    body = json.loads(gzip.decompress(window.read_bytes()))
    text = json.dumps(_clean({k: v for k, v in body.items() if k in KEPT}), separators=(",", ":"))
    told = [word for word in (*_FOLDERS, _OWN, *_host()) if word in text]
    if told:
        raise HarnessError(f"{target.name} would name {told}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return {"file": target.name, "bytes": target.stat().st_size, **contents(target)}


def contents(path: Path) -> dict[str, Any]:
    """Return launches, GPU time and the kernels that took most of it."""
    launches = read_trace(path).launches
    spent: dict[str, int] = {}
    for one in launches:
        spent[one.kernel] = spent.get(one.kernel, 0) + one.duration_ns
    most = sorted(spent.items(), key=lambda item: -item[1])[:8]
    return {
        "launches": len(launches),
        "gpu_us": round(sum(spent.values()) / 1e3, 1),
        "most": {name[:80]: round(ns / 1e3, 1) for name, ns in most},
    }


def kernel_times(windows: Sequence[Path], names: Sequence[str]) -> dict[str, Any]:
    """Return launches and median GPU time of kernels by name and grid, over several windows."""
    found: dict[str, list[int]] = {}
    for path in windows:
        for one in read_trace(path).launches:
            for name in names:
                if name in one.kernel:
                    found.setdefault(f"{name} grid={one.blocks[0]}", []).append(one.duration_ns)
    return {
        key: {
            "launches": len(values),
            "median_us": round(sorted(values)[len(values) // 2] / 1e3, 3),
        }
        for key, values in sorted(found.items())
        if len(values) >= 8
    }


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return _PATH.sub("<path>", value)
    if isinstance(value, Mapping):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return value


def _host() -> tuple[str, ...]:
    name = socket.gethostname()
    return (name,) if len(name) > 5 and name != "localhost" else ()
