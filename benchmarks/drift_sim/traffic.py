"""Read the workload files: who sent how much, and how long their prompts and answers were.

The files are data from outside: JSON lines and CSV are parsed, never evaluated, and every number is
checked.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WINDOW_S = 600
"""Length of a window of rates, seconds."""
PDF_S = 6 * 3600
"""Length of a window of token lengths, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Many discrete distributions of token counts, drawn by inverse CDF."""

    edges: Floats
    """Distribution number plus cumulative probability, rising, shape (values,)."""
    values: Ints
    """Token counts, shape (values,)."""
    starts: Ints
    """First value of each distribution, shape (distributions + 1,)."""

    def draw(self, which: Ints, generator: np.random.Generator) -> Ints:
        """Draw one length from each named distribution; same shape as `which`."""
        at = np.searchsorted(self.edges, which + generator.random(which.shape), side="right")
        return self.values[np.clip(at, self.starts[which], self.starts[which + 1] - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One model's traffic."""

    rates: Floats
    """Requests per second, shape (windows, clients)."""
    pdfs: Ints
    """Number of the length distribution, shape (6-hour windows, clients); -1 where unknown."""
    inputs: Lengths
    """Prompt lengths."""
    outputs: Lengths
    """Answer lengths."""

    @property
    def windows(self) -> int:
        """Number of 10-minute windows."""
        return len(self.rates)


def load_servegen(folder: Path, *, rates: str, lengths: str) -> Traffic:
    """Read one ServeGen model.

    Raises
    ------
    ValueError
        If a row is not what the format says.
    """
    keys: dict[tuple[int, int], int] = {}
    inputs: list[dict[str, float]] = []
    outputs: list[dict[str, float]] = []
    with gzip.open(folder / lengths, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            keys[(int(row["t_s"]) // PDF_S, int(row["client"]))] = len(inputs)
            inputs.append(row["input_tokens"])
            outputs.append(row["output_tokens"])
    with gzip.open(folder / rates, "rt", encoding="utf-8", newline="") as lines:
        rows = [
            (int(r["t_s"]), int(r["client"]), float(r["rate_rps"])) for r in csv.DictReader(lines)
        ]
    if not rows or any(t < 0 or c < 0 or not 0 <= rate < 1e6 for t, c, rate in rows):
        raise ValueError(f"{rates}: a row has a negative time, client or rate")
    windows = max(t for t, _, _ in rows) // WINDOW_S + 1
    clients = max(max(c for _, c, _ in rows), max(c for _, c in keys)) + 1
    table = np.zeros((windows, clients))
    for t_s, client, rate in rows:
        table[t_s // WINDOW_S, client] += rate
    return Traffic(
        rates=table,
        pdfs=_latest(keys, windows * WINDOW_S // PDF_S + 1, clients),
        inputs=_lengths(inputs),
        outputs=_lengths(outputs),
    )


def _latest(keys: dict[tuple[int, int], int], periods: int, clients: int) -> Ints:
    """Distribution of each client in each period: its latest, or its first where none came yet."""
    table = np.full((periods, clients), -1, dtype=np.int64)
    for (period, client), number in keys.items():
        if period < periods:
            table[period, client] = number
    for period in range(1, periods):
        table[period] = np.where(table[period] < 0, table[period - 1], table[period])
    for period in range(periods - 2, -1, -1):
        table[period] = np.where(table[period] < 0, table[period + 1], table[period])
    return table


def _lengths(pdfs: list[dict[str, float]]) -> Lengths:
    edges, values, starts = [], [], [0]
    for number, pdf in enumerate(pdfs):
        tokens = np.array([int(key) for key in pdf], dtype=np.int64)
        mass = np.array([float(value) for value in pdf.values()])
        if not len(tokens) or (mass < 0).any() or mass.sum() <= 0:
            raise ValueError(f"length distribution {number} is empty or negative")
        edges.append(number + np.cumsum(mass) / mass.sum())
        values.append(np.maximum(tokens, 1))
        starts.append(starts[-1] + len(tokens))
    return Lengths(
        edges=np.concatenate(edges), values=np.concatenate(values), starts=np.array(starts)
    )


def load_azure(path: Path) -> tuple[Ints, Ints]:
    """Prompt and answer lengths of one Azure trace, each of shape (requests,)."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in csv.DictReader(lines)]
    table = np.maximum(np.array(rows, dtype=np.int64), 1)
    return table[:, 0], table[:, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests of many replicas, in order of arrival; shapes (replicas, requests)."""

    arrivals_s: Floats
    """Arrival times."""
    inputs: Ints
    """Prompt lengths, tokens."""
    outputs: Ints
    """Answer lengths, tokens."""


def draw_requests(
    traffic: Traffic,
    windows: Ints,
    *,
    rps: Floats,
    count: int,
    generator: np.random.Generator,
) -> Requests:
    """Draw `count` requests for one replica per entry of `windows`.

    Clients by their share of the window's rate, lengths from the client's latest distribution,
    Poisson arrivals (a replica sees a thin slice of many clients).
    """
    shares = np.where(traffic.pdfs[windows * WINDOW_S // PDF_S] >= 0, traffic.rates[windows], 0.0)
    cumulative = np.cumsum(shares, axis=1)
    cumulative /= cumulative[:, -1:]
    draws = generator.random((len(windows), count))
    clients = np.stack(
        [
            np.searchsorted(row, draw, side="right")
            for row, draw in zip(cumulative, draws, strict=True)
        ]
    )
    clients = np.minimum(clients, shares.shape[1] - 1)
    which = traffic.pdfs[(windows * WINDOW_S // PDF_S)[:, None], clients]
    gaps = generator.exponential(1.0, (len(windows), count)) / rps[:, None]
    return Requests(
        arrivals_s=np.cumsum(gaps, axis=1),
        inputs=traffic.inputs.draw(which, generator),
        outputs=traffic.outputs.draw(which, generator),
    )
