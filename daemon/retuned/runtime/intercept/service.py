"""Service of interception for the control socket; turns an artifact into a slot."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.intercept.hook import Interceptor
from retuned.runtime.intercept.observed import identity, page, source_of, summary
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.rules import LaunchRule, key_reader, parse_rule
from retuned.runtime.intercept.slot import KernelSlot
from retuned.runtime.intercept.variant import KernelVariant
from retuned.runtime.schema import Refused

MAX_LISTED = 256
MAX_STOCK = 64
"""Kernels without a slot in one status answer, those launched most first."""


class Interception:
    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    @property
    def on(self) -> bool:
        return self._interceptor.on

    def suspend(self) -> None:
        """Leave the launches for a while; see `core.own_overhead.Wrapper`."""
        self._interceptor.suspend()

    def resume(self) -> None:
        """Intercept again."""
        self._interceptor.resume()

    def states(self) -> dict[str, str]:
        return dict(self._interceptor.states)

    def poll(self) -> None:
        """Intercept what has been imported since."""
        self._interceptor.poll()

    def kernels(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """List the kernels that were launched; raises `Refused` for a bad request."""
        after = request.get("after", 0)
        if type(after) is not int or after < 0:
            raise Refused("bad-request", detail="'after' must be a whole number")
        every = self._interceptor.kernels()
        shown = [summary(kernel) for kernel in islice(every, after, after + MAX_LISTED)]
        more = after + MAX_LISTED < len(every)
        return {
            "states": self.states(),
            "kernels": shown,
            "next": after + MAX_LISTED if more else None,
        }

    def launches(self) -> int:
        return sum(kernel.total() for kernel in self._interceptor.kernels())

    def stock(self) -> dict[str, Any]:
        """Return the kernels without a slot, which run the server's own code, as JSON data."""
        every = [each for each in self._interceptor.kernels() if each.slot is None]
        rows = sorted(map(summary, every), key=lambda row: -int(row["launches"]))
        return {
            "stock_kernels": rows[:MAX_STOCK],
            "stock_kernels_left_out": max(0, len(rows) - MAX_STOCK),
        }

    def observed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of observed launches; raises `Refused` for a bad request."""
        return page(self._interceptor.kernels(), request)

    def adopt(self, artifact: Artifact) -> KernelSlot:
        """Create a slot for the kernel of an artifact, and dispatch its launches through the slot.

        Raises
        ------
        Refused
            ``artifact-invalid``, ``interception-off``, ``kernel-unseen``, ``kernel-changed`` or
            ``slot-exists``.
        """
        rule = parse_rule(artifact.intercept)
        kernel = self._find(rule)
        if kernel.slot is not None:
            name = kernel.slot.spec.name
            raise Refused("slot-exists", detail=f"{rule.kernel[:120]} has the slot {name}")
        slot = KernelSlot(artifact.spec, rule=rule, key=key_reader(rule, artifact.spec, kernel))
        self._interceptor.open(rule.kernel, rule.source_digest, slot)
        return slot

    def kernels_of(self, slot: KernelSlot) -> list[Kernel]:
        return [each for each in self._interceptor.kernels() if each.slot is slot]

    def close(self, slot: KernelSlot) -> None:
        self._interceptor.close(slot)

    def load(self, artifact: Artifact, slot: KernelSlot) -> tuple[KernelVariant, int]:
        """Return a variant that is ready for launches, and for how many signatures it is compiled.

        Raises
        ------
        Refused
            As `KernelVariant` and `prepare_seen`; ``definition-mismatch`` if the artifact reads
            launches of another kernel, or in another way.
        """
        rule = parse_rule(artifact.intercept)
        ours = slot.rule
        if (rule.kernel, rule.source_digest, rule.axes) != (
            ours.kernel,
            ours.source_digest,
            ours.axes,
        ):
            raise Refused("definition-mismatch", detail=f"not made for slot {slot.spec.name}")
        variant = KernelVariant(
            artifact,
            rule,
            kernels=lambda: [each for each in self._interceptor.kernels() if each.slot is slot],
        )
        return variant, variant.prepare_seen()

    def _find(self, rule: LaunchRule) -> Kernel:
        if not self._interceptor.on:
            raise Refused("interception-off", detail=f"{self.states()}")
        named = [each for each in self._interceptor.kernels() if identity(each) == rule.kernel]
        if not named:
            raise Refused(
                "kernel-unseen",
                detail=f"{rule.kernel[:120]} was not launched here yet; order again later",
            )
        for kernel in named:
            if not kernel.variadic and source_of(kernel).digest == rule.source_digest:
                return kernel
        raise Refused("kernel-changed", detail=f"{rule.kernel[:120]} has another source here")
