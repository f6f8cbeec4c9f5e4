"""Stages 5 to 7 on one machine: from a hypothesis to an experiment, from findings to a proposal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from retuned.control.outcome import (
    best_finding,
    code_of,
    conclude,
    lower_bound,
    saved_us,
    searched,
)
from retuned.errors import HarnessError, MissingDependency
from retuned.ports import Event, Finding
from retuned.stages import experiment as experiment_stage
from retuned.stages import hypothesis as hypothesis_stage
from retuned.stages.experiment import Budget, ExperimentPlan, Turn, turns_sentence
from retuned.stages.hypothesis import Hypothesis
from retuned.standalone import evidence, metrics
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.findings import findings
from retuned.standalone.hypotheses import BUDGET, live_baseline, open_belief
from retuned.standalone.tunables import captured_inputs, tuned_files
from retuned.standalone.tunables import experiments as tunable_experiments
from retuned.standalone.tunables import records as tunable_records
from retuned.store.approvals import Approvals

log = logging.getLogger(__name__)

_SMALL_STEP = 3
"""A try of one structure's parameters gets this part of the budget."""


def open_experiment(ctx: Context) -> ExperimentPlan | None:
    """Return the plan to run now: an interrupted one first, else the most promising hypothesis."""
    for stored in ctx.store.list(RecordKind.EXPERIMENT, phase="running"):
        plan = ExperimentPlan.model_validate(stored.body)
        if _is_possible(ctx, plan.definition):
            return plan
    beliefs = [
        Hypothesis.model_validate(s.body)
        for s in ctx.store.list(RecordKind.HYPOTHESIS, phase="open")
    ]
    beliefs = [belief for belief in beliefs if _is_possible(ctx, belief.definition)]
    best = max(beliefs, key=lambda h: (h.expected_saving, h.id), default=None)
    if best is None or _spent(ctx, best):
        return None
    of_tunable = tunable_records.is_tunable(best.definition)
    plan = experiment_stage.plan(
        best,
        incumbent=live_baseline(ctx, best.definition),
        environment=tunable_records.environment_of(ctx, best.definition),
        budget=_budget(ctx, best),
        generators=tuned_files.generators_for(ctx, best.definition),
        buckets=tunable_experiments.BUCKETS if of_tunable else ctx.settings.profile,
        batch_invariant=_batch_invariant(ctx, best.definition),
    )
    believed = ctx.store.get(RecordKind.HYPOTHESIS, best.id)
    after = believed.traceparent if believed is not None else ""
    about = {"experiment": plan.id, "kernel": plan.definition}
    with ctx.spans.span("experiment", after=after, about=about), ctx.store.transaction():
        body = plan.model_dump(mode="json")
        if not ctx.store.advance(RecordKind.HYPOTHESIS, best.id, expect="open", to="testing"):
            return None  # a newer drift report has replaced it
        if ctx.store.add(RecordKind.EXPERIMENT, plan.id, body, phase="running"):
            ctx.telemetry.count("retuned_experiments_started_total")
            return plan
        ctx.store.advance(RecordKind.HYPOTHESIS, best.id, expect="testing", to="abandoned")
    return None


def run_experiment(ctx: Context, plan: ExperimentPlan) -> None:
    """Run a plan to its end, keeping each finding as it comes; what is kept is never paid again."""
    began_s = ctx.clock.monotonic_s()
    opened = ctx.store.get(RecordKind.EXPERIMENT, plan.id)
    after = opened.traceparent if opened is not None else ""
    about = {"experiment": plan.id, "kernel": plan.definition}
    with ctx.spans.span("lab", after=after, about=about):
        try:
            _run(ctx, plan)
        finally:
            tunable_experiments.tell_pauses(ctx, plan)
    metrics.experiment_ended(ctx, plan.id, seconds=ctx.clock.monotonic_s() - began_s)


def _run(ctx: Context, plan: ExperimentPlan) -> None:
    known = {finding.solution.digest: finding for finding in findings(ctx, plan.id)}
    ctx.notary.sign(plan.id.encode())  # a key that cannot sign is found before anything is paid
    captured_inputs.bring(ctx, plan)
    metrics.experiment_begun(ctx, plan.id)
    try:
        for finding in ctx.bench.run(plan, known=known):
            verdict = finding.verdict
            about = {
                "candidate": finding.solution.digest,
                "status": str(verdict.status),
                "reason": str(verdict.reason),
            }
            with ctx.spans.span("verdict", since_s=finding.seconds, about=about):
                _keep(ctx, plan, finding)
    except (HarnessError, MissingDependency) as error:
        log.error("experiment %s failed: %s", plan.id, error)
        if best_finding(findings(ctx, plan.id)) is not None:
            # what was won before the lab broke is measured, judged and signed
            _say(ctx, plan, what="experiment-cut-short", detail=str(error))
            _conclude(ctx, plan)
            captured_inputs.forget(ctx, plan)
            return
        with ctx.store.transaction():
            ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect="running", to="failed")
            ctx.store.advance(
                RecordKind.HYPOTHESIS, plan.hypothesis, expect="testing", to="abandoned"
            )
            _say(ctx, plan, what="experiment-failed", detail=str(error))
        captured_inputs.forget(ctx, plan)
        return
    _conclude(ctx, plan)
    captured_inputs.forget(ctx, plan)


