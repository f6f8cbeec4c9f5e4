"""Claims of experiments beside what live proofs of a cluster have shown. Pure.

On one machine the record is written with the verdict, see `retuned.stages.watch.proof.calibrate`.
"""

from __future__ import annotations

from retuned.api.proposal import SwapProposal
from retuned.control.lessons import report_of
from retuned.stages.watch.proof import Calibration, calibrate


def calibrations_of(resource: SwapProposal) -> tuple[Calibration, ...]:
    """Return what live proofs of a proposal showed beside its claim, by environment.

    In each environment the newest proof with an effect counts: earlier waves had fewer pods of the
    same. Nothing is predicted before a proof in a cluster.

    Raises
    ------
    ValueError
        If a verdict is of another release.
    """
    found: dict[str, Calibration] = {}
    for entry in resource.status.live_proofs:
        if not entry.verdict or entry.at is None:
            continue
        one = calibrate(
            report_of(entry),
            proposal=resource.metadata.name,
            definition=resource.spec.kernel,
            artifact=resource.spec.artifact.digest,
            at=entry.at,
            share=resource.spec.share,
            speedup=resource.spec.speedup,
            forecast=None,
        )
        if one is not None:
            found[entry.environment] = one
    return tuple(found.values())
