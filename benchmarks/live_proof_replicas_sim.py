"""Simulated boots of replicas for live proofs of swaps that need a restart.

Each boot has its own level: the logarithm of its step time differs from that of other boots of
the same configuration by a normal or a heavy-tailed draw (`spread`), whatever it runs. Within a
boot, steps have the composition and the costs of `live_proof_sim.GPU_BOUND`; their noise wobbles
within the window. Traffic differs from pair to pair, and the balancer sends more work to the boot
that is faster. A simulated step stands for many: a window of ten minutes has 400. All draws depend
on the seed only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from benchmarks.live_proof_sim import GPU_BOUND, GRAPHS, Floats

from retuned.stages.watch.proof import (
    Arm,
    BootPlan,
    BootSettings,
    BootsMeasured,
    BootWindow,
    ReplicaState,
    StepColumns,
    assign,
    begin_replicas,
    step_replicas,
    wanted_pairs,
    window_of,
)

ENVIRONMENT = "sha256:" + 64 * "a"
_STEPS = 400
_BOOT_S = 120.0


@dataclass(frozen=True)
class Fleet:
    """Replicas behind one balancer; noise as log ratios."""

    spread: float
    """Standard deviation of a boot's level."""
    heavy: bool = False
    """Whether levels have the tails of Student's t with 3 degrees, scaled to the same deviation."""
    effect: float = 0.0
    """Step time with the swap over without, ratio minus one."""
    nodes: float = 0.0
    """Standard deviation of a node's level; both boots of a pair run on nodes of one kind."""
    traffic: float = 0.3
    """Standard deviation of a pair's load."""
    reaction: float = 1.0
    """How much more work a faster boot is sent: 1 doubles a difference of speed."""
    wobble: float = 0.004
    """Standard deviation of a window's level besides the boot's."""
    jitter: float = 0.03
    """Standard deviation of a step."""


class SimulatedFleet:
    """Boots pairs of replicas; each call of `pair` continues where the last one ended."""

    def __init__(self, fleet: Fleet, *, seed: int) -> None:
        self.fleet, self.now_s, self._boots = fleet, 0.0, 0
        self._rng = np.random.default_rng(seed)

    def pair(self, plan: BootPlan, settings: BootSettings) -> tuple[BootWindow, BootWindow]:
        """Return the windows of both boots of a pair."""
        load = math.exp(self.fleet.traffic * self._rng.standard_normal())
        node = self.fleet.nodes * self._rng.standard_normal()
        first, second = (
            self._boot(name, arm, settings, load=load, node=node)
            for name, arm in zip(plan.replicas, plan.runs, strict=True)
        )
        return first, second

    def _level(self) -> float:
        if self.fleet.heavy:  # a variance of 3
            return float(self.fleet.spread * self._rng.standard_t(3) / math.sqrt(3.0))
        return float(self.fleet.spread * self._rng.standard_normal())

    def _boot(
        self, name: str, arm: Arm, settings: BootSettings, *, load: float, node: float
    ) -> BootWindow:
        fleet, rng, on = self.fleet, self._rng, arm is Arm.ON
        level = self._level() + node + fleet.wobble * rng.standard_normal()
        level += math.log1p(fleet.effect) if on else 0.0
        prefill, decode, context = self._composition(load * math.exp(-fleet.reaction * level))
        padded = GRAPHS[np.minimum(np.searchsorted(GRAPHS, decode), len(GRAPHS) - 1)]
        graph = np.where(prefill > 0, 0, padded)
        tokens = np.where(prefill > 0, prefill + decode, padded)
        server = GPU_BOUND
        gpu = (server.weights**4 + (server.token * tokens) ** 4) ** 0.25
        gpu += server.gpu_fixed + server.context_token * context
        period = (gpu + server.exposed) * np.exp(level + fleet.jitter * rng.standard_normal(_STEPS))
        self._boots += 1
        steps = StepColumns(
            on=np.full(_STEPS, on),
            prefill=prefill,
            decode=decode,
            context=context,
            graph=graph.astype(np.int64),
            period_s=period,
            busy_s=np.full(_STEPS, math.nan),
            host_s=np.full(_STEPS, math.nan),
            ended_s=settings.leave_out_s + np.linspace(0.0, 0.999 * settings.window_s, _STEPS),
        )
        window = window_of(
            steps,
            replica=name,
            boot=f"boot-{self._boots}",
            environment=ENVIRONMENT,
            began_s=self.now_s,
            opens_s=settings.leave_out_s,
            closes_s=settings.leave_out_s + settings.window_s,
        )
        assert window is not None, "a simulated boot runs one arm"
        return window

    def _composition(self, load: float) -> tuple[Floats, Floats, Floats]:
        server, rng = GPU_BOUND, self._rng
        wave = np.repeat(rng.standard_normal(_STEPS // 20), 20)
        batch = server.batch * load * np.exp(server.batch_sd * wave)
        decode = np.clip(np.rint(batch), 1, 128)
        prompt = np.exp(math.log(server.prompt_tokens) + rng.standard_normal(_STEPS))
        prefill = np.where(
            rng.random(_STEPS) < server.prompts, np.rint(np.clip(prompt, 8, 2048)), 0.0
        )
        context = np.rint(decode * 450.0 * np.exp(0.2 * np.roll(wave, 7)))
        return prefill, decode, context


def run_boots(fleet: Fleet, *, seed: int, settings: BootSettings | None = None) -> ReplicaState:
    """Run one proof to its end, one pair of boots after the other, in virtual time."""
    simulated, coin = SimulatedFleet(fleet, seed=seed), random.Random(seed)
    state = begin_replicas(settings, environment=ENVIRONMENT, at_s=0.0)
    while not state.done:
        assert wanted_pairs(state), "a proof that waits for nothing is done"
        state = assign(state, ("replica-0", "replica-1"), coin=coin)
        plan = state.open[-1]
        first, second = simulated.pair(plan, state.settings)
        rules = state.settings
        simulated.now_s += _BOOT_S + rules.leave_out_s + rules.window_s
        state = step_replicas(
            state, BootsMeasured(plan.number, first, second, at_s=simulated.now_s)
        )
    return state
