"""Savings of swaps and device time of experiments, as sums by month, for reports.

Windows are large and are deleted after a while; a record needs only a few numbers of them. It has
all that a report needs, so that its sources are not read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from retuned.ports import Store
from retuned.stages.verdict import Interval
from retuned.stages.watch import Account, ExperimentUsage, SwapUsage, settle
from retuned.stages.watch.proof import EffectInterval

RAN = "savings"
"""Kind of the records per swap and month: current."""
TRIED = "spending"
"""Kind of the records per ended experiment: current."""


class Savings:
    """The sums in one store.

    Parameters
    ----------
    store
        Where they are; `add` is called inside of a transaction.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self,
        swap: str,
        *,
        target: str,
        definition: str,
        speedup: Interval,
        month: str,
        gpu_ns: int,
        server_ns: int = 0,
        windows: int = 1,
        environment: str = "",
    ) -> None:
        """Add what some windows show of a swap.

        Parameters
        ----------
        swap
            Its proposal.
        target, definition
            Server and kernel.
        speedup
            Of the verdict.
        month
            Such as ``2026-11``, UTC.
        gpu_ns
            Device time of the swapped shapes, nanoseconds.
        server_ns
            Device time of all kernels in the same windows, nanoseconds; 0 if it is unknown.
        windows
            How many showed it.
        environment
            What the server ran on meanwhile, where a swap runs on several; empty otherwise.
        """
        id = f"{swap}/{environment}/{month}" if environment else f"{swap}/{month}"
        stored = self._store.get(RAN, id)
        body = {
            "proposal": swap,
            "target": target,
            "definition": definition,
            "speedup": speedup.model_dump(mode="json"),
            "month": month,
            "gpu_ns": gpu_ns,
            "server_ns": server_ns,
            "windows": windows,
            "environment": environment,
        }
        if stored is None:
            self._store.add(RAN, id, body, phase="current")
            return
        body["gpu_ns"] = gpu_ns + int(stored.body["gpu_ns"])
        body["server_ns"] = server_ns + int(stored.body.get("server_ns", 0))
        body["windows"] = windows + int(stored.body["windows"])
        self._store.advance(RAN, id, expect="current", to="current", body=body)

    def spend(
        self, experiment: str, *, target: str, definition: str, months: Mapping[str, float]
    ) -> None:
        """Keep what an ended experiment took, device seconds by month; the second time nothing."""
        body = {"target": target, "definition": definition, "months": dict(months)}
        self._store.add(TRIED, experiment, body, phase="current")

    def experiments(self) -> set[str]:
        """Return the experiments that are kept."""
        return set(self._store.ids(TRIED))

    def accounts(
        self,
        *,
        taken_back: Collection[str],
        effects: Mapping[tuple[str, str], EffectInterval] | None = None,
    ) -> tuple[Account, ...]:
        """Return what was spent and saved, newest month first.

        Parameters
        ----------
        taken_back
            Proposals whose swaps were rolled back.
        effects
            What live proofs measured, by proposal and environment as in `add`.
        """
        return settle(self._ran(taken_back, effects or {}), self._tried())

    def _ran(
        self, taken_back: Collection[str], effects: Mapping[tuple[str, str], EffectInterval]
    ) -> Iterator[SwapUsage]:
        for stored in self._store.list(RAN, phase="current"):
            body = stored.body
            yield SwapUsage(
                target=str(body["target"]),
                definition=str(body["definition"]),
                month=str(body["month"]),
                proposal=str(body["proposal"]),
                gpu_ns=float(body["gpu_ns"]),
                speedup=Interval.model_validate(body["speedup"]),
                taken_back=body["proposal"] in taken_back,
                server_ns=float(body.get("server_ns", 0)),
                effect=effects.get((str(body["proposal"]), str(body.get("environment", "")))),
            )

    def _tried(self) -> Iterator[ExperimentUsage]:
        for stored in self._store.list(TRIED):
            for month, device_s in stored.body["months"].items():
                yield ExperimentUsage(
                    target=str(stored.body["target"]),
                    definition=str(stored.body["definition"]),
                    month=str(month),
                    experiment=stored.id,
                    device_s=float(device_s),
                )
