"""``retuned status``: what runs in the servers now, kernel by kernel and process by process.

``retuned report``: GPU-hours spent on experiments against GPU-hours saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.render import (
    accounts_body,
    calibration_body,
    check_kernel,
    check_month,
    chosen,
    chosen_calibrations,
    print_accounts,
    print_calibration,
)
from retuned.cli.session import ConfigOption, StateOption, desk
from retuned.errors import MissingDependency, RetunedError, TemporaryError
from retuned.node.own_overhead import last_of
from retuned.report.proposal_text import freeze_line
from retuned.runtime_client.status import ProcessStatus, SlotStatus, Standings, WindowFacts
from retuned.runtime_client.tunables import RuntimeTunables
from retuned.settings import Settings, load_settings
from retuned.stages.gate import TuningFreeze
from retuned.stages.proposal import TUNABLE, Lesson
from retuned.stages.watch.own_overhead import OverheadRecord
from retuned.standalone.context import RecordKind
from retuned.standalone.savings import accounts, calibrations
from retuned.store.approvals import Approvals
from retuned.store.lessons import kept
from retuned.store.sqlite import DATABASE, SqliteStore
from retuned.text import print_table, short_id

_NO_SLOT = (
    "No kernel has a slot yet. A Triton kernel gets one with its first swap; "
    "`retuned kernels lifted` lists those that the daemon has seen."
)
Silent = Sequence[tuple[str, RetunedError]]


def status(
    config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False
) -> None:
    """Show what is attached, what each kernel runs, what its checks have found, and what is frozen.

    It asks the servers themselves, and needs no daemon. This does not count as a watch, so it does
    not renew the lease of a canary.
    """
    settings = load_settings(config, {"state_dir": state_dir})
    folder, freezes = settings.sockets, standing(settings)
    lessons, cost = learned(settings), own_cost(settings)
    if not json:  # before the servers are asked: these hold whether or not a server is attached
        for line in (*map(freeze_line, freezes), *map(_lesson_line, lessons)):
            stdout().print(safe(line, limit=2000), soft_wrap=True)
        if cost is not None:
            stdout().print(safe(f"{cost.sentence}.", limit=2000), soft_wrap=True)
    processes, silent = attached(Standings(folder), folder)
    tunables = tunables_of(settings)
    if json:
        emit_json(
            {
                "socket_dir": str(folder),
                "freezes": [freeze.model_dump(mode="json") for freeze in freezes],
                "lessons": [lesson.model_dump(mode="json") for lesson in lessons],
                "own_overhead": cost and cost.model_dump(mode="json") | {"sentence": cost.sentence},
                "processes": [each.model_dump(mode="json") for each in processes],
                "tunables": tunables,
                "unanswered": [
                    {"process": name, "code": error.code, "message": str(error)}
                    for name, error in silent
                ],
            }
        )
    else:
        _print(folder, processes, tunables)
    for name, error in silent:
        say(f"retuned: {name} is left out: {error}")


def tunables_of(settings: Settings) -> list[dict[str, object]]:
    """Return the tunables of the server with what is in force, and why they are not tried.

    What cannot be asked now is left out.
    """
    try:
        processes = RuntimeTunables(settings.sockets).processes()
    except RetunedError as error:
        say(f"retuned: tunables are left out: {error}")
        return []
    known = _known_tunables(settings)
    return [
        {
            "process": each.name,
            "tunable": name,
            "kernel": report.kernel,
            "launches": sum(asked.launches for asked in report.asked),
            "artifact": report.table.artifact if report.table is not None else None,
            "matched": report.table.matched if report.table is not None else 0,
            "refused": report.refused,
            **known.get(name, {"reason": "", "detail": "the daemon has not observed it yet"}),
        }
        for each in processes
        for name, report in sorted(each.tunables.items())
    ]


def _known_tunables(settings: Settings) -> dict[str, dict[str, object]]:
    """Return why the daemon tries no table, by tunable; empty text where it does."""
    if not (settings.state_dir / DATABASE).is_file():
        return {}
    store = SqliteStore(settings.state_dir)
    try:
        return {
            stored.id: {name: str(stored.body.get(name, "")) for name in ("reason", "detail")}
            for stored in store.list(RecordKind.TUNABLE)
        }
    finally:
        store.close()


def standing(settings: Settings) -> tuple[TuningFreeze, ...]:
    """Return the freezes in force in these settings' state; none without a state."""
    if not (settings.state_dir / DATABASE).is_file():
        return ()
    store = SqliteStore(settings.state_dir)
    try:
        return Approvals(store).freezes(now=datetime.now(UTC))
    finally:
        store.close()


