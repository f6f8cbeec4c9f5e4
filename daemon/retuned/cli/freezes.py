"""``retuned freeze`` and ``thaw``: the stop sign, with or without a daemon, at once."""

from __future__ import annotations

from typing import Annotated

import typer

from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.session import ConfigOption, ReasonOption, StateOption, desk
from retuned.errors import Refused, UsageError
from retuned.report.proposal_text import end_words, scope_words
from retuned.stages.gate import FreezeScope, StopPolicy, TuningFreeze
from retuned.text import until


def freeze(
    reason: ReasonOption = "",
    until_: Annotated[
        str, typer.Option("--until", help="2h, or a time like 2026-12-24T18:00+01:00.")
    ] = "",
    target: Annotated[list[str] | None, typer.Option(help="Only these targets (glob).")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Only these kernels (glob).")] = None,
    stop: Annotated[
        StopPolicy, typer.Option(help="What becomes of swaps under way and promoted ones.")
    ] = StopPolicy.HOLD,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """No new experiments and swaps, at once, with or without a daemon.

    What is measured or swapped already goes on, and so do watching and rollbacks; --stop takes
    swaps back as well.
    """
    with desk(config, state_dir) as at:
        sign = TuningFreeze(
            id=f"freeze-{at.now:%Y%m%d-%H%M%S-%f}",
            stop_policy=stop,
            scope=FreezeScope(targets=tuple(target or ()), kernels=tuple(kernel or ())),
            until=until(until_, now=at.now) if until_ else None,
            reason=reason,
            user=at.identity.user,
            at=at.now,
        )
        at.approvals.freeze(sign)
    if not reason.strip():
        say("retuned: no reason was given, so others cannot tell when it may go; see --reason")
    if json:
        emit_json({"freeze": sign.model_dump(mode="json"), "state_dir": str(at.folder)})
        return
    words = f"Frozen {scope_words(sign.scope)}, {end_words(sign)}, in {at.folder} ({sign.id})."
    stdout().print(safe(words, limit=4000), soft_wrap=True)
    stdout().print("Rollbacks stay possible; `retuned thaw` lifts it.")


def thaw(
    name: Annotated[str, typer.Argument(help="Which freeze; not needed where one stands.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Every freeze that stands.")] = False,
    reason: ReasonOption = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Lift a freeze."""
    with desk(config, state_dir) as at:
        standing = [f.id for f in at.approvals.freezes(now=at.now)]
        chosen = [name] if name else standing
        if len(chosen) > 1 and not all:
            raise UsageError(
                f"{len(chosen)} freezes stand: {', '.join(chosen)}; name one, or --all"
            )
        lifted = [
            id
            for id in chosen
            if at.approvals.thaw(id, who=at.identity.user, at=at.now, reason=reason)
        ]
    if name and not lifted:
        stand = f"; {', '.join(standing)} does" if standing else "; nothing is frozen"
        raise UsageError(f"no freeze {name[:60]!r} stands{stand}")
    if not lifted:
        raise Refused("nothing is frozen")
    if json:
        emit_json({"thawed": lifted})
        return
    stdout().print(safe(f"Lifted {', '.join(lifted)}.", limit=1000))
