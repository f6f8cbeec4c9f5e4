"""Steps 4 to 6: drift to hypotheses, hypotheses to experiments, findings to what follows."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from retuned.contract import Digest, Solution, Workload
from retuned.errors import HarnessError, MissingDependency
from retuned.local.context import Context, Kind
from retuned.local.swapping import in_force
from retuned.ports import Event, Finding
from retuned.stages import drift as drift_stage
from retuned.stages import experiment as experiment_stage
from retuned.stages import hypothesis as hypothesis_stage
from retuned.stages.drift import DetectorState, DriftReport
from retuned.stages.experiment import Budget, ExperimentPlan
from retuned.stages.hypothesis import Attempt, Hypothesis, ShapeCost
from retuned.stages.profile import WorkloadProfile, merge
from retuned.stages.verdict import Status, Verdict

log = logging.getLogger(__name__)

_SMALL_STEP = 3
"""A try of one structure's parameters gets this part of the budget."""
_ENOUGH = 0.5
"""Part of the believed saving that ends the search for a better variant."""


def explain(ctx: Context) -> None:
    """Turn each drift report that is worth it into hypotheses; the same belief is added once."""
    for stored in ctx.store.list(Kind.DRIFT, phase="new"):
        since = [w for w in ctx.store.list(Kind.WINDOW, phase="judged") if w.id > stored.id]
        if len(since) < ctx.settings.settle_windows:
            return  # the window that raised it is half old traffic, half new
        profile = merge([WorkloadProfile.model_validate(w.body["profile"]) for w in since])
        counters: Counter[str] = Counter()
        for window in since:
            counters.update(window.body["counters"])
        shapes = bind(ctx, profile, counters=counters)
        hypotheses = hypothesis_stage.hypothesize(
            shapes,
            report=DriftReport.model_validate(stored.body),
            total_gpu_time_ns=profile.gpu_time_ns,
            known={s.id for s in ctx.store.list(Kind.HYPOTHESIS)},
            priors=_gains(ctx, shapes),
            start={name: _first_structures(ctx, name) for name in shapes},
            settings=ctx.settings.hypothesis,
        )
        with ctx.store.transaction():
            for hypothesis in _news(ctx, hypotheses):
                _open(ctx, hypothesis)
            ctx.store.advance(Kind.DRIFT, stored.id, expect="new", to="explained")


def open_experiment(ctx: Context) -> ExperimentPlan | None:
    """Return the plan to run now: an interrupted one first, else the most promising hypothesis."""
    for stored in ctx.store.list(Kind.EXPERIMENT, phase="running"):
        return ExperimentPlan.model_validate(stored.body)
    day_ago = ctx.clock.now() - timedelta(days=1)
    recent = [s for s in ctx.store.list(Kind.EXPERIMENT) if s.created_at > day_ago]
    if len(recent) >= ctx.settings.experiments_per_day:
        return None
    beliefs = [
        Hypothesis.model_validate(s.body) for s in ctx.store.list(Kind.HYPOTHESIS, phase="open")
    ]
    if not beliefs:
        return None
    # a refined belief goes first: what was learned is fresh, and its kernel waits for an answer
    best = max(beliefs, key=lambda h: (len(h.attempts), h.expected_saving, h.id))
    plan = experiment_stage.plan(
        best,
        incumbent=live_baseline(ctx, best.definition),
        environment=ctx.environment,
        budget=_budget(ctx, best),
    )
    with ctx.store.transaction():
        new = ctx.store.add(Kind.EXPERIMENT, plan.id, plan.model_dump(mode="json"), phase="running")
        ctx.store.advance(
            Kind.HYPOTHESIS, best.id, expect="open", to="testing" if new else "abandoned"
        )
    return plan if new else None