def learned(settings: Settings) -> list[Lesson]:
    """Return the lessons of live proofs in force on these settings' state."""
    if not (settings.state_dir / DATABASE).is_file():
        return []
    store = SqliteStore(settings.state_dir)
    try:
        return kept(store)
    finally:
        store.close()


def own_cost(settings: Settings) -> OverheadRecord | None:
    """Return what Retuned cost the server when that was last measured; None without it."""
    if not (settings.state_dir / DATABASE).is_file():
        return None
    store = SqliteStore(settings.state_dir)
    try:
        return last_of(store)
    finally:
        store.close()


def _lesson_line(lesson: Lesson) -> str:
    return (
        f"{lesson.definition} ({lesson.guard}) is not proposed again in this server (live-lesson): "
        f"{lesson.sentence}. `retuned rearm {lesson.definition} --lessons --reason ...` lifts it."
    )


def attached(standings: Standings, folder: Path) -> tuple[list[ProcessStatus], Silent]:
    """Return the processes that answer, and those that do not.

    Raises
    ------
    MissingDependency
        If no server is attached.
    TemporaryError
        If servers are there and none answers, or the folder cannot be read.
    """
    if not folder.exists():
        raise MissingDependency(_no_server(folder, "the folder does not exist"))
    processes, silent = standings.ask()
    if not processes and silent:
        raise TemporaryError(f"{folder}: no server answers: {silent[0][1]}", delay_s=1.0)
    if not processes:
        raise MissingDependency(_no_server(folder, "no server listens there"))
    return processes, silent


def _no_server(folder: Path, why: str) -> str:
    return (
        f"{folder}: {why}, so nothing is attached; start the server by `retuned attach -- ...` "
        "with the same socket_dir, or name its folder in the settings. A server listens once it "
        "launches a kernel"
    )


# --- text -----------------------------------------------------------------------------------------


def _print(
    folder: Path, processes: Sequence[ProcessStatus], tunables: Sequence[Mapping[str, object]]
) -> None:
    names = sorted({each.server for each in processes if each.server}) or ["a server without name"]
    count = len(processes)
    line = f"{', '.join(names)}: {count} process{'es' * (count > 1)} in {folder}"
    stdout().print(safe(line, limit=1000), soft_wrap=True)
    print_table(
        ("process", "rank", "daemon", "breaker", "checks under way"),
        [_process_row(each) for each in processes],
    )
    rows = [(slot, each) for each in processes for slot in each.slots]
    if not rows and not tunables:
        stdout().print(_NO_SLOT, soft_wrap=True)
    elif rows:
        rows.sort(key=lambda row: row[0].definition)  # stable: within a kernel by rank
        stdout().print("")
        print_table(_HEADER, [_slot_row(slot, each, many=count > 1) for slot, each in rows])
    if tunables:
        stdout().print("")
        print_table(_TUNABLES, [_tunable_row(each) for each in tunables])
    left_out = sum(each.slots_left_out for each in processes)
    if left_out:
        stdout().print(f"{left_out} kernels more are not listed.")
    for each in processes:
        if each.compiling.compiles:
            stdout().print(f"{each.process.removesuffix('.sock')} {_compiled(each)}")
        if each.windows is not None:
            line = f"{each.process.removesuffix('.sock')} {_profiled(each.windows)}"
            stdout().print(safe(line, limit=1000), soft_wrap=True)
    _print_stock(processes)


