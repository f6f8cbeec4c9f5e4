"""Compute the committed traffic table: ``python -m retuned.demo.make_traffic DIR``.

DIR holds ``azure_llm_2023_conv.csv.gz`` and ``azure_llm_2023_code.csv.gz``: the two CSV files of
Azure/AzurePublicDataset (LLM inference trace 2023), compressed and otherwise as published.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from retuned.demo.traffic import TABLE_NAME, Phase, QuantileTable, ServiceQuantiles
from retuned.errors import RetunedError, UnreadableInput, UsageError

SOURCES = {
    Phase.CHAT: "azure_llm_2023_conv.csv.gz",
    Phase.CODE: "azure_llm_2023_code.csv.gz",
}
CITATION = (
    "Quantiles of the Azure LLM inference trace 2023 (Azure/AzurePublicDataset, CC-BY 4.0). "
    "Cite: Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, "
    "ISCA 2024."
)
PROBABILITIES = (
    *(0.0, 0.01, 0.02),
    *(round(0.05 * step, 2) for step in range(1, 20)),
    *(0.98, 0.99, 1.0),
)
"""Every 5 %, and closer where the tails bend."""

_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def make_table(folder: Path) -> QuantileTable:
    """Compute the table.

    Raises
    ------
    UnreadableInput
        If a file is absent, damaged or has other columns.
    """
    return QuantileTable(
        citation=CITATION,
        made_by="python -m retuned.demo.make_traffic DIR",
        probabilities=PROBABILITIES,
        services={phase: _quantiles(folder / name) for phase, name in SOURCES.items()},
    )


def _quantiles(path: Path) -> ServiceQuantiles:
    raw = _read(path)
    rows = _rows(path, _unpack(path, raw))
    times = sorted(stamp for stamp, _, _ in rows)
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    return ServiceQuantiles(
        source=path.name,
        source_sha256=hashlib.sha256(raw).hexdigest(),
        requests=len(rows),
        prompt_tokens=_whole([prompt for _, prompt, _ in rows]),
        output_tokens=_whole([output for _, _, output in rows]),
        gap_s=tuple(round(float(gap), 6) for gap in np.quantile(gaps, PROBABILITIES)),
    )


def _whole(lengths: Sequence[int]) -> tuple[int, ...]:
    """Quantiles that are lengths really seen, not means of two."""
    return tuple(int(v) for v in np.quantile(lengths, PROBABILITIES, method="inverted_cdf"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"cannot be read ({error.strerror}); give the folder that holds it"
        raise UnreadableInput("unreadable", where=str(path), message=message) from error


def _unpack(path: Path, raw: bytes) -> str:
    try:
        return gzip.decompress(raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        message = f"is not a complete gzip of text ({error})"
        raise UnreadableInput("damaged-gzip", where=str(path), message=message) from error


def _rows(path: Path, text: str) -> list[tuple[datetime, int, int]]:
    reader = csv.reader(text.splitlines())
    if next(reader, []) != _COLUMNS:
        message = f"must have the columns {','.join(_COLUMNS)}"
        raise UnreadableInput("wrong-columns", where=str(path), message=message)
    rows = []
    for number, row in enumerate(reader, start=2):
        try:
            stamp, prompt, output = row
            rows.append((datetime.fromisoformat(stamp), int(prompt), int(output)))
        except ValueError as error:
            where = f"{path} row {number}"
            raise UnreadableInput("bad-row", where=where, message=str(error)) from error
    if len(rows) < 2:
        raise UnreadableInput("too-few-rows", where=str(path), message="needs at least two rows")
    return rows


def main(arguments: Sequence[str]) -> None:
    """Write the table into the package's data folder.

    Raises
    ------
    UsageError
        If not exactly one folder is named.
    """
    if len(arguments) != 1:
        raise UsageError("usage: python -m retuned.demo.make_traffic FOLDER")
    table = make_table(Path(arguments[0]))
    target = Path(__file__).parent / "data" / TABLE_NAME
    target.write_text(render(table), encoding="utf-8")
    sys.stderr.write(f"wrote {target.name}\n")


def render(table: QuantileTable) -> str:
    """Return the table as JSON text with one line per list, so that a change reads well."""
    body = table.model_dump(mode="json")
    lists: dict[str, str] = {}

    def mark(value: object) -> object:
        if isinstance(value, dict):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list):
            token = f"@{len(lists)}@"
            lists[json.dumps(token)] = json.dumps(value)
            return token
        return value

    text = json.dumps(mark(body), indent=2)
    for token, line in lists.items():
        text = text.replace(token, line)
    return text + "\n"


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RetunedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
