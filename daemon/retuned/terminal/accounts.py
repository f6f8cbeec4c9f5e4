"""What tuning cost and saved, as a table and as JSON: the same on one machine and of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

from retuned.errors import UsageError
from retuned.report.words import plural, significant
from retuned.stages.watch import METHOD, Account, Hours, total
from retuned.terminal.layout import print_fields, print_table
from retuned.terminal.output import safe, stdout


def check_month(month: str) -> None:
    """Check what somebody typed for a month; empty means all.

    Raises
    ------
    UsageError
        If it is none.

    Examples
    --------
    >>> check_month("2026-11")
    >>> check_month("11/2026")
    Traceback (most recent call last):
    retuned.errors.UsageError: --month '11/2026': write a year and a month, such as 2026-11
    """
    if month and not _is_month(month):
        raise UsageError(f"--month {month!r:.40}: write a year and a month, such as 2026-11")


def check_kernel(kernel: str, known: Collection[str]) -> None:
    """Tell a kernel that nothing was spent on from one that nobody knows; empty means all.

    Raises
    ------
    UsageError
        If it is not among those that are known.
    """
    if not kernel or kernel in known:
        return
    near = get_close_matches(kernel, sorted(known), n=3, cutoff=0.5) or sorted(known)[:5]
    meant = f"; there are {', '.join(near)}" if near else "; nothing was spent on any yet"
    raise UsageError(f"--kernel {kernel!r:.80}: no kernel of that name{safe(meant, limit=400)}")


def chosen(accounts: Sequence[Account], *, month: str, kernel: str) -> tuple[Account, ...]:
    """Return the accounts of a month and of a kernel; empty means all."""
    return tuple(
        each for each in accounts if month in ("", each.month) and kernel in ("", each.definition)
    )


def accounts_body(found: Sequence[Account], *, price: float | None) -> dict[str, Any]:
    """Return accounts and their sum as JSON data.

    Parameters
    ----------
    price
        US dollars per GPU-hour; None where nobody said.
    """
    return {
        "accounts": [_body(each) for each in found],
        "total": _body(total(found)),
        "usd_per_gpu_hour": price,
        "method": METHOD,
    }


def print_accounts(found: Sequence[Account], *, price: float | None, keeper: str) -> None:
    """Print accounts and their sum for people.

    Parameters
    ----------
    keeper
        Who adds them up.
    """
    out = stdout()
    if not found:
        out.print(f"Nothing was spent and nothing saved yet; the {keeper} adds it up as it goes.")
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
