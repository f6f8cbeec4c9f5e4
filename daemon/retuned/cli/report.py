"""``retuned report``: GPU-hours spent on experiments against GPU-hours saved."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from retuned.cli.output import JsonFlag, emit_json, safe, stdout
from retuned.cli.state import ConfigOption, Desk, StateOption, desk
from retuned.errors import UsageError
from retuned.local.accounting import accounts
from retuned.report.words import plural, significant
from retuned.settings import load_settings
from retuned.stages.watch import METHOD, Account, Hours, total
from retuned.terminal.layout import print_fields, print_table


def report(
    month: Annotated[str, typer.Option(help="Only this month, such as 2026-11.")] = "",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Say what tuning cost and what it saved, by month, server and kernel."""
    if month and not _is_month(month):
        raise UsageError(f"--month {month!r:.40}: write a year and a month, such as 2026-11")
    with desk(config, state_dir) as at:
        whole = accounts(at.store)
        if kernel:
            _check_kernel(at, whole, kernel)
    found = tuple(
        each for each in whole if month in ("", each.month) and kernel in ("", each.definition)
    )
    price = load_settings(config, {"state_dir": state_dir}).gpu_hour_usd
    if json:
        emit_json(
            {
                "accounts": [_body(each) for each in found],
                "total": _body(total(found)),
                "usd_per_gpu_hour": price,
                "method": METHOD,
            }
        )
        return
    _print(found, price=price)


def _check_kernel(at: Desk, whole: Sequence[Account], kernel: str) -> None:
    """Tell a kernel that nothing was spent on from one that nobody knows.

    Raises
    ------
    UsageError
        If neither an account nor a proposal is about it.
    """
    known = {each.definition for each in whole}
    known |= {str(stored.body.get("definition", "")) for stored in at.store.list("proposal")}
    if kernel in known:
        return
    near = get_close_matches(kernel, sorted(known), n=3, cutoff=0.5) or sorted(known)[:5]
    meant = f"; there are {', '.join(near)}" if near else "; nothing was spent on any yet"
    raise UsageError(f"--kernel {kernel!r:.80}: no kernel of that name{safe(meant, limit=400)}")


def _print(found: Sequence[Account], *, price: float | None) -> None:
    out = stdout()
    if not found:
        out.print("Nothing was spent and nothing saved yet; the daemon adds it up as it goes.")
        return
    print_table(
        ("month", "server", "kernel", "spent h", "saved h", "net h", "of"),
        [
            (
                each.month,
                each.target,
                each.definition,
                significant(each.spent_h),
                _words(each.saved_h),
                _words(each.net_h),
                _of(each),
            )
            for each in found
        ],
    )
    whole = total(found)
    rows = [
        ("spent", f"{significant(whole.spent_h)} GPU-hours on experiments"),
        ("saved", f"{_words(whole.saved_h)} GPU-hours"),
        ("net", f"{_words(whole.net_h)} GPU-hours"),
    ]
    if price is not None:
        net = whole.net_h
        bounds = f"{net.lower * price:,.2f} to {net.upper * price:,.2f}"
        rows.append(("money", f"${net.point * price:,.2f} net ({bounds}) at ${price:g} an hour"))
    out.print("")
    print_fields([*rows, ("method", METHOD)])


def _words(hours: Hours) -> str:
    bounds = f"{significant(hours.lower)} to {significant(hours.upper)}"
    return f"{significant(hours.point)} ({bounds})"


def _of(account: Account) -> str:
    parts = [plural(account.experiments, "experiment"), plural(account.swaps, "swap")]
    return ", ".join(parts) + (f", {account.taken_back} taken back" if account.taken_back else "")


def _body(account: Account) -> dict[str, Any]:
    return {
        "month": account.month,
        "target": account.target,
        "kernel": account.definition,
        "spent_gpu_hours": account.spent_h,
        "experiments": account.experiments,
        "saved_gpu_hours": _bounds(account.saved_h),
        "net_gpu_hours": _bounds(account.net_h),
        "swaps": account.swaps,
        "taken_back": account.taken_back,
    }


def _bounds(hours: Hours) -> dict[str, float]:
    return {"lower": hours.lower, "point": hours.point, "upper": hours.upper}


def _is_month(text: str) -> bool:
    year, dash, number = text.partition("-")
    return (
        len(year) == 4
        and year.isdecimal()
        and bool(dash)
        and number.isdecimal()
        and len(number) == 2
        and 1 <= int(number) <= 12
    )
