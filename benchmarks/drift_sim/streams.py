"""Streams of 10-minute histograms: natural weeks, resampled days, and injected drifts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.drift_sim.engine import BUCKETS, CHUNK, STEP_S, TOKEN_S, simulate
from benchmarks.drift_sim.traffic import (
    Floats,
    Ints,
    Requests,
    Traffic,
    draw_requests,
    load_azure,
    load_servegen,
)

from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile

DRIFTS = ("D1", "D2", "D3", "D3b", "D4", "D5", "D6")
"""The drifts of the budget; some of them chose the settings."""
FURTHER = ("E1", "E2", "E3", "E4", "E5")
"""Drifts that no setting was chosen on."""
WHAT = {
    "D1": "30 % of requests become long-prompt short-answer (Azure code)",
    "D2": "20 % of requests become reasoning (DeepSeek-R1 lengths)",
    "D3": "load per replica doubles",
    "D3b": "load per replica halves",
    "D4": "prompt chunk 2,048 becomes 8,192",
    "D5": "D1, ramped over 12 h",
    "D6": "5 % of the launches of one kernel go to a new (N, K)",
    "E1": "half of the requests become conversations (Azure)",
    "E2": "prompts are twice as long",
    "E3": "answers are twice as long",
    "E4": "prompt chunk 2,048 becomes 512",
    "E5": "the busiest client leaves, and others take its place",
}
REPLICA_RPS = 8.0
DAY = 144
WEEK = 7 * DAY
WARM_STEPS, STEPS = 2_000, 3_000
_BATCH = 2_016
_KERNELS = (("gemm_mlp", (4096, 14336), 0.65), ("gemm_attention", (4096, 4096), 0.35))
_NEW_DIMS = (4096, 28672)
NEW_KEY_PART = 0.05 * _KERNELS[0][2]
"""Share of GPU time that D6 moves to the new key."""
_SHARE_D1, _SHARE_D2, _SHARE_D6, _SHARE_E1, _RAMP = 0.3, 0.2, 0.05, 0.5, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Histograms:
    """Consecutive windows of one replica, 10 minutes each unless `hourly`."""

    counts: Ints
    """Steps by M-bucket, shape (windows, buckets)."""
    tokens: Floats
    """Sum of M by M-bucket, shape (windows, buckets)."""
    span_s: Floats
    """Observed time, shape (windows,)."""
    new_key: bool = False
    """Whether D6 is injected."""
    new_key_since: int = 0
    """First window of D6."""

    def __getitem__(self, at: slice) -> Histograms:
        return Histograms(counts=self.counts[at], tokens=self.tokens[at], span_s=self.span_s[at])

    @property
    def time_s(self) -> Floats:
        """GPU time by bucket, shape (windows, buckets)."""
        return STEP_S * self.counts + TOKEN_S * self.tokens

    def hourly(self) -> Histograms:
        """Six windows summed."""
        hours = len(self.counts) // 6
        return Histograms(
            counts=self.counts[: 6 * hours].reshape(hours, 6, -1).sum(axis=1),
            tokens=self.tokens[: 6 * hours].reshape(hours, 6, -1).sum(axis=1),
            span_s=self.span_s[: 6 * hours].reshape(hours, 6).sum(axis=1),
            new_key=self.new_key,
            new_key_since=self.new_key_since // 6,
        )


def joined(parts: list[Histograms]) -> Histograms:
    """One after the other."""
    return Histograms(
        counts=np.concatenate([part.counts for part in parts]),
        tokens=np.concatenate([part.tokens for part in parts]),
        span_s=np.concatenate([part.span_s for part in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All traffic the benchmark draws from."""

    chat: Traffic
    """ServeGen m-large, 14 days."""
    reasoning: Traffic
    """ServeGen deepseek-r1, 1 day."""
    code: tuple[Ints, Ints]
    """Azure code: prompt and answer lengths."""
    conversation: tuple[Ints, Ints]
    """Azure conversation: prompt and answer lengths."""

    @classmethod
    def load(cls, folder: Path) -> World:
        """Read the files."""
        return cls(
            chat=load_servegen(
                folder,
                rates="servegen_m-large_rates.csv.gz",
                lengths="servegen_m-large_lengths_logbin24.jsonl.gz",
            ),
            reasoning=load_servegen(
                folder,
                rates="servegen_deepseek-r1_rates.csv.gz",
                lengths="servegen_deepseek-r1_lengths.jsonl.gz",
            ),
            code=load_azure(folder / "azure_llm_2023_code.csv.gz"),
            conversation=load_azure(folder / "azure_llm_2023_conv.csv.gz"),
        )

    def service(self, part: str) -> World:
        """Make a service of every other client, by falling requests over both weeks.

        ``tuning`` has the first, third ... client, ``held-out`` the second, fourth ...; ``all`` is
        the service as it was.
        """
        if part == "all":
            return self
        order = np.argsort(-self.chat.rates.sum(axis=0), kind="stable")
        rates = self.chat.rates.copy()
        others = order[0 if part == "held-out" else 1 :: 2]
        rates[:, others] = 0.0
        return replace(self, chat=replace(self.chat, rates=rates))


