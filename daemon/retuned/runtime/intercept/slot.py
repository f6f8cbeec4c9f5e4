"""Slot in front of a kernel's launches, instead of in front of a function.

Its one input is the launch. Everything else is as in `Slot`: counting by lengths, the table behind
one reference, orders, bypass, trips. The server's own code is always one reference away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retuned.runtime.core.slots import Slot
from retuned.runtime.core.tables import Times
from retuned.runtime.intercept.call import LaunchCall
from retuned.runtime.intercept.rules import LaunchRule
from retuned.runtime.schema import Key, Refused, Spec


class KernelSlot(Slot):
    """Launches of one kernel, dispatched by a table."""

    TAKES_IN_PLACE = True
    __slots__ = ("rule",)

    def __init__(self, spec: Spec, *, rule: LaunchRule, key: Callable[[LaunchCall], Key]) -> None:
        super().__init__(spec, run_stock, key=key)
        self.rule = rule

    def sample_inputs(self, reservoir: Any) -> None:  # noqa: ANN401 - as the base
        """Refuse: a launch's tensors belong to the server, and some are its outputs.

        Raises
        ------
        Refused
            ``capture-unsupported``.
        """
        if reservoir is not None:
            raise Refused(
                "capture-unsupported", detail="inputs of intercepted launches are not sampled"
            )
        super().sample_inputs(reservoir)

    def time_launches(self, times: Times | None) -> None:
        """Do nothing: repeated launches of a variant skip the table.

        Only the arm without it would pay for the count.
        """


def run_stock(call: LaunchCall) -> Any:  # noqa: ANN401 - outputs to compare, or what Triton returned
    """Run the server's own code; return the list that a check of this launch fills."""
    call.stock()
    return call.reference
