"""Whole spaces of tunables, measured, and what the product's search recovers of their best.

Each configuration is timed three times, against the server's own choice and with other inputs each
time: the search sees the first time, the best of all is chosen by the second, and both are valued
by the third. So neither profits from its own noise.

    python -m benchmarks.gpu.vllm_live.surfaces DESCRIBED OUT --device 1 --processes 12 --until 280

DESCRIBED is what ``benchmarks.gpu.vllm_live`` wrote of a server that has ended since. The size
class with the most time of each tunable comes first, then the second of each.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retuned.errors import CandidateError, RetunedError
from retuned.tunables.process import ChildProcess
from retuned.tunables.search import Config, Space, key_of, proposals, space_of
from retuned.tunables.tune import CHECK_S, ENDED, Recipe, Runner, checked

DRAWS = 3
_PAIRS = 9
_LIMIT_S = 30.0
Times = Mapping[str, float]
"""Microseconds by `key_of`; infinite for a configuration that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """All configurations of one size class."""

    axes: Mapping[str, int] = field(hash=False)
    space: Space
    in_force_us: float
    draws: tuple[Times, ...] = field(hash=False)
    """Empty, or fewer than `DRAWS`, where no time was left."""
    failed: Mapping[str, str] = field(hash=False)
    """Reason code by `key_of`."""


def measure(
    children: Sequence[Runner],
    report: Mapping[str, Any],
    recipe: Recipe,
    *,
    until_s: float,
    seed: int = 1,
) -> Surface:
    """Compile the whole space with all children, then time it with the first.

    Parameters
    ----------
    children
        With one cache of compiled kernels, on one device on which nothing else runs.
    until_s
        Moment of the monotonic clock after which nothing begins.
    """
    axes = dict(recipe["axes"])
    space = space_of(report, axes=axes, in_force=recipe["call"].get("in_force"))
    opening = {"op": "open", "recipe": recipe}
    cases = [int(child.ask(opening, limit_s=CHECK_S)["case"]) for child in children]
    failed: dict[str, str] = {}

    def compiled(worker: int) -> None:
        child = children[worker]
        for config in space.configs[worker :: len(children)]:
            if time.monotonic() > until_s:
                failed[key_of(config)] = "no-time-left"
                continue
            try:
                checked(child, cases[worker], config, seed=seed)
            except CandidateError as error:
                failed[key_of(config)] = error.reason
                if error.reason in ENDED:
                    child.restart()
                    cases[worker] = int(child.ask(opening, limit_s=CHECK_S)["case"])

    with ThreadPoolExecutor(len(children)) as pool:
        list(pool.map(compiled, range(len(children))))
    right = [each for each in space.configs if key_of(each) not in failed]
    draws: list[Times] = []
    own: list[float] = []
    for number in range(DRAWS):
        if time.monotonic() > until_s:
            break
        times = _draw(children[0], cases[0], right, seed=seed + 100 * number, own=own)
        draws.append({**times, **dict.fromkeys(failed, math.inf)})
    for child, case in zip(children, cases, strict=True):
        child.ask({"op": "close", "case": case}, limit_s=CHECK_S)
    return Surface(
        axes=axes,
        space=space,
        in_force_us=statistics.median(own) if own else 0.0,
        draws=tuple(draws),
        failed=failed,
    )


def _draw(
    child: Runner, case: int, configs: Sequence[Config], *, seed: int, own: list[float]
) -> dict[str, float]:
    """Time all configurations once, in random order; `own` gets the server's times."""
    ordered = random.Random(seed).sample(list(configs), len(configs))
    ratios: dict[str, float] = {}
    for config in ordered:
        request = {"op": "pairs", "case": case, "configs": [None, config], "pairs": _PAIRS}
        said = child.ask({**request, "seed": seed}, limit_s=_LIMIT_S)
        own += [float(base) for base, _ in said["pairs"]]
        ratios[key_of(config)] = statistics.median(b / a for a, b in said["pairs"])
    whole = statistics.median(own) if own else 0.0
    return {key: whole * ratio for key, ratio in ratios.items()}


def recovery(surface: Surface) -> dict[str, Any]:
    """Return what the search finds on this surface, and its time over the best's.

    ``recovered`` is the best's time over that of the search's choice; None without all draws, or
    where nothing works.
    """
    space, size = surface.space, len(surface.space.configs)
    answer: dict[str, Any] = {"axes": dict(surface.axes), "space": size, "budget": space.budget}
    answer |= {"in_force_us": surface.in_force_us, "failed": len(surface.failed)}
    if len(surface.draws) < DRAWS or len(surface.failed) == size:
        return {**answer, "evaluations": 0, "recovered": None}
    seen, choosing, valuing = surface.draws
    tried: dict[str, float] = {}
    while (config := proposals(space, tried)) is not None:
        tried[key_of(config)] = seen[key_of(config)]
    found = min(tried, key=lambda key: tried[key])
    best = min(choosing, key=lambda key: choosing[key])
    return {
        **answer,
        "evaluations": len(tried),
        "found": found,
        "found_us": valuing[found],
        "best": best,
        "best_us": valuing[best],
        "recovered": valuing[best] / valuing[found],
    }


def measure_all(
    described: Mapping[str, Any], out: Path, *, device: str, processes: int, until_s: float
) -> None:
    """Measure size classes until time is over; `out` is written after each."""
    environment, tunables = described["environment"], described["tunables"]
    rows: list[dict[str, Any]] = []
    for recipes in itertools.zip_longest(*(each["recipes"] for each in tunables)):
        for tunable, recipe in zip(tunables, recipes, strict=True):
            if recipe is None or time.monotonic() > until_s:
                continue
            row: dict[str, Any] = {"tunable": tunable["report"]["id"], "axes": recipe["axes"]}
            try:
                with (
                    tempfile.TemporaryDirectory() as folder,
                    _children(environment, device, Path(folder), count=processes) as children,
                ):
                    surface = measure(children, tunable["report"], recipe, until_s=until_s)
                row |= recovery(surface)
                rows.append({**row, "failures": surface.failed, "draws": surface.draws})
            except RetunedError as error:
                row |= {"error": repr(error)}
                rows.append(row)
            print(json.dumps(row)[:600], flush=True)
            out.write_text(json.dumps({"device": environment["device"], "rows": rows}))


@contextlib.contextmanager
def _children(
    environment: Mapping[str, Any], device: str, folder: Path, *, count: int
) -> Iterator[list[ChildProcess]]:
    with contextlib.ExitStack() as stack:
        made = (ChildProcess(environment, device=device, folder=folder) for _ in range(count))
        yield [stack.enter_context(each) for each in made]


def main() -> int:
    """Measure what a server described."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("described", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="0")
    parser.add_argument("--processes", type=int, default=8, help="that compile at the same time")
    parser.add_argument("--until", type=float, default=300.0, help="seconds")
    options = parser.parse_args()
    measure_all(
        json.loads(options.described.read_text()),
        options.out,
        device=options.device,
        processes=options.processes,
        until_s=time.monotonic() + options.until,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
