"""Simulated servers for the live proof: blocks of step records, drawn fast.

A server runs steps whose composition wobbles with its traffic. A step takes the longer of GPU and
host time, plus a constant. Its noise is that of servers: clocks that drift within seconds and
minutes, jitter, neighbours, collections of garbage, jobs with a period, a trend. Sizes are
plausible for an 8B model on one current GPU; they are not fitted to a real one. The batch does not
react to the swap: the outcome of a proof is normalised by it. All draws depend on the seed only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retuned.stages.watch.proof import (
    Arm,
    MeasuredBlock,
    PairMeasured,
    PairPlan,
    ProofSettings,
    ProofState,
    StepColumns,
    Tick,
    begin,
    next_pair,
    step,
)

Floats = NDArray[np.float64]
GRAPHS = np.array([1, 2, 4, *range(8, 129, 8)])
_GRID_S = 0.25
_CHUNK = 512


@dataclass(frozen=True)
class Server:
    """Times in seconds, noise as log ratios."""

    gpu_fixed: float = 0.8e-3
    weights: float = 4.8e-3
    token: float = 25e-6
    context_token: float = 0.03e-6
    host: float = 3.0e-3
    host_sequence: float = 10e-6
    exposed: float = 0.3e-3
    batch: float = 27.0
    batch_sd: float = 0.35
    prompts: float = 0.15
    """Share of steps with a prompt."""
    prompt_tokens: float = 350.0
    fast_sd: float = 0.010
    slow_sd: float = 0.015
    jitter: float = 0.015
    host_sd: float = 0.03
    host_jitter: float = 0.10
    trend: float = 0.0
    """Change of log time per second."""
    neighbours_s: float = 120.0
    """Mean time between bursts of 5 s; 0 has none."""
    neighbour: float = 0.06
    collections: float = 1.0 / 3000.0
    """Share of steps with a pause of 20 ms on average."""
    jobs: tuple[tuple[float, float, float], ...] = ((15.0, 0.15, 0.10), (60.0, 1.0, 0.15))
    """Period, length and slowdown of periodic jobs."""
    requests_per_s: float = 0.0
    """Quiet traffic: requests one after the other, idle between; 0 is steady traffic."""


@dataclass(frozen=True)
class Swap:
    """What the swap changes, as a ratio minus one."""

    gpu: float = 0.0
    host: float = 0.0
    stalls: float = 0.0
    """Share of steps with the swap that stall."""
    stall_s: float = 0.050


GPU_BOUND = Server()
HOST_BOUND = replace(
    GPU_BOUND,
    gpu_fixed=0.3e-3,
    weights=0.6e-3,
    token=4e-6,
    context_token=0.01e-6,
    host=6.5e-3,
    host_sequence=20e-6,
    batch=13.0,
)
HOST_ONLY = replace(HOST_BOUND, prompts=0.05, prompt_tokens=60.0)
"""The GPU never sets the pace."""
TREND = replace(GPU_BOUND, trend=0.02 / 600.0)
BURSTS = replace(GPU_BOUND, neighbours_s=30.0, neighbour=0.25, batch_sd=0.6, collections=1 / 1000)
JOBS = replace(GPU_BOUND, jobs=((5.0, 0.25, 0.10), (15.0, 0.15, 0.10), (60.0, 1.0, 0.30)))
SERVERS = {
    "gpu-bound": GPU_BOUND,
    "host-bound": HOST_BOUND,
    "trend": TREND,
    "bursts": BURSTS,
    "periodic-jobs": JOBS,
}


class _Wobbles:
    """Autocorrelated processes of unit variance on a grid of times, drawn as far as needed."""

    def __init__(self, rng: np.random.Generator, *taus_s: float) -> None:
        self._rng = rng
        self._keep = [math.exp(-_GRID_S / tau_s) for tau_s in taus_s]
        self._values = rng.standard_normal((len(taus_s), 1))

    def at(self, times: Floats) -> Floats:
        """Return the processes at these ascending times, of shape (processes, times)."""
        need = int(times[-1] / _GRID_S) + 2
        while self._values.shape[1] < need:
            drawn = self._rng.standard_normal((len(self._keep), _CHUNK))
            for row, last, keep in zip(drawn, self._values[:, -1], self._keep, strict=True):
                row[:] = _filtered(row.tolist(), float(last), keep)
            self._values = np.concatenate([self._values, drawn], axis=1)
        position = times / _GRID_S
        index = position.astype(np.int64)
        low = index[0]
        part, near = position - index, self._values[:, low : index[-1] + 2]
        before = near[:, index - low]
        return np.asarray(before + (near[:, index - low + 1] - before) * part)


def _filtered(noise: list[float], value: float, keep: float) -> list[float]:
    spread, values = math.sqrt(1.0 - keep * keep), []
    for each in noise:
        value = keep * value + spread * each
        values.append(value)
    return values


class SimulatedServer:
    """One server with a clock; each call of `block` continues where the last one ended."""

    def __init__(self, server: Server, swap: Swap, *, seed: int) -> None:
        self.server, self.swap, self.now_s = server, swap, 0.0
        self._rng = np.random.default_rng(seed)
        self._traffic = _Wobbles(self._rng, 8.0, 30.0)
        self._clocks = _Wobbles(self._rng, 20.0, 300.0, 10.0)
        self._phases = self._rng.random(len(server.jobs)).tolist()
        self._burst = (-1.0, self._gap())
        self._left = 0
        self._arrival_s = 0.0

    def block(self, arm: Arm, plan: PairPlan) -> MeasuredBlock:
        """Run one block, as an adapter would."""
        parts = self._quiet(arm, plan) if self.server.requests_per_s else self._steady(arm, plan)
        steps, ended = parts
        began, self.now_s = self.now_s, ended
        return MeasuredBlock(steps, began_s=began, ended_s=ended)

    def _steady(self, arm: Arm, plan: PairPlan) -> tuple[StepColumns, float]:
        count = int(plan.block_s / 5e-3) + plan.least_steps + 8
        while True:
            prefill, decode, context = self._composition(count)
            steps = self._steps(arm, prefill, decode, context)
            over = self._over(steps.ended_s - self.now_s, plan)
            if over < count:
                kept = steps.pick(np.arange(over + 1))
                return kept, float(kept.ended_s[-1])
            count *= 2

    @staticmethod
    def _over(elapsed: Floats, plan: PairPlan) -> int:
        enough = np.maximum(np.searchsorted(elapsed, plan.block_s), plan.least_steps - 1)
        return int(min(enough, np.searchsorted(elapsed, plan.most_block_s)))

    def _composition(self, count: int) -> tuple[Floats, Floats, Floats]:
        server, rng = self.server, self._rng
        times = self.now_s + np.arange(count, dtype=np.float64) * 8e-3
        batch, length = self._traffic.at(times)
        decode = np.clip(np.rint(server.batch * np.exp(server.batch_sd * batch)), 1, 128)
        prompt = np.exp(math.log(server.prompt_tokens) + rng.standard_normal(count))
        prefill = np.where(
            rng.random(count) < server.prompts, np.rint(np.clip(prompt, 8, 2048)), 0.0
        )
        context = np.rint(decode * 450.0 * np.exp(0.2 * length))
        return prefill, decode, context

    def _steps(self, arm: Arm, prefill: Floats, decode: Floats, context: Floats) -> StepColumns:
        server, swap, rng = self.server, self.swap, self._rng
        on, count = arm is Arm.ON, len(prefill)
        padded = GRAPHS[np.minimum(np.searchsorted(GRAPHS, decode), len(GRAPHS) - 1)]
        graph = np.where(prefill > 0, 0, padded)
        tokens = np.where(prefill > 0, prefill + decode, padded)
        gpu = (server.weights**4 + (server.token * tokens) ** 4) ** 0.25
        gpu += server.gpu_fixed + server.context_token * context
        host = server.host + server.host_sequence * decode
        about = self.now_s + np.cumsum(np.maximum(gpu, host) + server.exposed)
        gpu_noise, host_noise = self._noise(about)
        gpu *= gpu_noise * (1.0 + swap.gpu * on)
        host *= host_noise * (1.0 + swap.host * on)
        if server.collections:
            pauses = rng.random(count) < server.collections
            host = host + np.where(pauses, rng.exponential(0.020, count), 0.0)
        if on and swap.stalls:
            host = host + np.where(rng.random(count) < swap.stalls, swap.stall_s, 0.0)
        period = np.maximum(gpu, host) + server.exposed
        return StepColumns(
            on=np.full(count, on),
            prefill=prefill,
            decode=decode,
            context=context,
            graph=graph.astype(np.int64),
            period_s=period,
            busy_s=gpu,
            host_s=host,
            ended_s=self.now_s + np.cumsum(period),
        )

    def _noise(self, times: Floats) -> tuple[Floats, Floats]:
        server, rng = self.server, self._rng
        fast, slow, of_host = self._clocks.at(times)
        log_gpu = server.fast_sd * fast + server.slow_sd * slow
        log_gpu += server.jitter * rng.standard_normal(len(times)) + server.trend * times
        log_host = server.host_sd * of_host + server.trend * times
        log_host += server.host_jitter * rng.standard_normal(len(times))
        both = np.ones(len(times))
        for (period, length, size), phase in zip(server.jobs, self._phases, strict=True):
            both[(times / period + phase) % 1.0 * period < length] *= 1.0 + size
        gpu, host = np.exp(log_gpu) * both, np.exp(log_host) * both
        if server.neighbours_s:
            gpu *= 1.0 + server.neighbour * self._bursting(times)
        return gpu, host

    def _gap(self) -> float:
        mean = self.server.neighbours_s
        return float(self._rng.exponential(mean)) if mean else math.inf

    def _bursting(self, times: Floats) -> NDArray[np.bool_]:
        ends, begins = self._burst
        during = times < ends
        if times[-1] > begins:
            ends = begins + float(self._rng.exponential(5.0))
            during |= (times >= begins) & (times < ends)
            self._burst = (ends, ends + self._gap())
        return during

    def _quiet(self, arm: Arm, plan: PairPlan) -> tuple[StepColumns, float]:
        """Serve one request after the other; a block may end while the server is idle."""
        began, parts = self.now_s, []
        latest = began + plan.most_block_s
        held = 0
        while True:
            idle = self._left == 0
            if idle:
                self._arrival_s = (
                    max(
                        self._arrival_s
                        + float(self._rng.exponential(1 / self.server.requests_per_s)),
                        self.now_s,
                    )
                    if self._arrival_s <= self.now_s
                    else self._arrival_s
                )
                if self._arrival_s >= latest:
                    ended = latest
                    break
                self.now_s = self._arrival_s
                self._left = 2 + int(self._rng.exponential(120.0))
            count = min(self._left, 2048)
            prefill, decode, context = np.zeros(count), np.ones(count), np.full(count, 450.0)
            if idle:
                prefill[0], decode[0] = 350.0, 0.0
            steps = self._steps(arm, prefill, decode, context)
            if idle:
                steps.period_s[0] = math.nan
            elapsed = steps.ended_s - began
            rest = max(plan.least_steps - held, 1)
            over = max(int(np.searchsorted(elapsed, plan.block_s)), rest - 1)
            over = min(over, int(np.searchsorted(elapsed, plan.most_block_s)))
            taken = min(over + 1, count)
            parts.append(steps.pick(np.arange(taken)))
            held += taken
            self._left -= taken
            self.now_s = ended = float(steps.ended_s[taken - 1])
            if over < count:
                break
        self.now_s = began
        return _join(parts), ended


def _join(parts: list[StepColumns]) -> StepColumns:
    def of(name: str) -> NDArray[np.generic]:
        columns = [getattr(part, name) for part in parts]
        return np.concatenate(columns) if columns else np.zeros(0)

    return StepColumns(
        on=of("on").astype(np.bool_),
        prefill=of("prefill").astype(np.float64),
        decode=of("decode").astype(np.float64),
        context=of("context").astype(np.float64),
        graph=of("graph").astype(np.int64),
        period_s=of("period_s").astype(np.float64),
        busy_s=of("busy_s").astype(np.float64),
        host_s=of("host_s").astype(np.float64),
        ended_s=of("ended_s").astype(np.float64),
    )


def run_pair(state: ProofState, server: SimulatedServer, coin: random.Random) -> ProofState:
    """Plan, run and judge one pair."""
    state = next_pair(state, coin)
    plan = state.plan
    assert plan is not None
    first, second = (server.block(arm, plan) for arm in plan.runs)
    return step(state, PairMeasured(plan.number, first, second, at_s=server.now_s))


def run_proof(
    server: Server, swap: Swap, *, seed: int, settings: ProofSettings | None = None
) -> ProofState:
    """Run one proof to its end on one simulated server, pairs without a break between them."""
    simulated = SimulatedServer(server, swap, seed=seed)
    coin = random.Random(seed)  # seeded, so that a run can be repeated
    state = begin(settings, at_s=0.0)
    while not state.done:
        state = run_pair(state, simulated, coin)
        state = step(state, Tick(at_s=simulated.now_s))
    return state
