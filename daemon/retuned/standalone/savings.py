"""What experiments cost and swaps saved on one machine, kept up to date window by window.

Windows are large and go after a while; what they say of a swap is a few numbers. So each judged
window is added, once, to a record per swap and month, and reports read those alone. A window that
is completed after a later one was added counts as one without a profile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from retuned.api.proposal import ProposalPhase
from retuned.ports import Store, Stored
from retuned.stages.profile import WorkloadProfile
from retuned.stages.proposal import Proposal
from retuned.stages.watch import SIZED, Account
from retuned.stages.watch.proof import Calibration
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.records import GOING_BACK, UNDER_WAY
from retuned.store.savings import RAN, Savings

log = logging.getLogger(__name__)

_CURSOR = "cursor"
"""Record beside the sums, in a separate phase: the last window added."""
_MOST = 200
"""Windows that are added at a time."""
_STARTED = ("swapped", "restored")
_SPREAD = "promoted"
_ENDED = ("reverted", "replaced", "rolled-back")
_BACK = (*GOING_BACK, str(ProposalPhase.ROLLED_BACK))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """One stretch of time in which a swap was in force."""

    proposal: Proposal
    since: datetime
    until: datetime | None

    def covers(self, start: datetime, end: datetime) -> bool:
        return self.since <= start and (self.until is None or end <= self.until)


def add_windows(ctx: Context) -> int:
    """Add what judged windows show of swaps in force; return how many were added."""
    cursor = ctx.store.get(RAN, _CURSOR)
    above = str(cursor.body["window"]) if cursor else ""
    fresh = ctx.store.ids(RecordKind.WINDOW, above=above)[:_MOST]
    due = [stored for id in fresh if (stored := ctx.store.get(RecordKind.WINDOW, id)) is not None]
    waiting = next((place for place, each in enumerate(due) if each.phase == "new"), len(due))
    due = due[:waiting]
    if not due:
        return 0
    stays = list(_stays(ctx.store))
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    named: dict[str, Proposal] = {}
    for stored in due:
        for proposal, month, gpu_ns, server_ns in _seen(ctx, stored, stays):
            named[proposal.id] = proposal
            known = sums.get((proposal.id, month), (0, 0, 0))
            sums[proposal.id, month] = (known[0] + gpu_ns, known[1] + server_ns, known[2] + 1)
    with ctx.store.transaction():
        for (id, month), (gpu_ns, server_ns, windows) in sums.items():
            one = named[id]
            Savings(ctx.store).add(
                id,
                target=one.target,
                definition=one.definition,
                speedup=one.speedup,
                month=month,
                gpu_ns=gpu_ns,
                server_ns=server_ns,
                windows=windows,
            )
        body = {"window": due[-1].id}
        if cursor is None:
            ctx.store.add(RAN, _CURSOR, body, phase="cursor")
        else:
            ctx.store.advance(RAN, _CURSOR, expect="cursor", to="cursor", body=body)
    return len(due)


def add_experiments(ctx: Context) -> int:
    """Add what ended experiments took; return how many were added."""
    savings = Savings(ctx.store)
    known = savings.experiments() | set(ctx.store.ids(RecordKind.EXPERIMENT, phase="running"))
    fresh = [id for id in ctx.store.ids(RecordKind.EXPERIMENT) if id not in known][:_MOST]
    for id in fresh:
        stored = ctx.store.get(RecordKind.EXPERIMENT, id)
        months: dict[str, float] = {}
        for found in ctx.store.list(RecordKind.FINDING, prefix=f"{id}/"):
            month = found.created_at.strftime("%Y-%m")
            months[month] = months.get(month, 0.0) + float(found.body.get("seconds", 0.0))
        definition = str(stored.body.get("definition", "")) if stored else ""
        savings.spend(id, target=ctx.settings.target, definition=definition, months=months)
    return len(fresh)


def keep_up(ctx: Context) -> None:
    """Add what is new since the last look."""
    add_windows(ctx)
    add_experiments(ctx)


def accounts(store: Store) -> tuple[Account, ...]:
    """Return what was spent and saved, newest month first."""
    back = {id for phase in _BACK for id in store.ids(RecordKind.PROPOSAL, phase=phase)}
    known = [each for each in calibrations(store) if each.verdict in SIZED]
    effects = {(each.proposal, ""): each.live for each in known}
    return Savings(store).accounts(taken_back=back, effects=effects)


def calibrations(store: Store) -> list[Calibration]:
    """Return the proven swaps with their claims, oldest first; unreadable records are left out."""
    found = []
    for stored in store.list(RecordKind.CALIBRATION):
        try:
            found.append(Calibration.model_validate(stored.body))
        except ValidationError as error:
            log.error("calibration of %s cannot be understood: %s", stored.id, error)
    return sorted(found, key=lambda each: each.at)


def _stays(store: Store) -> Iterator[_Stay]:
    """Return when swaps were in force, of those that may concern windows not yet added."""
    phases = (*UNDER_WAY, *GOING_BACK)
    kept = [stored for phase in phases for stored in store.list(RecordKind.PROPOSAL, phase=phase)]
    kept += store.page(RecordKind.PROPOSAL, phases=(str(ProposalPhase.PROMOTED),), limit=_MOST)
    for stored in kept:
        try:
            proposal = Proposal.model_validate(stored.body)
        except ValidationError:
            continue  # it is not valid, so it does not count
        canary = _has_canary(store, stored.id)
        since: datetime | None = None
        for event in store.events(id=stored.id):
            if since is None and event.what in ((_SPREAD,) if canary else (*_STARTED, _SPREAD)):
                since = event.at
            elif since is not None and event.what in _ENDED:
                yield _Stay(proposal=proposal, since=since, until=event.at)
                since = None
        if since is not None:
            yield _Stay(proposal=proposal, since=since, until=None)


def _has_canary(store: Store, proposal: str) -> bool:
    """Whether a swap began with a part of the launches; those hours do not count."""
    return any(
        order.body.get("canary") for order in store.list(RecordKind.ORDER, proposal=proposal)
    )


def _seen(
    ctx: Context, stored: Stored, stays: Sequence[_Stay]
) -> Iterator[tuple[Proposal, str, int, int]]:
    """Return proposal, month, and device time of its shapes and of all kernels, for each swap.

    A window that was only sampled counts with what was sampled: how busy the rest was is a guess.
    """
    try:
        profile = WorkloadProfile.model_validate(stored.body.get("profile"))
    except ValidationError:
        return
    start = datetime.fromtimestamp(profile.window_start_ns / 1e9, UTC)
    end = datetime.fromtimestamp((profile.window_start_ns + profile.window_ns) / 1e9, UTC)
    for stay in stays:
        spent = _spent(ctx, profile, stay.proposal) if stay.covers(start, end) else 0
        if spent:
            yield stay.proposal, start.strftime("%Y-%m"), spent, profile.gpu_time_ns


def _spent(ctx: Context, profile: WorkloadProfile, proposal: Proposal) -> int:
    spent = 0
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] == proposal.definition:
            spent += stat.gpu_time_ns if proposal.guard.allows(named[1]) else 0
    return spent
