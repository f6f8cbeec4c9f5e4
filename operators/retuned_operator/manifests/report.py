"""What was spent and saved in a namespace, in one ConfigMap that people may read.

Anyone who may write ConfigMaps there may change it. So it is untrusted input, and contains no data
of other namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from retuned.contract import Record
from retuned.errors import UnreadableInput
from retuned.stages.watch import Account, Hours
from retuned_operator.manifests.names import labels

REPORT = "retuned-report"
"""Name of the ConfigMap, in every namespace with targets."""
KEY = "report.json"
"""Key inside it."""
MAX_BYTES = 512 * 1024
"""Accounts beyond are left out, the oldest first; a ConfigMap holds 1 MiB."""
_MAX_ROWS = 4096

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class ReportedHours(Record):
    """GPU-hours with their bounds."""

    lower: _Finite
    """By the lower bound of each gain."""
    point: _Finite
    """By the estimates."""
    upper: _Finite
    """By the upper bounds."""

    def hours(self) -> Hours:
        """Return them as the accounts have them."""
        return Hours(lower=self.lower, point=self.point, upper=self.upper)


class Reported(Record):
    """One kernel of one target in one month."""

    month: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}$")
    """Such as ``2026-11``, UTC."""
    target: str = Field(max_length=400)
    """Namespace and name."""
    kernel: str = Field(max_length=1000)
    """Kernel."""
    spent_gpu_hours: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    """What experiments took."""
    experiments: _Count
    """How many that was."""
    saved_gpu_hours: ReportedHours
    """What swaps saved, by live proofs."""
    claimed_gpu_hours: ReportedHours = ReportedHours(lower=0.0, point=0.0, upper=0.0)
    """What experiments claim for other swaps."""
    swaps: _Count
    """How many ran."""
    proven: _Count = 0
    """Of those, how many were measured by a live proof."""
    taken_back: _Count
    """Of those, how many were rolled back."""


class Report(Record):
    """Content of the ConfigMap."""

    version: Literal[1] = 1
    """Of this form."""
    left_out: _Count = 0
    """Accounts that found no room, the oldest."""
    accounts: tuple[Reported, ...] = Field(default=(), max_length=_MAX_ROWS)
    """Newest month first."""


def report_map(namespace: str, accounts: Sequence[Account]) -> dict[str, Any]:
    """Return the ConfigMap of a namespace; accounts of others are left away.

    Parameters
    ----------
    accounts
        Newest month first.
    """
    rows = [_reported(each) for each in accounts if _is_of(each.target, namespace)]
    kept, size = 0, 0
    for row in rows[:_MAX_ROWS]:
        size += len(row.model_dump_json().encode()) + 1
        if size > MAX_BYTES:
            break
        kept += 1
    text = Report(left_out=len(rows) - kept, accounts=tuple(rows[:kept])).model_dump_json()
    metadata = {"name": REPORT, "namespace": namespace, "labels": labels("operator")}
    return {"metadata": metadata, "data": {KEY: text}}


def read_report(body: Mapping[str, Any], *, namespace: str) -> tuple[tuple[Account, ...], int]:
    """Return the accounts of a ConfigMap, and how many accounts it leaves out.

    Raises
    ------
    UnreadableInput
        If it is not what the operator writes, or speaks of another namespace.
    """
    data = body.get("data")
    text = data.get(KEY) if isinstance(data, Mapping) else None
    where = f"configmap {namespace}/{REPORT}"
    mend = "delete it, and the operator writes it again within ten minutes"
    if not isinstance(text, str):
        raise UnreadableInput("not-a-report", where=where, message=f"has no {KEY}; {mend}")
    try:
        found = Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"][:4])
        message = f"{place}: {first['msg']}; another version's, or not the operator's: {mend}"
        raise UnreadableInput("not-a-report", where=where, message=message) from error
    if not all(_is_of(each.target, namespace) for each in found.accounts):
        message = f"speaks of another namespace, so it is not the operator's: {mend}"
        raise UnreadableInput("not-a-report", where=where, message=message)
    return tuple(_account(each) for each in found.accounts), found.left_out


def _is_of(target: str, namespace: str) -> bool:
    return target.partition("/")[0] == namespace


def _hours(hours: Hours) -> ReportedHours:
    return ReportedHours(lower=hours.lower, point=hours.point, upper=hours.upper)


def _reported(account: Account) -> Reported:
    return Reported(
        month=account.month,
        target=account.target,
        kernel=account.definition,
        spent_gpu_hours=account.spent_h,
        experiments=account.experiments,
        saved_gpu_hours=_hours(account.saved_h),
        claimed_gpu_hours=_hours(account.claimed_h),
        swaps=account.swaps,
        proven=account.proven,
        taken_back=account.taken_back,
    )


def _account(row: Reported) -> Account:
    return Account(
        target=row.target,
        definition=row.kernel,
        month=row.month,
        spent_h=row.spent_gpu_hours,
        experiments=row.experiments,
        saved_h=row.saved_gpu_hours.hours(),
        claimed_h=row.claimed_gpu_hours.hours(),
        swaps=row.swaps,
        proven=row.proven,
        taken_back=row.taken_back,
    )
