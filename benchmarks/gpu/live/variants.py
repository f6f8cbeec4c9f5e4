"""Variants of lifted kernels with another number of warps, whose gain is not proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.live.daemon_settings import SHADOW_EVERY

from retuned import catalog
from retuned.catalog.user import entry_of
from retuned.contract import Language
from retuned.experiment.local import LocalLab
from retuned.lifting.lift import Lifted, lift_all
from retuned.runtime_client.client import RuntimeSocket
from retuned.runtime_client.kernels import RuntimeKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An artifact on disk."""

    definition: str
    """Of the lifted kernel."""
    digest: str
    """Of the artifact."""
    folder: Path
    """Where it is."""

    def order(self, *, epoch: int, shadow_every: int) -> dict[str, Any]:
        """Return an order that puts it in force everywhere."""
        return {
            "id": f"order-{epoch}",
            "kind": "swap",
            "definition": self.definition,
            "artifact": self.digest,
            "previous": None,
            "guard": {"bounds": {}},
            "epoch": epoch,
            "shadow_every": shadow_every,
            "shadow_tolerance": 1e-2,
        }


def build_all(
    records: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[list[Built], dict[str, str]]:
    """Lift what was observed and build a variant of each; also return why others were not lifted.

    Raises
    ------
    UsageError
        If a definition cannot be used.
    """
    outcome = lift_all(records)
    built = [_build(one, folder) for one in outcome.lifted]
    return built, {kept.kernel: kept.reason for kept in outcome.kept}


def order_by_hand(swapper: RuntimeSocket, folder: Path) -> dict[str, str]:
    """Put a variant of every kernel that can be lifted in force; return why others are not lifted.

    Raises
    ------
    CandidateError
        If the server refuses one.
    TemporaryError
        If it does not answer.
    """
    built, kept = build_all(RuntimeKernels(folder / "sockets").observed(), folder / "by-hand")
    for epoch, one in enumerate(built, start=1):
        order = one.order(epoch=epoch, shadow_every=SHADOW_EVERY)
        request = {"op": "prepare", "order": order, "artifact_dir": str(one.folder)}
        swapper.ask(request)
        swapper.ask({"op": "commit", "order": order})
    return kept


def take_back(swapper: RuntimeSocket, active: Mapping[str, str]) -> None:
    """Order the originals back, by definition and what runs there now; raises as above."""
    for number, (definition, digest) in enumerate(active.items(), start=1):
        order: dict[str, Any] = {
            "id": f"back-{number}",
            "kind": "rollback",
            "definition": definition,
            "artifact": None,
            "previous": digest,
            "guard": {"bounds": {}},
            "epoch": 1000 + number,
            "shadow_every": SHADOW_EVERY,
        }
        swapper.ask({"op": "commit", "order": order})


def _build(one: Lifted, folder: Path) -> Built:
    catalog.learn([one.own])
    entry = entry_of(one.own, Language.TRITON)
    before = entry.incumbent.params
    warps = 4 if before.get("num_warps") != 4 else 8
    candidate = entry.solution("lifted", {**before, "num_warps": warps})
    lab = LocalLab(folder, subjects=lambda _: entry, solutions=lambda _: None, generators={})
    return Built(definition=one.own.name, digest=candidate.digest, folder=lab.build(candidate))
