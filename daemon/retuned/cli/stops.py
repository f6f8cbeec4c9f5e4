"""``retuned freeze``, ``thaw`` and ``rearm``: what stops swaps, and how a stop is lifted.

People set a freeze, with or without a daemon. A server opens a breaker by itself when a check of a
variant fails; ``rearm`` closes it, so that the variant can be proposed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.session import ConfigOption, ReasonOption, StateOption, StateSession, desk
from retuned.cli.status import attached
from retuned.errors import Refused, RetunedError, TemporaryError, UsageError
from retuned.ports import Event
from retuned.report.proposal_text import end_words, scope_words
from retuned.runtime_client.status import ProcessStatus, Standings, opened
from retuned.settings import load_settings
from retuned.stages.gate import FreezeScope, StopPolicy, TuningFreeze
from retuned.standalone.proofs.lessons import lift
from retuned.text import short_id, until

_LONGEST_REASON = 1000
_REASONS = 32
"""Artifacts whose reasons are kept in the trail."""

Failed = list[tuple[str, RetunedError]]


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
    """Stop new experiments and swaps immediately, with or without a daemon.

    Experiments and swaps that have begun go on, and so do watching and rollbacks; --stop also rolls
    swaps back.
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
        say("retuned: without a reason, others do not know when to lift the freeze; see --reason")
    if json:
        emit_json({"freeze": sign.model_dump(mode="json"), "state_dir": str(at.folder)})
        return
    words = f"Frozen {scope_words(sign.scope)}, {end_words(sign)}, in {at.folder} ({sign.id})."
    stdout().print(safe(words, limit=4000), soft_wrap=True)
    stdout().print("Rollbacks stay possible; `retuned thaw` lifts it.")


def thaw(
    name: Annotated[str, typer.Argument(help="Which freeze; not needed if only one exists.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Lift every freeze.")] = False,
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
                f"{len(chosen)} freezes exist: {', '.join(chosen)}; name one, or --all"
            )
        lifted = [
            id
            for id in chosen
            if at.approvals.thaw(id, who=at.identity.user, at=at.now, reason=reason)
        ]
    if name and not lifted:
        known = f"; there is {', '.join(standing)}" if standing else "; nothing is frozen"
        raise UsageError(f"no freeze {name[:60]!r} exists{known}")
    if not lifted:
        raise Refused("nothing is frozen")
    if json:
        emit_json({"thawed": lifted})
        return
    stdout().print(safe(f"Lifted {', '.join(lifted)}.", limit=1000))


