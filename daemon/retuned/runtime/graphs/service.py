"""Service of graphs for the runtime's host."""

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
    """The graphs of this process, for one host's slots."""

    def __init__(
        self,
        interception: Interception | None,
        *,
        graphs: Callable[[], Graphs] = process_graphs,
    ) -> None:
        self._interception = interception
        self._graphs = graphs
        graphs()  # follows PyTorch's graphs from now on, if PyTorch is loaded

    def add(self, slot: Slot) -> None:
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
        self._graphs().remove_slot(slot)

    def suspend(self) -> None:
        """Count no replays for a while; see `core.own_overhead.Wrapper`."""
        self._graphs().torch.suspend()

    def resume(self) -> None:
        """Count replays again."""
        self._graphs().torch.resume()

    def housekeeping(self) -> None:
        graphs = self._graphs()
        follow_torch(graphs)
        graphs.housekeeping()

    def quiet(self) -> AbstractContextManager[None]:
        """Block captures of graphs in this context; raises `Refused` if one is running."""
        return self._graphs().gate.changing()

    def captured(self) -> bool:
        """Whether this process may hold a captured graph; True where captures are not observed."""
        graphs = self._graphs()
        return not graphs.torch.watched or bool(graphs.unfollowed or len(graphs.index))

    def replays(self) -> int:
        return sum(graph.replays for graph in self._graphs().index)

    def state(self, slot: Slot) -> dict[str, Any]:
        return slot_graphs(self._graphs(), slot)

    def counted(self, slot: Slot, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a slot's sample with the launches of its variant by graph replays.

        A server that only replays graphs launches nothing through its slots; only these counts show
        whether its variant runs.
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
        """Make the server capture its graphs again, with the active variants.

        Raises
        ------
        Refused
            As `Recapture.run`.
        """
        return {"captured": self._graphs().recapture.run()}

    def offer(self, capture: Callable[[], object]) -> Callable[[], None]:
        """Register a callback that captures again; return the function that withdraws it."""
        return self._graphs().recapture.offer(capture)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of all graphs, in pages; raises `Refused` for a bad request."""
        after = request.get("after", 0)
        if type(after) is not int or after < 0:
            raise Refused("bad-request", detail="'after' must be the number of a graph")
        return graphs_state(self._graphs(), after=after)
