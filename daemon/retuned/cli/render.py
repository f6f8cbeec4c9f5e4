"""What tuning cost and saved, as a table and as JSON: the same on one machine and of a cluster.

Also the problems of a policy, or of all policies of a folder, as text and as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import Any

from retuned.errors import PolicyInvalid, Problem, UnreadableInput, UsageError
from retuned.report.live_proof import effect_words
from retuned.stages.watch import METHOD, Account, Hours, total
from retuned.stages.watch.proof import Calibration, percent_of
from retuned.store.policy_files import (
    check_policy,
    cluster_only_in,
    load_policies,
    misread_in,
    permissions_in,
    policy_paths,
)
from retuned.text import error_body, plural, print_fields, print_table, safe, significant, stdout


def check_month(month: str) -> None:
    """Check the month that a user typed; empty means all.

    Raises
    ------
    UsageError
        If it is not a month.

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
    """Check that the kernel that a user typed is a known one; empty means all.

    Raises
    ------
    UsageError
        If it is not a known kernel.
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
        US dollars per GPU-hour; None where no price is set.
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
        ("month", "server", "kernel", "spent h", "saved h", "claimed h", "net h", "of"),
        [
            (
                each.month,
                each.target,
                each.definition,
                significant(each.spent_h),
                _words(each.saved_h),
                _words(each.claimed_h),
                _words(each.net_h),
                _of(each),
            )
            for each in found
        ],
    )
    whole = total(found)
    rows = [
        ("spent", f"{significant(whole.spent_h)} GPU-hours on experiments"),
        ("saved", f"{_words(whole.saved_h)} GPU-hours, shown by live proofs"),
        ("claimed", f"{_words(whole.claimed_h)} GPU-hours more, by experiments alone"),
        ("net", f"{_words(whole.net_h)} GPU-hours"),
    ]
    if price is not None:
        net = whole.net_h
        bounds = f"{net.lower * price:,.2f} to {net.upper * price:,.2f}"
        rows.append(("money", f"${net.point * price:,.2f} net ({bounds}) at ${price:g} an hour"))
    out.print("")
    print_fields([*rows, ("method", METHOD)])


def chosen_calibrations(
    found: Sequence[Calibration], *, month: str, kernel: str
) -> tuple[Calibration, ...]:
    """Return the proven swaps of a month and of a kernel; empty means all."""
    return tuple(
        each
        for each in found
        if kernel in ("", each.definition) and month in ("", f"{each.at:%Y-%m}")
    )


def calibration_body(found: Sequence[Calibration]) -> dict[str, Any]:
    """Return proven swaps with their claims as JSON data, with the inputs of each."""
    return {
        "swaps": [
            each.model_dump(mode="json")
            | {
                "claim": each.claim.model_dump(mode="json"),
                "predicted": each.predicted,
                "ratio": each.ratio,
                "differs": each.differs,
            }
            for each in found
        ],
        "median_ratio": _median_ratio(found),
        "method": CALIBRATION,
    }


def print_calibration(found: Sequence[Calibration]) -> None:
    """Print proven swaps with their claims for people."""
    if not found:
        stdout().print("No swap was proven on live traffic yet.")
        return
    print_table(
        ("proven", "kernel", "verdict", "claimed", "predicted", "live", "live/claimed", ""),
        [
            (
                f"{each.at:%Y-%m-%d}",
                each.definition,
                each.verdict.value,
                effect_words(each.claim),
                "unknown" if each.predicted is None else f"{percent_of(each.predicted):+.1f} %",
                effect_words(each.live),
                "" if each.ratio is None else f"{each.ratio:.2f}",
                "differs" if each.differs else "",
            )
            for each in found
        ],
    )
    middle = _median_ratio(found)
    differing = sum(each.differs for each in found)
    rows = [("differ", f"{differing} of {len(found)}, by more than both intervals")]
    if middle is not None:
        rows.append(("median", f"{middle:.2f} of the claim was measured"))
    stdout().print("")
    print_fields([*rows, ("method", CALIBRATION)])


def _median_ratio(found: Sequence[Calibration]) -> float | None:
    ratios = [each.ratio for each in found if each.ratio is not None]
    return median(ratios) if ratios else None


CALIBRATION = (
    "All numbers are changes of the time of a step; less is faster. Claimed is what the speedup of "
    "the experiment gives a step whose pace the GPU sets: share of GPU time x (1 - 1 / speedup), "
    "with the bounds of the verdict. Predicted counts only the share of steps whose pace the GPU "
    "set before the proof. Live is what the proof measured, with its interval."
)
"""Explanation of the numbers, shown with them."""


def _words(hours: Hours) -> str:
    bounds = f"{significant(hours.lower)} to {significant(hours.upper)}"
    return f"{significant(hours.point)} ({bounds})"


def _of(account: Account) -> str:
    parts = [plural(account.experiments, "experiment"), plural(account.swaps, "swap")]
    parts += [f"{account.proven} proven"] if account.proven else []
    return ", ".join(parts) + (f", {account.taken_back} rolled back" if account.taken_back else "")


def _body(account: Account) -> dict[str, Any]:
    return {
        "month": account.month,
        "target": account.target,
        "kernel": account.definition,
        "spent_gpu_hours": account.spent_h,
        "experiments": account.experiments,
        "saved_gpu_hours": _bounds(account.saved_h),
        "claimed_gpu_hours": _bounds(account.claimed_h),
        "net_gpu_hours": _bounds(account.net_h),
        "swaps": account.swaps,
        "proven": account.proven,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFileResult:
    """What was found in one file."""

    file: Path
    problems: tuple[Problem, ...] = ()
    idle: tuple[Problem, ...] = ()
    permits: tuple[Problem, ...] = ()
    unreadable: UnreadableInput | None = None


def examine(path: Path, *, one_machine: bool) -> list[PolicyFileResult]:
    """Check a file, or the files of a folder, as the setting ``policy_files`` reads them.

    Parameters
    ----------
    path
        File or folder.
    one_machine
        Whether it is for a machine without a cluster, which does not enforce all that it says;
        else it goes through a YAML reader of Kubernetes, which takes other words for truth values.
    """
    try:
        files = policy_paths([path])
    except UnreadableInput as error:
        return [_unreadable(path, error)]
    if not files:
        text = "no policy is in this folder: none of its files ends with .yaml or .yml"
        return [PolicyFileResult(file=path, problems=(Problem(path="", line=None, message=text),))]
    found = [_examine_one(file, one_machine=one_machine) for file in files]
    if len(files) > 1 and not any(each.problems for each in found):
        try:
            load_policies(files)  # each is good; are they together?
        except PolicyInvalid as error:
            found.append(PolicyFileResult(file=Path(error.where), problems=error.problems))
    return found


def exit_code(found: Sequence[PolicyFileResult]) -> int:
    """Return 0 where all is valid, 1 where something is not, 3 where it cannot be read."""
    if any(each.unreadable is not None for each in found):
        return UnreadableInput.exit_code
    return int(any(each.problems for each in found))


def policies_body(found: Sequence[PolicyFileResult]) -> dict[str, Any]:
    """Return the stable JSON of a check."""
    body: dict[str, Any] = {
        "valid": not any(each.problems for each in found),
        "problems": [b for each in found for b in _bodies(each.file, each.problems)],
        "not_enforced": [b for each in found for b in _bodies(each.file, each.idle)],
        "permits": [b for each in found for b in _bodies(each.file, each.permits)],
    }
    unread = [each.unreadable for each in found if each.unreadable is not None]
    if len(unread) == len(found):  # nothing at all could be read
        body["error"] = error_body(unread[0])
    return body


def print_policies(found: Sequence[PolicyFileResult]) -> None:
    """Print a line for each thing that is wrong, and which files are valid."""
    for each in found:
        _print(each)


def _examine_one(file: Path, *, one_machine: bool) -> PolicyFileResult:
    try:
        problems = check_policy(file) or (() if one_machine else misread_in(file))
        idle = cluster_only_in(file) if one_machine and not problems else ()
        permits = () if problems else permissions_in(file)
    except UnreadableInput as error:
        return _unreadable(file, error)
    return PolicyFileResult(file=file, problems=problems, idle=idle, permits=permits)


def _unreadable(file: Path, error: UnreadableInput) -> PolicyFileResult:
    text = f"{error.message} [{error.code}]"
    problem = Problem(path="", line=getattr(error, "line", None), message=text)
    return PolicyFileResult(file=file, problems=(problem,), unreadable=error)


def _bodies(file: Path, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [
        {"file": str(file), "path": p.path, "line": p.line, "message": p.message} for p in problems
    ]


def _print(found: PolicyFileResult) -> None:
    out = stdout()
    for problem in found.problems + found.idle + found.permits:
        place = f"{found.file}:{problem.line}" if problem.line else str(found.file)
        path = f"{problem.path}: " if problem.path else ""
        out.print(safe(f"{place}: {path}{problem.message}", limit=1000), soft_wrap=True)
    if not found.problems:
        out.print(safe(f"{found.file}: valid", limit=1000), soft_wrap=True)
