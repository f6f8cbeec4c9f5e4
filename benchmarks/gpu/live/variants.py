"""Variants of lifted kernels with another number of warps, whose gain nobody has proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retuned import catalog
from retuned.adapters.local_lab import LocalLab
from retuned.catalog.own import entry_of
from retuned.contract import Language
from retuned.lifting.lift import Lifted, lift_all


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


def _build(one: Lifted, folder: Path) -> Built:
    catalog.learn([one.own])
    entry = entry_of(one.own, Language.TRITON)
    before = entry.incumbent.params
    warps = 4 if before.get("num_warps") != 4 else 8
    candidate = entry.solution("lifted", {**before, "num_warps": warps})
    lab = LocalLab(folder, subjects=lambda _: entry, solutions=lambda _: None, generators={})
    return Built(definition=one.own.name, digest=candidate.digest, folder=lab.build(candidate))