def _batch_invariant(ctx: Context, definition: str) -> bool:
    """Whether rows must keep their bits; where no policy lets them go, they must."""
    limits = ctx.policy_limits(definition)
    return limits is None or limits.batch_invariant


def _is_possible(ctx: Context, definition: str) -> bool:
    """Whether a lab here can try a kernel; tunables are tried in the server's own environment."""
    observes = ctx.settings.observes_only and not tunable_records.is_tunable(definition)
    return not observes and not _frozen(ctx, definition)


def _frozen(ctx: Context, definition: str) -> bool:
    """Whether a stop sign or the policy keeps experiments off this kernel."""
    limits = ctx.policy_limits(definition)
    if limits is not None and not limits.experiments:
        return True
    now = ctx.clock.now()
    return any(
        freeze.scope.covers(target=ctx.settings.target, kernel=definition)
        for freeze in Approvals(ctx.store).freezes(now=now)
    )


def _spent(ctx: Context, belief: Hypothesis) -> bool:
    """Whether the day's experiments are used up, by settings or policy; said once a day."""
    limits = ctx.policy_limits(belief.definition)
    allowed_s = ctx.settings.experiment_s_per_day
    if limits is not None:
        allowed_s = min(allowed_s, limits.experiment_time_per_day.total_seconds())
    day_ago = ctx.clock.now() - timedelta(days=1)
    recent = {s.id for s in ctx.store.list(RecordKind.EXPERIMENT) if s.created_at > day_ago}
    seconds = sum(
        float(stored.body["seconds"])
        for experiment in recent
        for stored in ctx.store.list(RecordKind.FINDING, prefix=f"{experiment}/")
    )
    settings = ctx.settings
    if len(recent) < settings.experiments_per_day and seconds < allowed_s:
        return False
    if not any(event.at > day_ago for event in ctx.store.events(id=BUDGET)):
        sentence = (
            f"{len(recent)} experiments and {seconds:.0f} s of candidates in 24 hours; allowed are"
            f" {settings.experiments_per_day} and {allowed_s:.0f} s"
        )
        log.warning("no experiment begins: %s", sentence)
        ctx.store.record(
            Event(
                at=ctx.clock.now(),
                kind=RecordKind.EXPERIMENT,
                id=BUDGET,
                what="budget-spent",
                who="retuned",
                detail={"sentence": sentence},
            )
        )
    return True


def _budget(ctx: Context, belief: Hypothesis) -> Budget:
    """Give a small step a small budget: the parameters of one structure, the likely one."""
    budget, limits = ctx.settings.budget, ctx.policy_limits(belief.definition)
    if tunable_records.is_tunable(belief.definition):
        # configurations of code that is compiled already cost less than variants of a kernel
        most = limits.max_trials if limits is not None else tunable_experiments.MOST_CANDIDATES
        return budget.model_copy(update={"max_candidates": most})
    if limits is not None and limits.max_trials < budget.max_candidates:
        budget = budget.model_copy(update={"max_candidates": limits.max_trials})
    if len(belief.structures) != 1:
        return budget
    return budget.model_copy(
        update={
            "max_candidates": max(1, budget.max_candidates // _SMALL_STEP),
            "max_seconds": budget.max_seconds / _SMALL_STEP,
        }
    )


def _keep(ctx: Context, plan: ExperimentPlan, finding: Finding) -> None:
    """Store one finding with its signed evidence, which every later claim points to."""
    verdict = finding.verdict.model_copy(update={"evidence": evidence.keep(ctx, plan, finding)})
    body = {
        "experiment": plan.id,
        "solution": finding.solution.model_dump(mode="json"),
        "verdict": verdict.model_dump(mode="json"),
        "seconds": finding.seconds,
        "definition": finding.definition,
    }
    ctx.store.add(RecordKind.FINDING, f"{plan.id}/{finding.solution.digest}", body, phase="final")
    metrics.candidate_judged(ctx, finding)


def _conclude(ctx: Context, plan: ExperimentPlan) -> None:
    """Decide what follows an experiment: enough, refine, the best so far, or nothing."""
    stored = ctx.store.get(RecordKind.HYPOTHESIS, plan.hypothesis)
    assert stored is not None, "an experiment is opened from a hypothesis"
    belief = Hypothesis.model_validate(stored.body)
    found = findings(ctx, plan.id)
    best = best_finding(found)
    turns = ctx.bench.turns(plan.id)
    if tunable_records.is_tunable(plan.definition):
        answer = searched(found, turns)
    else:
        answer = conclude(
            plan,
            found,
            belief=belief,
            first_saving=_first_saving(ctx, belief),
            structures=ctx.catalog.structures(plan.definition),
            settings=ctx.settings.hypothesis,
        )
    refined = answer.hypothesis if answer is not None else None
    with ctx.store.transaction():
        end = "tested" if refined is None else "refined"
        ctx.store.advance(RecordKind.HYPOTHESIS, belief.id, expect="testing", to=end)
        ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect="running", to="done")
        _keep_turns(ctx, plan, turns)
        _say(
            ctx,
            plan,
            what="experiment-done",
            candidates=len(found),
            won=best is not None,
            asked=turns_sentence(turns),
            next=code_of(answer),
            why=answer.sentence if answer is not None else "",
        )
        if best is not None and _is_best_so_far(ctx, plan, belief, best):
            ctx.store.advance(RecordKind.EXPERIMENT, plan.id, expect="done", to="won")
        if refined is not None:
            open_belief(ctx, refined)
        if best is not None:
            _teach(ctx, plan.definition, best)
        elif refined is not None:
            _warn(ctx, plan, refined)


