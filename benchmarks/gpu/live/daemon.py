"""The daemon of the show: ``retuned run``'s loop, with other beliefs about what is worth a try.

    python -m benchmarks.gpu.live.daemon CONFIG

Two things differ from ``retuned run``, and nothing else: smaller savings are worth an experiment
than in production, and a lifted kernel that a drift report did not lead to, because the traces name
it by its operator's shapes, is believed of by this file, at the live shapes and weights that the
runtime counted. What is tried, judged, proposed, gated, swapped and watched is the product's own.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

from retuned.settings import load_settings
from retuned.stages.hypothesis import Hypothesis
from retuned.stages.hypothesis.records import named
from retuned.stages.profile import WorkloadProfile
from retuned.standalone import hypotheses, kernels
from retuned.standalone.assembly import build
from retuned.standalone.context import Context, RecordKind
from retuned.standalone.daemon import Loop, serve

log = logging.getLogger(__name__)

_SHAPES = 4
_GAIN = 1.1
"""Gain that this file assumes for kernels without another hypothesis."""


class ShowLoop(Loop):
    """The loop, with hypotheses also on lifted kernels that the catalog does not bind to traces."""

    def observe(self) -> None:
        """As ever; then look for kernels that were left out."""
        super().observe()
        if self.ctx.store.list(RecordKind.DRIFT, phase="explained"):
            for belief in _left_out(self.ctx):
                log.info("show: believed by the script: %s", belief.because)
                hypotheses.open_belief(self.ctx, belief)


def _left_out(ctx: Context) -> list[Hypothesis]:
    believed = {s.body["definition"] for s in ctx.store.list(RecordKind.HYPOTHESIS)}
    spent: dict[str, int] = {}
    for window in ctx.store.list(RecordKind.WINDOW, phase="judged"):
        for stat in WorkloadProfile.model_validate(window.body["profile"]).stats:
            name = stat.signature.kernel
            spent[name] = spent.get(name, 0) + stat.gpu_time_ns
    total = max(1, sum(spent.values()))
    found = []
    for record in kernels.lifted(ctx.store):
        own = record.own
        if own.name in believed or own.lifted is None:
            continue
        share = spent.get(own.lifted.kernel.rpartition(":")[2].rpartition(".")[2], 0) / total
        shapes = sorted(record.workloads, key=lambda each: -each.weight)[:_SHAPES]
        found.append(
            named(
                {
                    "definition": own.name,
                    "workloads": tuple(shapes),
                    "share": share,
                    "expected_gain_ratio": _GAIN,
                    "expected_saving": share * (1.0 - 1.0 / _GAIN),
                    "because": f"the show asks for {own.name}, {share:.1%} of GPU time",
                    "structures": ctx.catalog.structures(own.name),
                    "world": "",
                }
            )
        )
    return found


def main(config: Path) -> None:
    """Run until stopped."""
    settings = load_settings(config, {})
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    loop, _ = build(settings)
    eager = loop.ctx.settings.hypothesis.model_copy(
        update={"min_saving": 0.0001, "experiment_weight": 0.0}
    )
    ctx = replace(loop.ctx, settings=replace(loop.ctx.settings, hypothesis=eager))
    serve(ShowLoop(ctx), observe_s=settings.observe_poll_s, steer_s=settings.steer_poll_s)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
