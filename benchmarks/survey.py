"""Survey of every trace at hand: which share of kernel time Retuned can change, and why not more.

``python benchmarks/survey.py [--tables NAME=FOLDER ...] [--triton VERSION]`` reads the PyTorch
traces of ``examples/traces`` and of the fixtures beside the project, and tuned files of installed
packages where a folder is given, with `retuned survey`. It writes
``benchmarks/results/survey_traces.json``. No kernel runs and no experiment is made.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retuned.cli.analyze import analyzed_files
from retuned.report.survey import survey_of
from retuned.report.survey_files import SurveyedTable, is_table, survey_table
from retuned.report.survey_records import Survey
from retuned.traces import ReadLimits

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples" / "traces"
FIXTURES = HERE.parents[1] / "shared" / "fixtures"
RESULT = HERE / "results" / "survey_traces.json"
METHOD = (
    "retuned survey over each trace; shares are parts of the sum of kernel durations; a family is "
    "recognised by kernel name alone, so a kernel that only a living server shows to be tunable "
    "counts as 'plain'; expected gains are priors of an H200 with vLLM 0.26, none was measured for "
    "these traces; traces of graph captures hold few kernels; nothing was run"
)


def traces() -> list[Path]:
    """Return the PyTorch traces at hand, sorted."""
    folders = (EXAMPLES, *sorted(FIXTURES.glob("kineto_*")))
    return [path for folder in folders for path in sorted(folder.glob("*.json.gz"))]


def entry(path: Path) -> dict[str, Any]:
    """Return what the survey finds in one trace."""
    files, profile = analyzed_files([path], ReadLimits())
    name = f"{path.parent.name}/{path.name}"
    if files[0]["error"]:
        return {"trace": name, "error": files[0]["error"]["code"]}
    found = survey_of(profile=profile)
    return {
        "trace": name,
        "launches": found.launches,
        "kernel_time_ms": round(found.kernel_time_ns / 1e6, 3),
        "changeable_share": round(found.changeable_share or 0.0, 4),
        "expected_saving": round(found.expected_saving or 0.0, 4),
        "tunables": [
            {"kernel": row.kernel, "family": row.family, "share": round(row.share or 0.0, 4)}
            for row in found.tunables
        ],
        "not_changeable": [
            {"family": each.family, "share": round(each.share, 4), "reason": each.reason}
            for each in found.fixed
        ],
        "open_to_later_families": round(_later(found), 4),
        "conclusion": found.conclusion.model_dump(),
    }


def _later(found: Survey) -> float:
    """Return the share of families whose choice Python reaches, without an adapter today."""
    later = ("adapter-missing", "private-launcher", "version-untested")
    return sum(each.share for each in found.fixed if each.reason in later)


def tables(folder: Path, *, triton: str) -> dict[str, Any]:
    """Return the findings in a folder of tuned files, by number of tables."""
    found: list[SurveyedTable] = [
        survey_table(path.name, path.read_bytes(), folder=path.parent.name, triton=triton)
        for path in sorted(folder.rglob("*.json"))
        if is_table(path.name)
    ]
    codes = Counter(code for table in found for code in {each.code for each in table.findings})
    versions = Counter(table.version or "none" for table in found)
    return {
        "tables": len(found),
        "rows": sum(table.rows for table in found),
        "findings": dict(codes.most_common()),
        "versions": dict(versions.most_common()),
        "never_asked": [
            table.name for table in found if "name-never-asked" in {f.code for f in table.findings}
        ],
    }


def named(pairs: Iterable[str]) -> dict[str, Path]:
    """Parse ``NAME=FOLDER``."""
    return {name: Path(folder) for name, _, folder in (pair.partition("=") for pair in pairs)}


def main() -> None:
    """Survey, write and print one line for each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--triton", default="", help="version that the tables' server runs with")
    options = parser.parse_args()
    entries = [entry(path) for path in traces()]
    body = {
        "method": METHOD,
        "command": "python benchmarks/survey.py",
        "machine": {"python": platform.python_version(), "gpu": "none needed"},
        "traces": entries,
        "tuned_files": {
            name: {"triton": options.triton, **tables(folder, triton=options.triton)}
            for name, folder in named(options.tables).items()
        },
    }
    RESULT.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    for each in entries:
        print(each["trace"], each.get("changeable_share"), each.get("conclusion", {}).get("code"))


if __name__ == "__main__":
    main()
