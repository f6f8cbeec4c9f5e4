"""What the host does about graphs: few words, so that it stays a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.graphs.followers import Graphs
from retuned.runtime.graphs.kernel_target import KernelTarget
from retuned.runtime.graphs.process import follow_torch, process_graphs
from retuned.runtime.graphs.report import graph_launches, graphs_state, slot_graphs
from retuned.runtime.graphs.slot_target import serving
from retuned.runtime.intercept.service import Interception
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.schema import Refused


class HostedGraphs:
    """The graphs of this process, for one host's slots.

    Parameters
    ----------
    interception
        Of Triton's launches; None where there is none.
    graphs
        Returns the graphs of this process.
    """

    def __init__(
        self,
        interception: Interception | None,
        *,
        graphs: Callable[[], Graphs] = process_graphs,
    ) -> None:
        self._interception = interception
        self._graphs = graphs
        graphs()  # PyTorch's graphs are followed from now on, if it is there

    def add(self, slot: Slot) -> None:
        """Let a slot's launches in graphs follow what it serves."""
        graphs, interception = self._graphs(), self._interception
        if not isinstance(slot, KernelSlot):
            graphs.add_slot(slot)
        elif interception is not None:
            graphs.add(
                slot,
                lambda name: KernelTarget(
                    slot,
                    name=name,
                    kernels=lambda: interception.kernels_of(slot),
                    serves=lambda key: serving(slot, key),
                ),
            )

    def remove(self, slot: Slot) -> None:
        """Give a slot's nodes their originals back."""
        self._graphs().remove_slot(slot)

    def housekeeping(self) -> None:
        """Do what had to wait; called by the control thread when idle."""
        graphs = self._graphs()
        follow_torch(graphs)
        graphs.housekeeping()

    def quiet(self) -> AbstractContextManager[None]:
        """Hold off captures of graphs while entered; raises `Refused` if one is under way."""
        return self._graphs().gate.changing()

    def replays(self) -> int:
        """Return how often graphs that are followed were launched."""
        return sum(graph.replays for graph in self._graphs().index)

    def state(self, slot: Slot) -> dict[str, Any]:
        """Return what became of a slot's launches in graphs."""
        return slot_graphs(self._graphs(), slot)

    def counted(self, slot: Slot, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a slot's sample with the launches of its variant that replays have made.

        A server that only replays graphs launches nothing through its slots; what engaged is seen
        here alone.
        """
        graphs = self._graphs()
        launches = graph_launches(graphs, slot)
        return {
            **sample,
            "swapped_launches": int(sample["swapped_launches"]) + launches,
            "graph_launches": launches,
            "unfollowed_graphs": graphs.unfollowed,
            "graphs_reason": graphs.reason,
        }

    def recapture(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Have the server capture its graphs again, with the variants in force.

        Raises
        ------
        Refused
            As `Recapture.run`.
        """
        return {"captured": self._graphs().recapture.run()}

    def offer(self, capture: Callable[[], object]) -> Callable[[], None]:
        """Let a part of the server capture again what cannot be changed; return the way back."""
        return self._graphs().recapture.offer(capture)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of all graphs, in pages; raises `Refused` for a bad request."""
        after = request.get("after", 0)
        if type(after) is not int or after < 0:
            raise Refused("bad-request", detail="'after' is the number of a graph")
        return graphs_state(self._graphs(), after=after)