def run(
    world: World,
    windows: Ints,
    *,
    generator: np.random.Generator,
    drift: str = "",
    since: Ints | None = None,
) -> Histograms:
    """Simulate the given 10-minute windows of the 14 days, each on its own replica.

    `since` counts windows since the drift began, shape (windows,), for the ramp of D5.
    """
    parts = []
    ages = np.full(len(windows), 10**6) if since is None else since
    for at in range(0, len(windows), _BATCH):
        batch = windows[at : at + _BATCH]
        traffic = _without_busiest(world.chat) if drift == "E5" else world.chat
        total = traffic.rates[batch].sum(axis=1)
        rps = total / np.ceil(total / REPLICA_RPS) * {"D3": 2.0, "D3b": 0.5}.get(drift, 1.0)
        warm = 2 * WARM_STEPS if drift == "D2" else WARM_STEPS
        # enough for steps of 14 ms and for windows of very short answers
        count = round((warm + STEPS) * (0.014 * float(rps.max()) + 0.12))
        requests = draw_requests(traffic, batch, rps=rps, count=count, generator=generator)
        requests = _mixed(world, requests, drift, ages[at : at + _BATCH], generator)
        chunk = np.full(len(batch), {"D4": 4 * CHUNK, "E4": CHUNK // 4}.get(drift, CHUNK))
        steps = simulate(requests, chunk=chunk, warm_steps=warm, steps=STEPS)
        parts.append(Histograms(counts=steps.counts, tokens=steps.tokens, span_s=steps.span_s))
    return joined(parts)


def _without_busiest(traffic: Traffic) -> Traffic:
    rates = traffic.rates.copy()
    rates[:, int(np.argmax(rates.sum(axis=0)))] = 0.0
    # a window in which no other client sent anything keeps its client
    alone = rates.sum(axis=1) == 0
    rates[alone] = traffic.rates[alone]
    return replace(traffic, rates=rates)


def _mixed(
    world: World, requests: Requests, drift: str, ages: Ints, generator: np.random.Generator
) -> Requests:
    """Replace part of the requests by others'."""
    shape = requests.inputs.shape
    if drift in ("D1", "D5"):
        share = np.full(shape[0], _SHARE_D1)
        if drift == "D5":
            share *= np.minimum(1.0, ages / _RAMP)
        picks = generator.integers(len(world.code[0]), size=shape)
        inputs, outputs = world.code[0][picks], world.code[1][picks]
    elif drift == "E1":
        share = np.full(shape[0], _SHARE_E1)
        picks = generator.integers(len(world.conversation[0]), size=shape)
        inputs, outputs = world.conversation[0][picks], world.conversation[1][picks]
    elif drift == "D2":
        share = np.full(shape[0], _SHARE_D2)
        busy = np.flatnonzero(world.reasoning.rates.sum(axis=1) > 0)
        windows = busy[generator.integers(len(busy), size=shape[0])]
        other = draw_requests(
            world.reasoning,
            windows,
            rps=np.ones(shape[0]),
            count=shape[1],
            generator=generator,
        )
        inputs, outputs = other.inputs, other.outputs
    else:
        return replace(
            requests,
            inputs=requests.inputs * (2 if drift == "E2" else 1),
            outputs=requests.outputs * (2 if drift == "E3" else 1),
        )
    replaced = generator.random(shape) < share[:, None]
    return Requests(
        arrivals_s=requests.arrivals_s,
        inputs=np.where(replaced, inputs, requests.inputs),
        outputs=np.where(replaced, outputs, requests.outputs),
    )


def profiles(histograms: Histograms, *, start_window: int = 0) -> list[WorkloadProfile]:
    """One profile per window, as the sidecar would post them: two GEMMs by M-bucket."""
    time = histograms.time_s
    return [
        WorkloadProfile(
            window_start_ns=(start_window + i) * 600 * 10**9,
            window_ns=600 * 10**9,
            observed_ns=round(histograms.span_s[i] * 1e9),
            stats=tuple(
                _stats(
                    histograms.counts[i],
                    time[i],
                    histograms.new_key and i >= histograms.new_key_since,
                )
            ),
        )
        for i in range(len(time))
    ]


_KEYS = {
    (name, place, dims): Signature(kernel=name, dims=((m, dims[0]), dims), dtypes=("bf16",))
    for name, dims, _ in (*_KERNELS, ("gemm_mlp", _NEW_DIMS, 0.0))
    for place, m in enumerate(BUCKETS)
}


def _stats(counts: Ints, time_s: Floats, new_key: bool) -> list[SignatureStat]:
    stats = []
    for place in np.flatnonzero(counts):
        for name, dims, part in _KERNELS:
            launches, time_ns = int(counts[place]), int(time_s[place] * part * 1e9)
            median = time_ns // launches
            if new_key and name == "gemm_mlp":
                moved = round(launches * _SHARE_D6)
                if moved:
                    key = _KEYS[(name, int(place), _NEW_DIMS)]
                    stats.append(_stat(key, moved, moved * median, median))
                launches, time_ns = launches - moved, time_ns - moved * median
            stats.append(_stat(_KEYS[(name, int(place), dims)], launches, time_ns, median))
    return stats


def _stat(key: Signature, launches: int, time_ns: int, median_ns: int) -> SignatureStat:
    return SignatureStat(signature=key, launches=launches, gpu_time_ns=time_ns, median_ns=median_ns)