def _keep_turns(ctx: Context, plan: ExperimentPlan, turns: Sequence[Turn]) -> None:
    """Store with the experiment who was asked for candidates, why, and what it brought."""
    if turns:
        body = {"turns": [turn.model_dump(mode="json") for turn in turns]}
        ctx.store.add(RecordKind.TURNS, plan.id, body, phase="final")


def _is_best_so_far(ctx: Context, plan: ExperimentPlan, belief: Hypothesis, best: Finding) -> bool:
    """Whether no earlier attempt against the same incumbent saved as much.

    A win is proposed immediately: a later, better one is not certain.
    """
    for attempt in belief.attempts:
        earlier = ctx.store.get(RecordKind.EXPERIMENT, attempt.experiment)
        if earlier is None or earlier.body["incumbent"] != plan.incumbent:
            continue
        rival = best_finding(findings(ctx, attempt.experiment))
        if rival is not None and saved_us(rival) >= saved_us(best):
            return False
    return True


def _family(ctx: Context, definition: str) -> list[Hypothesis]:
    """Return untested hypotheses about kernels of the same family."""
    family = ctx.catalog.family(definition)
    beliefs = [
        Hypothesis.model_validate(s.body)
        for s in ctx.store.list(RecordKind.HYPOTHESIS, phase="open")
    ]
    return [b for b in beliefs if not b.attempts and ctx.catalog.family(b.definition) == family]


def _warn(ctx: Context, plan: ExperimentPlan, refined: Hypothesis) -> None:
    """Spare the family a try that found nothing here: they start where this one looks next."""
    for belief in _family(ctx, plan.definition):
        if belief.structures == plan.structures and refined.structures:
            _replace(
                ctx,
                belief,
                hypothesis_stage.look_elsewhere(
                    belief, structures=refined.structures, source=plan.definition
                ),
            )


def _teach(ctx: Context, definition: str, best: Finding) -> None:
    """Let untested hypotheses about kernels of the same family start where this one was won."""
    for belief in _family(ctx, definition):
        taught = hypothesis_stage.learn_from(
            belief, structure=best.solution.structure, gain=lower_bound(best), source=definition
        )
        _replace(ctx, belief, taught)


def _replace(ctx: Context, old: Hypothesis, new: Hypothesis) -> None:
    if new.id == old.id:  # the same try, now believed for a better reason
        body = new.model_dump(mode="json")
        ctx.store.advance(RecordKind.HYPOTHESIS, old.id, expect="open", to="open", body=body)
    else:
        ctx.store.advance(RecordKind.HYPOTHESIS, old.id, expect="open", to="outdated")
        open_belief(ctx, new)


def _first_saving(ctx: Context, belief: Hypothesis) -> float:
    """Return the saving expected before any attempt; later hypotheses are discounted."""
    if not belief.attempts:
        return belief.expected_saving
    first = ctx.store.get(RecordKind.EXPERIMENT, belief.attempts[0].experiment)
    stored = ctx.store.get(RecordKind.HYPOTHESIS, str(first.body["hypothesis"])) if first else None
    return float(stored.body["expected_saving"]) if stored else belief.expected_saving


def _say(ctx: Context, plan: ExperimentPlan, *, what: str, **detail: object) -> None:
    ctx.store.record(
        Event(
            at=ctx.clock.now(),
            kind=RecordKind.EXPERIMENT,
            id=plan.id,
            what=what,
            who="retuned",
            detail={"definition": plan.definition, **detail},
        )
    )
