"""Captured inputs on one machine: who may be sampled, what an experiment gets, when it goes.

Sampling needs two permissions: the setting `capture_inputs` and the policy that decides about the
kernel. The daemon sends the rules to the server repeatedly, because the server may have restarted.
A failure here costs an experiment one family of inputs and nothing else.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from retuned.errors import CandidateError, RetunedError, TemporaryError
from retuned.lab.captured_files import expiry_of, remove_unfinished, write_captured
from retuned.lab.journal import notebook_name
from retuned.ports import CaptureRule
from retuned.stages.experiment import ExperimentPlan
from retuned.stages.gate import PolicyLimits
from retuned.stages.proposal import TUNABLE
from retuned.standalone.context import Captures, Context

log = logging.getLogger(__name__)

SAMPLES = 2
"""Kept per shape and process."""
SAMPLE_BYTES = 16 << 20
"""Largest sample: cloning it must not hold a launch up."""


def settle(ctx: Context) -> None:
    """Tell every slot whether to sample, and remove what was kept too long."""
    captures = ctx.captures
    if captures is None:
        return
    _remove_old(ctx, captures)
    try:
        slots = ctx.swapper.slots()
        names = [slot.definition for slot in slots]
        _tell(ctx, captures, [name for name in names if not name.startswith(TUNABLE)])
    except TemporaryError as error:
        log.info("no server gets a rule for sampling: %s", error)


def _tell(ctx: Context, captures: Captures, slots: Sequence[str]) -> None:
    for slot in slots:
        rule = _rule(ctx, captures, slot)
        if rule is None and captures.told.get(slot):
            continue
        try:
            captures.tap.listen(slot, rule)
            captures.told[slot] = rule is None
        except CandidateError as error:  # an older runtime, or the server's owner says no
            log.info("%s is not sampled: %s", slot, error)
            captures.told[slot] = True


def is_allowed(ctx: Context, definition: str) -> bool:
    """Whether both the owner of this machine and the policy let launches of a kernel be sampled."""
    return ctx.captures is not None and _rule(ctx, ctx.captures, definition) is not None


def bring(ctx: Context, plan: ExperimentPlan) -> int:
    """Fetch what was sampled of a plan's kernel for its experiment; return how many launches.

    Never raises: an experiment without captured inputs is an experiment.
    """
    captures = ctx.captures
    if captures is None or _rule(ctx, captures, plan.definition) is None:
        return 0
    definition = captures.definition(plan.definition)
    limits = ctx.policy_limits(plan.definition)
    if definition is None or limits is None:
        return 0
    try:
        found = captures.tap.captured(definition, max_bytes=_budget(captures, limits))
        if found:
            until = ctx.clock.now() + min(captures.keep, limits.capture_retention)
            write_captured(_folder(captures, plan), plan.definition, found, until=until)
    except (RetunedError, OSError) as error:
        log.warning("experiment %s goes on without captured inputs: %s", plan.id, error)
        return 0
    return len(found)


def forget(ctx: Context, plan: ExperimentPlan) -> None:
    """Remove what an experiment was given; it has ended."""
    if ctx.captures is not None:
        shutil.rmtree(_folder(ctx.captures, plan), ignore_errors=True)


def _folder(captures: Captures, plan: ExperimentPlan) -> Path:
    return captures.folder / notebook_name(plan.id)


def _rule(ctx: Context, captures: Captures, definition: str) -> CaptureRule | None:
    """Return how a slot is sampled; None unless the setting and a readable policy permit it."""
    if not captures.enabled:
        return None
    try:
        limits = ctx.policy_limits(definition)
    except (RetunedError, OSError) as error:
        log.warning("%s is not sampled, no policy can be read: %s", definition, error)
        return None
    if limits is None or not limits.capture:
        return None
    most = _budget(captures, limits)
    return CaptureRule(
        every=captures.every,
        samples=SAMPLES,
        max_bytes=most,
        sample_bytes=min(SAMPLE_BYTES, most),
    )


def _budget(captures: Captures, limits: PolicyLimits) -> int:
    return min(captures.max_bytes, limits.capture_bytes)


def _remove_old(ctx: Context, captures: Captures) -> None:
    """Remove what may be kept no longer, and what does not say how long it may."""
    if remove_unfinished(captures.folder):
        log.warning("captured inputs that were cut off while they were written are removed")
    for folder in captures.folder.glob("[!.]*"):
        until = expiry_of(folder)
        if until is None or until <= ctx.clock.now():
            log.warning("captured inputs of %s were kept too long and are removed", folder.name)
            shutil.rmtree(folder, ignore_errors=True)
