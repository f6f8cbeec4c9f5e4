"""Program that runs candidates in the server's environment: JSON lines in, JSON lines out.

    python -P -m retuned.tunables.child

Operations: ``hello`` (load packages; returns their versions), ``about`` (returns what the process
runs on), ``open`` (a recipe; returns an index), ``check`` (compile, run, compare with the
server's own choice on the same fresh inputs), ``pairs`` (times of two configurations, interleaved
in random order), ``close``. One process serves all candidates of an experiment: importing a server
takes longer than most experiments. Nothing of the server's memory is reachable here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from retuned.runtime.core.environment import environment
from retuned.runtime.schema import Refused
from retuned.tunables.cases import Case, Config, build
from retuned.tunables.references import distance

_FLUSH_BYTES = 256 << 20
"""More than any cache of a GPU holds."""
_WARM = 2
_MOST_GRAPHS = 24
_PACKAGES = ("torch", "triton", "vllm", "sglang")
_RESOURCES = ("OutOfResources", "out of resource", "PTXASError")


class Child:
    """Cases and timing of one process."""

    def __init__(self) -> None:
        self._cases: dict[int, Case] = {}
        self._graphs: dict[tuple[int, str], Callable[[], None]] = {}
        self._torch: Any = None
        self._device = "cpu"
        self._flush: Any = None
        self._memory_bytes: int | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Execute one request; a failure of a candidate is a result."""
        try:
            return {"ok": True, **getattr(self, f"do_{request['op']}")(request)}
        except Refused as error:
            return {"ok": False, "reason": error.reason, "detail": error.detail[:1000]}
        except Exception as error:  # whatever the server's code or a candidate raises
            return {"ok": False, "reason": _code(error), "detail": traceback.format_exc()[-1500:]}

    def do_hello(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Load PyTorch and modules of the server; the device is not used yet."""
        import torch

        self._torch = torch
        for name in request.get("modules", ()):
            try:
                importlib.import_module(str(name))
            except Exception:  # the case that needs it says so
                traceback.print_exc()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._memory_bytes = request.get("memory_bytes")
        return {"torch": torch.__version__, "device": self._device, "versions": _versions()}

    def do_about(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same facts as a server's runtime does, and versions; uses the device."""
        if self._device == "cuda":
            self._torch.cuda.init()
        return {"environment": environment(), "versions": _versions()}

    def do_open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Build a case."""
        index = len(self._cases)
        if self._device == "cuda" and self._flush is None:
            self._limit_memory()
            self._flush = self._torch.empty(
                _FLUSH_BYTES, dtype=self._torch.uint8, device=self._device
            )
        with self._torch.inference_mode():
            case = build(request["recipe"], torch=self._torch, device=self._device)
            case.reset(0)
        self._cases[index] = case
        return {"case": index}

    def _limit_memory(self) -> None:
        """Leave the memory of a server on the same GPU alone: beyond the limit a case fails."""
        if self._memory_bytes is not None:
            whole = self._torch.cuda.get_device_properties(0).total_memory
            share = max(0.0, min(1.0, float(self._memory_bytes) / whole))
            self._torch.cuda.set_per_process_memory_fraction(share)

    def do_check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Compare a configuration with the server's own choice on fresh inputs.

        ``error`` and ``worst`` are the largest `difference` over the output tensors; ``spread`` is
        the error of two runs of the server's own choice. ``float64`` has the distances of both from
        rows in float64, scaled in the same way; None where these are not known.
        """
        case, seed = self._cases[request["case"]], int(request["seed"])
        with self._torch.inference_mode():
            expected = self._ran(case, None, seed)
            again = self._ran(case, None, seed)
            begin_s = time.monotonic()
            found = self._ran(case, request["config"], seed)
            took_s = time.monotonic() - begin_s
            intact = case.intact()
            rows = case.reference(seed)
            float64 = None
            if rows is not None:
                float64 = {
                    "own": _scaled(distance(expected[0], rows), expected[0]),
                    "found": _scaled(distance(found[0], rows), found[0]),
                }
        error, worst = _largest(expected, found)
        return {
            "error": error,
            "worst": worst,
            "spread": _largest(expected, again)[0],
            "intact": intact,
            "float64": float64,
            "first_s": round(took_s, 4),
        }

    def _ran(self, case: Case, config: Config | None, seed: int) -> list[Any]:
        case.reset(seed)
        case.run(config)
        self._wait()
        return [each.detach().clone() for each in case.outputs()]

    def do_pairs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Time two configurations in turn; returns pairs of microseconds.

        The order within a pair is random. The cache of the device is flushed before each launch.
        """
        case = self._cases[request["case"]]
        configs: list[Config | None] = request["configs"]
        chance = random.Random(int(request["seed"]))
        with self._torch.inference_mode():
            case.reset(int(request["seed"]))
            launches = [self._launch(request["case"], case, each) for each in configs]
            pairs = []
            deadline_s = time.monotonic() + float(request.get("seconds", 1e9))
            for _ in range(int(request["pairs"])):
                order = list(range(len(configs)))
                chance.shuffle(order)
                pairs.append((order, [self._timed(launches[index]) for index in order]))
                if "seconds" in request:
                    self._wait()  # else the host is far ahead of the device
                if time.monotonic() > deadline_s:
                    break
            self._wait()
            timed = [self._in_order(order, each) for order, each in pairs]
        return {"pairs": timed, "clock": "device" if self._device == "cuda" else "wall"}

    def _in_order(self, order: list[int], events: list[Any]) -> list[float]:
        found = [0.0] * len(order)
        for index, each in zip(order, events, strict=True):
            microseconds = each if isinstance(each, float) else 1e3 * each[0].elapsed_time(each[1])
            found[index] = round(float(microseconds), 4)
        return found

    def _launch(self, index: int, case: Case, config: Config | None) -> Callable[[], None]:
        """Return a function that launches once, as a captured graph where that is possible."""
        key = (index, json.dumps(config, sort_keys=True))
        known = self._graphs.get(key)
        if known is not None:
            return known
        for _ in range(_WARM):
            case.run(config)
        self._wait()
        launch: Callable[[], None] = lambda: case.run(config)  # noqa: E731
        if self._device == "cuda":
            launch = self._captured(launch)
        while len(self._graphs) >= _MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[key] = launch
        return launch

    def _captured(self, launch: Callable[[], None]) -> Callable[[], None]:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                launch()
        except RuntimeError:  # code that waits for the device cannot be captured
            torch.cuda.synchronize()
            return launch
        replay: Callable[[], None] = graph.replay
        return replay

    def _timed(self, launch: Callable[[], None]) -> Any:  # noqa: ANN401 - events, or microseconds
        if self._device != "cuda":
            begin_s = time.perf_counter()
            launch()
            return 1e6 * (time.perf_counter() - begin_s)
        torch = self._torch
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        first.record()
        launch()
        last.record()
        return first, last

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def do_close(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Free a case."""
        index = request["case"]
        self._cases.pop(index, None)
        for key in [each for each in self._graphs if each[0] == index]:
            del self._graphs[key]
        if self._device == "cuda":
            self._torch.cuda.empty_cache()
        return {}


FAR = 1e300
"""Distance of outputs that cannot be compared; JSON has no infinity."""
_LEAST_FINITE = 0.5
_TIGHTER = {"float64": 1e4, "float32": 10.0}
"""How much closer than those of half precision the outputs of a type must be."""


def _largest(expected: list[Any], found: list[Any]) -> tuple[float, float]:
    pairs = [difference(one, other) for one, other in zip(expected, found, strict=True)]
    return max(error for error, _ in pairs), max(worst for _, worst in pairs)


def difference(one: Any, other: Any) -> tuple[float, float]:  # noqa: ANN401 - tensors
    """Return how far an output lies from the server's: by norm, and in its worst element.

    Both are relative, and scaled by `_TIGHTER` for the element type. Whole numbers must be equal.
    NaN and infinities must stand in the same places; what is finite beside them is compared.

    Raises
    ------
    Refused
        ``outputs-not-finite`` if most of the server's own output is not: nothing would be compared.
    """
    if one.numel() == 0:
        return 0.0, 0.0
    if not one.dtype.is_floating_point:
        return (0.0, 0.0) if bool((one == other).all()) else (FAR, FAR)
    a, b = one.double(), other.double()
    finite = a.isfinite()
    if float(finite.double().mean()) < _LEAST_FINITE:
        detail = "most of what the server's own choice computes from these inputs is not finite"
        raise Refused("outputs-not-finite", detail=detail)
    alike = (a == b) | (a.isnan() & b.isnan())
    if bool((finite != b.isfinite()).any()) or not bool((finite | alike).all()):
        return FAR, FAR
    a, b = a.where(finite, 0.0), b.where(finite, 0.0)
    gap = (a - b).abs()
    largest = max(float(a.abs().max()), 1e-30)
    error = float((gap / largest).norm()) / max(float((a / largest).norm()), 1e-30)
    return _scaled(error, one), _scaled(float(gap.max()) / largest, one)


def _scaled(error: float, tensor: Any) -> float:  # noqa: ANN401
    """Return a distance as it counts for the element type; `FAR` for NaN."""
    scale = _TIGHTER.get(str(tensor.dtype).removeprefix("torch."), 1.0)
    return FAR if math.isnan(error) else min(FAR, scale * error)


def _versions() -> dict[str, str]:
    """Return versions of packages: of loaded ones as the server's runtime reports them."""
    found = {}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        try:
            found[name] = str(version or importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _code(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if any(each in text for each in _RESOURCES):
        return "out-of-resources"
    if "out of memory" in text:
        return "device-memory"
    if "Compil" in type(error).__name__:
        return "compile-failed"
    if isinstance(error, (ImportError, AttributeError)):
        return "module-missing"
    return "crashed"


def main() -> None:
    """Serve requests until stdin ends."""
    out = sys.stdout
    sys.stdout = sys.stderr  # servers print; answers go to the real one
    child = Child()
    for line in sys.stdin:
        print(json.dumps(child.answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