_TUNABLES = ("process", "tunable", "launches", "runs", "why no experiment")


def _tunable_row(each: Mapping[str, object]) -> tuple[str, ...]:
    artifact = each["artifact"]
    runs = "the server's choice"
    if artifact:
        runs = f"table {short_id(str(artifact))}, {each['matched']} launches"
    why = str(each["refused"] or each["reason"])
    return (
        str(each["process"]).removesuffix(".sock"),
        str(each["tunable"]).removeprefix(TUNABLE),
        str(each["launches"]),
        runs,
        f"{why}: {each['detail']}" if why and each["detail"] else why or str(each["detail"]),
    )


def _compiled(each: ProcessStatus) -> str:
    """Say what compiling for launches that came after a swap has cost."""
    told = each.compiling
    longest = f", {_seconds(told.longest_s)} at most" if told.compiles > 1 else ""
    return f"compiled {told.compiles} while serving, in {_seconds(told.compile_s)}{longest}."


def _profiled(told: WindowFacts) -> str:
    """Say what the runtime's profiler windows brought and took."""
    took = f"profiled itself {told.written} times, in {_seconds(told.spent_s)}"
    if told.off:
        return f"{took}; no more: {told.off}."
    left_out = ", ".join(f"{reason} {count}" for reason, count in sorted(told.skipped.items()))
    return f"{took}; left out: {left_out}." if left_out else f"{took}."


def _print_stock(processes: Sequence[ProcessStatus]) -> None:
    """Print the Triton kernels that are intercepted and run as the server wrote them."""
    many = len(processes) > 1
    rows = [
        (each.kernel, _place(one, many=many), "stock", str(each.launches), str(each.keys),
         "" if each.liftable else "takes any number of arguments: cannot be lifted")
        for one in processes
        for each in one.stock_kernels
    ]  # fmt: skip
    if rows:
        stdout().print("")
        print_table(("Triton kernel", "rank", "serves", "launches", "shapes", "detail"), rows)
    left_out = sum(each.stock_kernels_left_out for each in processes)
    if left_out:
        stdout().print(f"{left_out} Triton kernels more are launched and not listed.")


def _place(each: ProcessStatus, *, many: bool) -> str:
    """Return a process's rank, or its name if it reports no rank and other processes exist."""
    return each.process.removesuffix(".sock") if many and each.number is None else _rank(each)


def _process_row(each: ProcessStatus) -> tuple[str, ...]:
    under_way = str(each.checks.in_flight)
    if each.checks.stuck:
        under_way += f", {each.checks.stuck} do not come back"
    return (
        each.process.removesuffix(".sock"),
        _rank(each),
        _daemon(each),
        f"open: {each.breaker.process}" if each.breaker.process else "closed",
        under_way,
    )


def _daemon(each: ProcessStatus) -> str:
    """Say when a daemon was last here; one that has ordered nothing yet has no term."""
    if each.term > 0:
        return f"asked {_seconds(each.unasked_s)} ago"
    if each.unvisited_s is None:
        return "none yet"
    return f"looked {_seconds(each.unvisited_s)} ago, ordered nothing"


def _rank(each: ProcessStatus) -> str:
    """Say which rank a process is, and its place in groups of more than one."""
    if each.number is None:
        return "-"
    groups = [
        f"{kind} {each.ranks[f'{kind}_rank']}/{each.ranks[f'{kind}_size']}"
        for kind in ("tp", "pp")
        if each.ranks.get(f"{kind}_size", 1) > 1 and f"{kind}_rank" in each.ranks
    ]
    return " ".join([str(each.number), *groups])


_HEADER = (
    "kernel",
    "rank",
    "serves",
    "epoch",
    "share",
    "swapped",
    "fallback",
    "checks",
    "wrong",
    "breaker",
    "lease",
    "guard",
    "order",
    "detail",
)


