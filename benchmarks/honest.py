"""Honest variants through the gates before timing: how many are called wrong? None may be.

    python benchmarks/honest.py                      every hand-written order, and a draw of points
    python benchmarks/honest.py --points 0           all points of all spaces of the catalog
    python benchmarks/honest.py --languages triton   interpreted on a machine without a GPU

Every variant is compiled and run for real: contract, compiler, audit, memory, numerics against
float64, at two small shapes and their edges. Results, every refusal with its reason among them, go
to benchmarks/results/honest.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hostile.honest_variants import (  # noqa: E402
    CATALOG,
    drawn,
    points,
    shapes_of,
    written,
)

from retuned import catalog  # noqa: E402
from retuned.contract import Language, Solution, Workload  # noqa: E402
from retuned.lab.examiner import Examiner  # noqa: E402
from retuned.lab.resources import LabResources, LabSettings  # noqa: E402
from retuned.lab.toolchain import environment_of  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "honest.json"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--points", type=int, default=120, help="per language; 0 takes all")
    parser.add_argument("--languages", nargs="+", default=["cpu_cpp", "triton"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-written", action="store_true")
    given = parser.parse_args(arguments)
    groups: dict[str, list[Solution]] = {}
    if not given.no_written:
        groups["written"] = list(written())
    for text in given.languages:
        language = Language(text)
        groups[text] = (
            drawn(language, count=given.points, seed=given.seed)
            if given.points
            else [one for name in CATALOG for one in points(name, language)]
        )
    body = {
        "machine": machine(),
        "method": "gates G1 to G4 of the judge, each variant in a fresh child",
        "seed": given.seed,
        "groups": {name: examine(name, group) for name, group in groups.items()},
    }
    body["variants"] = sum(group["variants"] for group in body["groups"].values())
    body["refused"] = sum(len(group["refused"]) for group in body["groups"].values())
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(f"{body['refused']} of {body['variants']} honest variants were refused: {RESULTS.name}")


def examine(name: str, solutions: Sequence[Solution]) -> dict[str, Any]:
    """Take a group through the gates."""
    refused, gates, begin = [], Counter[str](), time.monotonic()
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="honest-") as folder, ExitStack() as stack:
        bays: dict[tuple[str, Language], LabResources] = {}
        for number, solution in enumerate(solutions):
            key = (solution.definition, solution.language)
            if key not in bays:
                bays[key] = open_bay(solution, Path(folder))
                stack.callback(bays[key].close)
            examiner = Examiner(bays[key])
            variant, checks = examiner.admit(solution)
            if variant is not None:
                checks = (*checks, *examiner.correct(variant))
            for check in checks:
                gates[check.gate] += check.reason is None
                worst[solution.definition] = max(
                    worst.get(solution.definition, 0.0), check.error_ratio or 0.0
                )
                if check.reason is not None:
                    refused.append(
                        {
                            "name": solution.name,
                            "title": solution.author,
                            "definition": solution.definition,
                            "gate": check.gate,
                            "reason": str(check.reason),
                            "detail": check.detail,
                        }
                    )
            if number % 25 == 0:
                print(f"{name}: {number} of {len(solutions)}, {len(refused)} refused", flush=True)
    seconds = time.monotonic() - begin
    return {
        "variants": len(solutions),
        "definitions": sorted({solution.definition for solution in solutions}),
        "structures": sorted({f"{s.definition}:{s.structure}" for s in solutions}),
        "passed_checks": dict(gates),
        "largest_error_ratio": {key: round(value, 3) for key, value in sorted(worst.items())},
        "refused": refused,
        "seconds": round(seconds, 1),
    }


def open_bay(solution: Solution, folder: Path) -> LabResources:
    """Open a bay for a definition and a language."""
    entry = catalog.get(solution.definition, language=solution.language)
    return LabResources(
        entry,
        [Workload(definition=solution.definition, axes=axes) for axes in shapes_of(solution)],
        incumbent=entry.incumbent,
        folder=folder,
        settings=LabSettings(launch_timeout_s=20.0),
    )


def machine() -> dict[str, Any]:
    """Describe the machine without naming it."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "processor": model[1] if model else "unknown",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "compiler": environment_of(Language.CPU_CPP).compiler,
        "triton": environment_of(Language.TRITON).triton,
    }


if __name__ == "__main__":
    main()
