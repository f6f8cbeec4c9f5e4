"""``retuned report``: GPU-hours spent on experiments against GPU-hours saved."""

from __future__ import annotations

from typing import Annotated

import typer

from retuned.cli.output import JsonFlag, emit_json
from retuned.cli.state import ConfigOption, StateOption, desk
from retuned.local.accounting import accounts
from retuned.settings import load_settings
from retuned.terminal.accounts import (
    accounts_body,
    check_kernel,
    check_month,
    chosen,
    print_accounts,
)


def report(
    month: Annotated[str, typer.Option(help="Only this month, such as 2026-11.")] = "",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Say what tuning cost and what it saved, by month, server and kernel."""
    check_month(month)
    with desk(config, state_dir) as at:
        whole = accounts(at.store)
        if kernel:
            known = {each.definition for each in whole}
            known |= {str(each.body.get("definition", "")) for each in at.store.list("proposal")}
            check_kernel(kernel, known)
    found = chosen(whole, month=month, kernel=kernel)
    price = load_settings(config, {"state_dir": state_dir}).gpu_hour_usd
    if json:
        emit_json(accounts_body(found, price=price))
    else:
        print_accounts(found, price=price, keeper="daemon")