def rearm(
    kernel: Annotated[str, typer.Argument(help="Kernel whose breaker is closed again.")] = "",
    reason: ReasonOption = "",
    all: Annotated[
        bool, typer.Option("--all", help="Whole processes, with all kernels: after several trips.")
    ] = False,
    lessons: Annotated[
        bool,
        typer.Option(
            "--lessons", help="Lift what live proofs of the kernel have shown; needs no server."
        ),
    ] = False,
    target: Annotated[str, typer.Option(help="Refuse unless the server is this one.")] = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Close the breaker of a kernel that tripped in a server.

    It swaps nothing: the variant may be proposed and approved again. It needs a reason, which
    `retuned history` shows. --lessons instead removes the lessons that live proofs left against
    swaps of the kernel.
    """
    if lessons and all:
        raise UsageError("--lessons is about one kernel; name it, without --all")
    if bool(kernel) == all:
        raise UsageError("name either a kernel or --all")
    why = reason.strip()
    if not why:
        raise UsageError("--reason is needed: what was found out since it tripped")
    if len(why) > _LONGEST_REASON:
        raise UsageError(f"--reason has {len(why)} characters; {_LONGEST_REASON} are kept")
    settings = load_settings(config, {"state_dir": state_dir})
    if target and target != settings.target:
        raise UsageError(
            f"these settings are of target {settings.target!r}, not {target!r:.80}; name those of "
            "the other server with --config"
        )
    if lessons:
        _lift(kernel, why, config=config, state_dir=state_dir, json=json)
        return
    with desk(config, state_dir) as at:
        standings = Standings(settings.sockets)
        processes, silent = attached(standings, settings.sockets)
        before = _to_arm(processes, kernel, all=all)
        armed, failed = _arm(standings, processes, kernel or None)
        failed += silent
        if armed:
            _note(at, kernel, settings.target, why, armed, failed, before)
    _report(kernel, why, armed, failed, before, json=json)


def _lift(
    kernel: str, why: str, *, config: Path | None, state_dir: Path | None, json: bool
) -> None:
    """Lift the lessons on a kernel, and report them.

    Raises
    ------
    Refused
        If there are none.
    """
    with desk(config, state_dir) as at:
        lifted = lift(at.store, kernel, who=at.identity.user, reason=why, at=at.now)
    if not lifted:
        raise Refused(f"no lesson is in force for {safe(kernel, limit=80)!r}; see `retuned status`")
    if json:
        emit_json({"kernel": kernel, "reason": why, "lifted": [x.proposal for x in lifted]})
        return
    for lesson in lifted:
        line = f"Lifted the lesson of {short_id(lesson.proposal)}: {lesson.sentence}."
        stdout().print(safe(line, limit=2000), soft_wrap=True)
    stdout().print("This swaps nothing; the variant may be proposed again.")


def _to_arm(
    processes: Sequence[ProcessStatus], kernel: str, *, all: bool
) -> Mapping[str, Mapping[str, str]]:
    """Return the breakers that will be closed: reasons by slot and artifact.

    Raises
    ------
    UsageError
        If no process has a kernel of that name.
    Refused
        If nothing is tripped, or the processes' own breaker has to be closed first.
    """
    found = opened(processes)
    whole = [each.breaker.process for each in processes if each.breaker.process]
    if all:
        if not found and not whole:
            raise Refused("nothing is tripped in any process; there is nothing to arm")
        return found
    if whole:
        raise Refused(
            f"the whole process has tripped ({safe(whole[0], limit=200)}), and the cause may be "
            "another kernel: `retuned rearm --all` closes all breakers"
        )
    if kernel not in found:
        known = {slot.definition for each in processes for slot in each.slots}
        if kernel not in known:
            raise UsageError(
                f"no server has a kernel {safe(kernel, limit=80)!r}; see `retuned status`"
            )
        raise Refused(f"nothing is tripped for {safe(kernel, limit=80)}; there is nothing to arm")
    return {kernel: found[kernel]}


def _arm(
    standings: Standings, processes: Sequence[ProcessStatus], kernel: str | None
) -> tuple[list[str], Failed]:
    """Arm every process where something is open; one that fails does not keep the others."""
    armed: list[str] = []
    failed: Failed = []
    for each in processes:
        there = each.breaker.slots if kernel is None else each.breaker.slots.get(kernel, {})
        if not there and not (kernel is None and each.breaker.process):
            continue
        try:
            if standings.arm(each.process, kernel, term=each.term):
                armed.append(each.process)
        except RetunedError as error:
            failed.append((each.process, error))
    return armed, failed


def _note(
    at: StateSession,
    kernel: str,
    target: str,
    why: str,
    armed: Sequence[str],
    failed: Failed,
    before: Mapping[str, Mapping[str, str]],
) -> None:
    """Write down who let what come again, and why."""
    tripped = [
        f"{slot} {short_id(artifact)} {reason}"
        for slot, artifacts in before.items()
        for artifact, reason in artifacts.items()
    ]
    detail: dict[str, Any] = {
        "reason": why,
        "target": target,
        "tripped": "; ".join(tripped[:_REASONS])[:4000],
        "processes": ", ".join(armed)[:2000],
        "failed": ", ".join(name for name, _ in failed)[:2000],
    }
    at.store.record(
        Event(
            at=at.now,
            kind="slot",
            id=kernel or target,
            what="breaker-armed" if kernel else "breakers-armed",
            who=at.identity.user,
            detail=detail,
        )
    )


def _report(
    kernel: str,
    why: str,
    armed: Sequence[str],
    failed: Failed,
    before: Mapping[str, Mapping[str, str]],
    *,
    json: bool,
) -> None:
    """Say what was done.

    Raises
    ------
    TemporaryError
        If a process was not armed: what it took back stays back there.
    """
    for name, error in failed:
        say(f"retuned: not armed in {name}: {error}")
    if failed:
        done = f"armed in {len(armed)}, " if armed else ""
        names = ", ".join(name for name, _ in failed)
        raise TemporaryError(f"{done}not armed in {names}; ask again", delay_s=1.0)
    if json:
        emit_json({"kernel": kernel or None, "reason": why, "armed": list(armed), "was": before})
        return
    what = kernel or "every kernel"
    line = f"Armed {what} again in {', '.join(armed) or 'no process'}."
    stdout().print(safe(line, limit=2000), soft_wrap=True)
    for slot, artifacts in before.items():
        for artifact, reason in artifacts.items():
            stdout().print(safe(f"  {slot} {short_id(artifact)} had tripped: {reason}", limit=500))
    stdout().print("This swaps nothing; the variant may be proposed again.")
