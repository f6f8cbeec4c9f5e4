"""Tunables in a pod: what the server launches and what that takes, posted once a window.

The operator decides on experiments from these posts. A post holds all that an experiment's pod
needs: the report of the runtime, described launches, and the server's interpreter and variables.
Values of tensors never leave the pod: a sidecar has none recorded, and posts none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from retuned.api.agent import MAX_DEFINITION_CHARS, TunableClass, TunablePost
from retuned.errors import Refused, RetunedError
from retuned.experiment.tunable_task import class_of
from retuned.runtime.tunables.records import canonical
from retuned.runtime_client.tunable_use import used_classes
from retuned.runtime_client.tunables import TunableProcess, TunableReport
from retuned.sidecar.context import Context
from retuned.sidecar.reports import is_about_us, process_environment
from retuned.stages.hypothesis import together

log = logging.getLogger(__name__)

_LOOKS = 4
"""Looks at a server's tunables in a window."""
_MOST = 64
"""Most tunables that a pod posts: those with the most time."""


def look(ctx: Context) -> None:
    """Read the server's tunables, if it is time; what is to be posted is replaced as a whole."""
    if ctx.tunables is None:
        return
    now_s, memory = ctx.clock.monotonic_s(), ctx.standing.tunables
    window_s = ctx.settings.window.total_seconds()
    if now_s - memory.looked_s < window_s / _LOOKS:
        return
    memory.looked_s = now_s
    try:
        processes = ctx.tunables.processes()
    except RetunedError as error:
        log.info("tunables are read later: %s", error)
        return
    memory.add(processes, horizon_s=2.0 * window_s)
    if memory.span_s < window_s:
        return
    posts = [_post(ctx, name, processes) for name in _busiest(ctx, processes)]
    ctx.standing.tunable_posts = {each.name: each for each in posts if each is not None}


def post(ctx: Context) -> int:
    """Post what was read since the last time; return how many.

    Raises
    ------
    TemporaryError, Refused
        As `Operator.post`; a post that is refused is not repeated.
    """
    waiting, ctx.standing.tunable_posts = ctx.standing.tunable_posts, {}
    for each in waiting.values() if ctx.target else ():
        try:
            ctx.operator.post(each)
        except Refused as error:
            if is_about_us(error):
                raise
            log.error("the operator does not take %s: %s", each.name, error)
    return len(waiting)


def _busiest(ctx: Context, processes: Sequence[TunableProcess]) -> list[str]:
    names = {name for each in processes for name in each.tunables}
    spent = {name: sum(c.time_us for c in _used(ctx, name, processes)) for name in names}
    return sorted(names, key=lambda name: (-spent[name], name))[:_MOST]


def _used(ctx: Context, name: str, processes: Sequence[TunableProcess]) -> list[TunableClass]:
    memory = ctx.standing.tunables
    pairs = [(old, each) for each in processes if (old := memory.before(each.name))]
    found = [each for pair in pairs for each in used_classes(name, *pair)]
    return [
        TunableClass(
            axes=dict(each.axes),
            launches=each.launches,
            time_us=each.time_us,
            how=each.how,
            ready=each.ready,
        )
        for each in together(found)
    ]


def _post(ctx: Context, name: str, processes: Sequence[TunableProcess]) -> TunablePost | None:
    having = [each for each in processes if name in each.tunables]
    reports = [each.tunables[name] for each in having]
    first, memory = reports[0], ctx.standing.tunables
    pairs = [(old, each) for each in having if (old := memory.before(each.name))]
    described = _described(ctx, name, having)
    if described is None:
        return None
    text, classes = described
    used = [
        each.model_copy(update={"ready": each.ready and class_of(each.axes) in classes})
        for each in _used(ctx, name, having)
    ]
    facts = {repr(replace(each.facts, process="")) for each in having}
    try:
        return TunablePost(
            pod=ctx.pod,
            target=ctx.target,
            name=name,
            family=first.family,
            kernel=first.kernel[:300],
            module=first.module[:300],
            source=first.source[:300],
            block=bool(first.geometry.get("block_shape")),
            frozen=_frozen(first),
            refused=next((each.refused for each in reports if each.refused), ""),
            facts=process_environment(having[0].facts),
            differs=len({each.source for each in reports}) > 1 or len(facts) > 1,
            observed_s=memory.span_s,
            busy_us=1e6 * sum(max(0.0, new.steps.busy_s - old.steps.busy_s) for old, new in pairs),
            used=tuple(used),
            text=text,
        )
    except ValidationError as error:  # a server's own text in a field
        log.warning("%s is not posted: %s", name, str(error).splitlines()[0])
        return None


def _frozen(report: TunableReport) -> str:
    """Return the one choice of an autotuner; empty where sizes have different ones."""
    if report.family != "autotune":
        return ""
    texts = {
        canonical(each.config) for each in report.asked if each.how == "frozen" and each.config
    }
    return texts.pop() if len(texts) == 1 else ""


def _described(
    ctx: Context, name: str, having: Sequence[TunableProcess]
) -> tuple[str, Set[str]] | None:
    """Return what an experiment needs, and the size classes that it can repeat a launch of.

    Each size class and each end of one has one launch, whatever the number of processes. Launches
    that do not fit are left out, largest first.
    """
    assert ctx.tunables is not None, "asked before"
    recipes: dict[tuple[str, str], Mapping[str, Any]] = {}
    try:
        for each in having:
            for recipe in filter(None, map(_without_values, ctx.tunables.recipes(each, name))):
                key = class_of(recipe["axes"]), str(recipe.get("edge", ""))
                recipes.setdefault(key, recipe)
    except RetunedError as error:
        log.info("%s is posted later: %s", name, error)
        return None
    body = {"report": dict(having[0].raw[name]), "environment": dict(having[0].environment)}
    kept = sorted(recipes, key=lambda key: (len(canonical(recipes[key])), key))
    text = canonical({**body, "recipes": [recipes[key] for key in kept]})
    while len(text) > MAX_DEFINITION_CHARS and kept:
        kept.pop()
        text = canonical({**body, "recipes": [recipes[key] for key in kept]})
    if len(text) > MAX_DEFINITION_CHARS:
        log.warning("%s has a report of %d characters and is not posted", name, len(text))
        return None
    return text, {size for size, edge in kept if not edge}


def _without_values(recipe: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a described launch without recorded values; None if it is not one."""
    try:
        class_of(recipe["axes"])
        call = dict(recipe.get("call") or {})
        if "arguments" in call:
            call["arguments"] = [[name, _plain(spec)] for name, spec in call["arguments"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a server's own text
        log.warning("a described launch is left out: %r", error)
        return None
    return {**recipe, "call": call}


def _plain(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    tensor = spec.get("tensor")
    return spec if tensor is None else {**spec, "tensor": {**tensor, "data": None}}
