"""What share of the server's GPU time some shapes take in the present profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from retuned.local.context import Context, RecordKind
from retuned.stages.profile import WorkloadProfile, merge
from retuned.stages.proposal import Proposal

_WINDOWS = 3
"""Windows that are the present profile."""


def present_share(ctx: Context, proposal: Proposal) -> float:
    """Return the share of GPU time of a proposal's shapes in the newest windows before its swap.

    After the swap the share is smaller because the kernel is faster: that says nothing of what it
    saves. Where no window shows the kernel, it is the share that the proposal was written with.
    """
    order = ctx.store.events(id=proposal.id)
    swapped = next((event.at for event in order if event.what == "swapped"), None)
    windows = [
        stored
        for stored in ctx.store.list(RecordKind.WINDOW, limit=4 * _WINDOWS)
        if swapped is None or stored.created_at <= swapped
    ]
    profiles = [found for found in map(_profile, (w.body for w in windows)) if found is not None]
    if not profiles:
        return proposal.share
    profile = merge(profiles[-_WINDOWS:])
    mine = 0
    for stat in profile.stats:
        signature = stat.signature
        named = ctx.catalog.recognise(signature.kernel, signature.dims, signature.dtypes)
        if named is not None and named[0] == proposal.definition:
            mine += stat.gpu_time_ns if proposal.guard.allows(named[1]) else 0
    return min(1.0, mine / profile.gpu_time_ns) if mine else proposal.share


def _profile(body: Mapping[str, Any]) -> WorkloadProfile | None:
    try:
        return WorkloadProfile.model_validate(body["profile"])
    except (KeyError, ValidationError):
        return None