def _slot_row(slot: SlotStatus, each: ProcessStatus, *, many: bool) -> tuple[str, ...]:
    order = slot.order
    return (
        slot.definition,
        _place(each, many=many),
        serves(slot),
        str(slot.epoch),
        f"{100 * slot.fraction:g}%" if slot.artifact else "-",
        str(slot.swapped_launches),
        str(slot.fallback_launches),
        str(slot.shadow_checks),
        str(slot.shadow_mismatches + slot.shadow_nonfinite),
        "open" if slot.breaker or each.breaker.process else "closed",
        _lease(slot, each),
        _guard(slot.guard) if slot.artifact else "-",
        f"{order.kind} {short_id(order.id)}" if order else "none yet",
        _detail(slot),
    )


def serves(slot: SlotStatus) -> str:
    """Say what launches of a slot run."""
    if slot.state.startswith("tripped:"):
        return "original (tripped)"
    if slot.state == "bypassed":
        return "original (bypassed)"
    if slot.artifact is None:
        return "original"
    return (
        short_id(slot.artifact)
        if slot.fraction > 0
        else f"original (shadows {short_id(slot.artifact)})"
    )


def _lease(slot: SlotStatus, each: ProcessStatus) -> str:
    if slot.order is None or slot.order.lease_s <= 0 or slot.artifact is None:
        return "-"
    if slot.fraction >= 1:
        return "not needed"
    if slot.orphaned:
        return f"over, {slot.order.orphan}"
    return f"{_seconds(max(0.0, slot.order.lease_s - each.unasked_s))} left"


def _guard(guard: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{axis} {low}-{high}" for axis, (low, high) in guard.items()) or "all"


def _detail(slot: SlotStatus) -> str:
    parts = []
    if slot.state.startswith("tripped:"):
        parts.append(f"tripped: {slot.state.removeprefix('tripped:')}")
    parts += [f"{short_id(digest)} may not run: {why}" for digest, why in slot.breaker.items()]
    if slot.shadow_checks:
        parts.append(f"worst ratio {slot.worst_ratio:.3g}")
    if slot.errors:
        parts.append(f"{slot.errors} launches raised")
    parts += _counted("could not take", slot.ineligible_launches)
    parts += _counted("checks without result", slot.dropped_checks)
    if slot.unfollowed_graphs:
        parts.append(_unfollowed(slot))
    if slot.throttled_checks:
        parts.append(f"{slot.throttled_checks} checks left out for their cost")
    return "; ".join(parts)


def _unfollowed(slot: SlotStatus) -> str:
    """Say that what graphs replay is in no count, and is not swapped."""
    count = slot.unfollowed_graphs
    why = f" ({slot.graphs_reason})" if slot.graphs_reason else ""
    are = "graphs are" if count > 1 else "graph is"
    return f"{count} captured {are} not followed{why}: not engaged there, and not counted"


def _counted(what: str, counts: Mapping[str, int]) -> list[str]:
    said = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return [f"{what}: {said}"] if said else []


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def report(
    month: Annotated[str, typer.Option(help="Only this month, such as 2026-11.")] = "",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration", help="Instead: claims of experiments beside what live proofs showed."
        ),
    ] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Report what tuning cost and what it saved, by month, server and kernel."""
    check_month(month)
    with desk(config, state_dir) as at:
        whole = accounts(at.store)
        proven = calibrations(at.store)
        if kernel:
            known = {each.definition for each in whole}
            known |= {str(each.body.get("definition", "")) for each in at.store.list("proposal")}
            check_kernel(kernel, known)
    if calibration:
        shown = chosen_calibrations(proven, month=month, kernel=kernel)
        if json:
            emit_json(calibration_body(shown))
        else:
            print_calibration(shown)
        return
    found = chosen(whole, month=month, kernel=kernel)
    price = load_settings(config, {"state_dir": state_dir}).gpu_hour_usd
    if json:
        emit_json(accounts_body(found, price=price))
    else:
        print_accounts(found, price=price, keeper="daemon")