def run_experiment(ctx: Context, plan: ExperimentPlan) -> None:
    """Run a plan to its end, keeping each finding as it comes; what is kept is never paid again."""
    known = {finding.solution.digest: finding for finding in findings(ctx, plan.id)}
    try:
        for finding in ctx.bench.run(plan, known=known):
            _keep(ctx, plan, finding)
    except (HarnessError, MissingDependency) as error:
        log.error("experiment %s failed: %s", plan.id, error)
        with ctx.store.transaction():
            ctx.store.advance(Kind.EXPERIMENT, plan.id, expect="running", to="failed")
            ctx.store.advance(Kind.HYPOTHESIS, plan.hypothesis, expect="testing", to="abandoned")
            _say(ctx, plan, what="experiment-failed", detail=str(error))
        return
    _conclude(ctx, plan)


def settle(ctx: Context) -> None:
    """Call the mix tuned once everything believed of its drift was answered and acted on."""
    explained = ctx.store.list(Kind.DRIFT, phase="explained")
    stored = ctx.store.get(Kind.DETECTOR, "state")
    if not explained or stored is None or _busy(ctx):
        return
    window = ctx.store.get(Kind.WINDOW, explained[-1].id)
    assert window is not None, "a drift report is written with its window"
    state = drift_stage.adopt(
        DetectorState.model_validate(stored.body),
        WorkloadProfile.model_validate(window.body["profile"]),
        tuned=True,
        settings=ctx.settings.drift,
    )
    with ctx.store.transaction():
        ctx.store.advance(
            Kind.DETECTOR,
            "state",
            expect="current",
            to="current",
            body=state.model_dump(mode="json"),
        )
        for report in explained:
            ctx.store.advance(Kind.DRIFT, report.id, expect="explained", to="answered")


def findings(ctx: Context, experiment: str) -> Sequence[Finding]:
    """Return every finding of an experiment, oldest first."""
    return [
        Finding(
            solution=Solution.model_validate(stored.body["solution"]),
            verdict=Verdict.model_validate(stored.body["verdict"]),
            seconds=float(stored.body["seconds"]),
        )
        for stored in ctx.store.list(Kind.FINDING)
        if stored.body["experiment"] == experiment
    ]


def best_finding(found: Sequence[Finding]) -> Finding | None:
    """Return the promotable finding with the highest lower bound; None if there is none."""
    winners = [f for f in found if f.verdict.status is Status.PROMOTE]
    return max(winners, key=_lower, default=None)


def live_baseline(ctx: Context, definition: str) -> Digest:
    """Digest of what runs in production: the last variant swapped in, else the server's own."""
    return in_force(ctx, definition) or ctx.catalog.incumbent(definition).digest


def share_of(ctx: Context, hypothesis: str) -> float:
    """Share of GPU time that a hypothesis is about; 0 where it is unknown."""
    stored = ctx.store.get(Kind.HYPOTHESIS, hypothesis)
    return float(stored.body["share"]) if stored is not None else 0.0


def bind(
    ctx: Context, profile: WorkloadProfile, *, counters: Mapping[str, int]
) -> dict[str, list[ShapeCost]]:
    """Group a window by definition: cost per shape, launches per second.

    Traces say how launches are spread over shapes; where the server's counters saw the slot too,
    they say how many launches there were, because a trace sees only a part of the time.
    """
    bound: dict[str, list[tuple[Workload, ShapeCost]]] = defaultdict(list)
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is None:
            continue
        definition, axes = named
        workload = Workload(definition=definition, axes=dict(axes), weight=float(stat.launches))
        cost = ShapeCost(
            workload=workload,
            gpu_time_ns=stat.gpu_time_ns,
            median_ns=stat.median_ns,
            floor_ns=ctx.catalog.floor_ns(definition, axes),
        )
        bound[definition].append((workload, cost))
    return {
        definition: _weigh(shapes, profile, counted=counters.get(definition, 0))
        for definition, shapes in bound.items()
    }


