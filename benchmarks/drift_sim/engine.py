"""Continuous batching with chunked prefill, many replicas in lockstep.

One step runs all active decodes (one token each) and fills up to the token budget with prompt
tokens in order of arrival. Constants as in the reference: a step takes 8 ms + 16 us a token,
at most 256 sequences, prompts in chunks of 2,048 tokens a step. Plausible for an 8B model; not
calibrated on a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from benchmarks.drift_sim.traffic import Floats, Ints, Requests

from retuned.stages.profile import ProfileSettings, bucket

STEP_S = 8e-3
TOKEN_S = 16e-6
SEQUENCES = 256
CHUNK = 2_048
BUCKETS = sorted({bucket(m, ProfileSettings()) for m in range(1, 8 * CHUNK + 1)})
"""Every M-bucket a step can fall into, rising, for token budgets of up to 16,384."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What each replica ran; shapes (replicas, buckets)."""

    counts: Ints
    """Steps by M-bucket."""
    tokens: Floats
    """Sum of M by M-bucket."""
    span_s: Floats
    """Simulated time of the counted steps, shape (replicas,)."""


def simulate(requests: Requests, *, chunk: Ints, warm_steps: int, steps: int) -> Steps:
    """Run every replica for `warm_steps` and then count `steps`.

    A replica whose last request has arrived counts no further, so that it is never seen draining.
    `chunk` is the token budget of a step per replica, shape (replicas,).
    """
    replicas, count = requests.inputs.shape
    rows = np.arange(replicas)
    arrivals = np.hstack([requests.arrivals_s, np.full((replicas, 2), np.inf)])
    # cumulative prompt tokens up to and including each request; the pad is never reached
    ends = np.hstack([np.cumsum(requests.inputs, axis=1), np.full((replicas, 2), 2**60)])
    outputs = np.hstack([requests.outputs, np.ones((replicas, 2), dtype=np.int64)])
    total = warm_steps + steps
    leaving = np.zeros((replicas, total + 2), dtype=np.int64)
    now = np.zeros(replicas)
    arrived, filled, done = (np.zeros(replicas, dtype=np.int64) for _ in range(3))
    prefilled = np.zeros(replicas, dtype=np.int64)
    active = np.zeros(replicas, dtype=np.int64)
    table = np.searchsorted(BUCKETS, np.arange(BUCKETS[-1] + 1))
    counts = np.zeros((replicas, len(BUCKETS)), dtype=np.int64)
    tokens = np.zeros((replicas, len(BUCKETS)))
    span = np.zeros(replicas)
    for step in range(total):
        active -= leaving[:, step]
        done += leaving[:, step]
        arrived = _advance(arrived, arrivals, now, rows)
        admitted = np.minimum(arrived, done + SEQUENCES)
        waiting = np.where(admitted > 0, ends[rows, np.maximum(admitted - 1, 0)], 0) - prefilled
        taken = np.minimum(np.maximum(waiting, 0), np.maximum(chunk - active, 0))
        size = active + taken
        prefilled += taken
        idle = size == 0
        wait = np.where(arrived < count, arrivals[rows, arrived] - now, 0.0)
        lasts = np.where(idle, np.maximum(wait, 1e-4), STEP_S + TOKEN_S * size)
        now += lasts
        if step >= warm_steps:
            places = table[np.minimum(size, BUCKETS[-1])]
            busy = rows[~idle & (arrived < count)]
            counts[busy, places[busy]] += 1
            tokens[busy, places[busy]] += size[busy]
            span += np.where(arrived < count, lasts, 0.0)
        _start_decodes(filled, prefilled, ends, outputs, active, leaving, step, total)
    if (counts.sum(axis=1) == 0).any():
        raise ValueError("a replica ran out of requests before it was warm; draw more")
    return Steps(counts=counts, tokens=tokens, span_s=span)


def _advance(arrived: Ints, arrivals: Floats, now: Floats, rows: Ints) -> Ints:
    """Count every request that has come by `now`."""
    while True:
        come = arrivals[rows, arrived] <= now
        if not come.any():
            return arrived
        arrived = arrived + come


def _start_decodes(
    filled: Ints,
    prefilled: Ints,
    ends: Ints,
    outputs: Ints,
    active: Ints,
    leaving: Ints,
    step: int,
    total: int,
) -> None:
    """Let requests whose prompt is complete decode from the next step on, in place."""
    rows = np.arange(len(filled))
    while True:
        ready = rows[ends[rows, filled[rows]] <= prefilled[rows]]
        if not len(ready):
            return
        # the first token comes with the prefill, so n tokens are n - 1 decode steps
        until = np.minimum(step + outputs[ready, filled[ready]], total + 1)
        active[ready] += 1
        np.add.at(leaving, (ready, until), 1)
        filled[ready] += 1
        rows = ready