def _news(ctx: Context, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Leave out kernels that are being experimented on; replace beliefs nobody has tested yet."""
    tested = {s.body["definition"] for s in ctx.store.list(Kind.HYPOTHESIS, phase="testing")}
    news = [h for h in hypotheses if h.definition not in tested]
    kernels = {h.definition for h in news}
    for stored in ctx.store.list(Kind.HYPOTHESIS, phase="open"):
        if stored.body["definition"] in kernels and not stored.body["attempts"]:
            ctx.store.advance(Kind.HYPOTHESIS, stored.id, expect="open", to="outdated")
    refined = {s.body["definition"] for s in ctx.store.list(Kind.HYPOTHESIS, phase="open")}
    return [h for h in news if h.definition not in refined]


def _budget(ctx: Context, belief: Hypothesis) -> Budget:
    """Give a small step a small budget: the parameters of one structure, the likely one."""
    budget = ctx.settings.budget
    if len(belief.structures) != 1:
        return budget
    return budget.model_copy(
        update={
            "max_candidates": max(1, budget.max_candidates // _SMALL_STEP),
            "max_seconds": budget.max_seconds / _SMALL_STEP,
        }
    )


def _busy(ctx: Context) -> bool:
    """Whether an answer to a belief is still to come."""
    unfinished = (
        (Kind.HYPOTHESIS, ("open", "testing")),
        (Kind.EXPERIMENT, ("running", "won")),
        (Kind.PROPOSAL, ("awaiting", "approved", "swapping")),
    )
    return any(ctx.store.list(kind, phase=phase) for kind, phases in unfinished for phase in phases)


def _weigh(
    shapes: Sequence[tuple[Workload, ShapeCost]], profile: WorkloadProfile, *, counted: int
) -> list[ShapeCost]:
    """Scale traced launches to launches per second."""
    traced = sum(workload.weight for workload, _ in shapes)
    if counted > 0 and profile.window_ns > 0 and traced > 0:
        factor = counted / traced / (profile.window_ns / 1e9)
    else:
        factor = 1e9 / max(profile.observed_ns, 1)
    return [
        ShapeCost(
            workload=workload.model_copy(update={"weight": workload.weight * factor}),
            gpu_time_ns=cost.gpu_time_ns,
            median_ns=cost.median_ns,
            floor_ns=cost.floor_ns,
        )
        for workload, cost in shapes
    ]


def _keep(ctx: Context, plan: ExperimentPlan, finding: Finding) -> None:
    """Store one finding with its raw numbers, which every later claim points to."""
    body = {
        "experiment": plan.id,
        "solution": finding.solution.model_dump(mode="json"),
        "verdict": finding.verdict.model_dump(mode="json"),
        "seconds": finding.seconds,
    }
    named = finding.verdict.evidence
    raw = ctx.bench.evidence(named) if named is not None else None
    if raw is not None:
        ctx.store.put_blob(raw)
    else:
        evidence = ctx.store.put_blob(json.dumps(body, sort_keys=True).encode())
        verdict = finding.verdict.model_copy(update={"evidence": evidence})
        body["verdict"] = verdict.model_dump(mode="json")
    ctx.store.add(Kind.FINDING, f"{plan.id}/{finding.solution.digest}", body, phase="final")
    ctx.telemetry.count("retuned_candidates_total", reason=str(finding.verdict.reason))


def _conclude(ctx: Context, plan: ExperimentPlan) -> None:
    """Say what an experiment means: enough, refine, the best of what was tried, or nothing."""
    stored = ctx.store.get(Kind.HYPOTHESIS, plan.hypothesis)
    assert stored is not None, "an experiment is opened from a hypothesis"
    belief = Hypothesis.model_validate(stored.body)
    found = findings(ctx, plan.id)
    best = best_finding(found)
    refined = None
    if best is None or _saving(best, belief.share) < _ENOUGH * _first_saving(ctx, belief):
        refined = hypothesis_stage.refine(
            belief,
            _attempt(plan, found, best),
            structures=ctx.catalog.structures(plan.definition),
            settings=ctx.settings.hypothesis,
        )
    with ctx.store.transaction():
        end = "tested" if refined is None else "refined"
        ctx.store.advance(Kind.HYPOTHESIS, belief.id, expect="testing", to=end)
        ctx.store.advance(Kind.EXPERIMENT, plan.id, expect="running", to="done")
        _say(ctx, plan, what="experiment-done", candidates=len(found), won=best is not None)
        if refined is not None:
            _open(ctx, refined)
        else:
            _choose(ctx, plan, belief)
            if best is not None:
                _teach(ctx, plan.definition, best)


def _choose(ctx: Context, plan: ExperimentPlan, belief: Hypothesis) -> None:
    """Mark the experiment that holds the best variant of a belief and its earlier attempts."""
    tried = (*(attempt.experiment for attempt in belief.attempts), plan.id)
    bests = {experiment: best_finding(findings(ctx, experiment)) for experiment in tried}
    winners = {experiment: best for experiment, best in bests.items() if best is not None}
    if winners:
        winner = max(winners, key=lambda experiment: _lower(winners[experiment]))
        ctx.store.advance(Kind.EXPERIMENT, winner, expect="done", to="won")


def _teach(ctx: Context, definition: str, best: Finding) -> None:
    """Let untested beliefs about kernels of the same family start where this one was won."""
    family = ctx.catalog.family(definition)
    for stored in ctx.store.list(Kind.HYPOTHESIS, phase="open"):
        belief = Hypothesis.model_validate(stored.body)
        if belief.attempts or ctx.catalog.family(belief.definition) != family:
            continue
        taught = hypothesis_stage.learn_from(
            belief, structure=best.solution.structure, gain=_lower(best), source=definition
        )
        if taught.id != belief.id:
            ctx.store.advance(Kind.HYPOTHESIS, belief.id, expect="open", to="outdated")
            _open(ctx, taught)


def _winners(ctx: Context, definition: str) -> list[Finding]:
    """Return what was won on kernels of the same family, this one included."""
    family = ctx.catalog.family(definition)
    plans = [
        stored.id
        for stored in ctx.store.list(Kind.EXPERIMENT)
        if ctx.catalog.family(str(stored.body["definition"])) == family
    ]
    bests = (best_finding(findings(ctx, plan)) for plan in plans)
    return [best for best in bests if best is not None]


def _first_structures(ctx: Context, definition: str) -> tuple[str, ...]:
    """Start where the family was won; else with other parameters of the source that runs."""
    won = max(_winners(ctx, definition), key=_lower, default=None)
    return (won.solution.structure,) if won else ctx.catalog.audited(definition)


def _gains(ctx: Context, definitions: Iterable[str]) -> dict[str, float]:
    """Return the gain that earlier experiments found per definition, by family."""
    won = {name: _winners(ctx, name) for name in definitions}
    return {name: max(map(_lower, found)) for name, found in won.items() if found}


def _attempt(plan: ExperimentPlan, found: Sequence[Finding], best: Finding | None) -> Attempt:
    if best is not None:
        return Attempt(experiment=plan.id, reason="short-of-belief", detail=best.verdict.detail)
    if not found:
        return Attempt(experiment=plan.id, reason="no-candidates")
    timed = [f for f in found if f.verdict.speedup is not None]
    nearest = max(timed, key=_lower) if timed else found[-1]
    return Attempt(
        experiment=plan.id, reason=str(nearest.verdict.reason), detail=nearest.verdict.detail
    )


def _first_saving(ctx: Context, belief: Hypothesis) -> float:
    """Return the saving believed before any attempt; later beliefs are discounted."""
    if not belief.attempts:
        return belief.expected_saving
    first = ctx.store.get(Kind.EXPERIMENT, belief.attempts[0].experiment)
    stored = ctx.store.get(Kind.HYPOTHESIS, str(first.body["hypothesis"])) if first else None
    return float(stored.body["expected_saving"]) if stored else belief.expected_saving


def _saving(finding: Finding, share: float) -> float:
    return share * (1.0 - 1.0 / max(_lower(finding), 1.0))


def _lower(finding: Finding) -> float:
    return finding.verdict.speedup.lower if finding.verdict.speedup else 0.0


def _open(ctx: Context, hypothesis: Hypothesis) -> None:
    body = hypothesis.model_dump(mode="json")
    if ctx.store.add(Kind.HYPOTHESIS, hypothesis.id, body, phase="open"):
        log.info("hypothesis: %s", hypothesis.because)
        ctx.telemetry.count("retuned_hypotheses_total")


def _say(ctx: Context, plan: ExperimentPlan, *, what: str, **detail: object) -> None:
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=Kind.EXPERIMENT,
            id=plan.id,
            what=what,
            who="retuned",
            detail={"definition": plan.definition, **detail},
        )
    )
