"""``kubectl retuned report``: GPU-hours spent on experiments against GPU-hours saved.

The operator writes one ConfigMap into each namespace with targets; this reads it. What
live proofs showed of claims is in the status of the proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

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
from retuned.control.lessons import calibrations_of
from retuned.errors import UnreadableInput
from retuned.stages.watch import Account
from retuned.stages.watch.proof import Calibration
from retuned.text import say
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import CONFIG_MAPS, PROPOSALS, TARGETS
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.kubectl.cluster_session import ClusterSession, full_name
from retuned_operator.kubectl.connection import open_desk
from retuned_operator.kubectl.options import (
    ContextOption,
    EverywhereOption,
    FormOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    print_answer,
)
from retuned_operator.manifests.report import REPORT, read_report
from retuned_operator.schema import SwapProposal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What the ConfigMaps say."""

    accounts: tuple[Account, ...]
    """Newest month first."""
    left_out: int
    """Accounts that found no room."""
    namespaces: Sequence[str]
    """Namespaces whose reports were read."""
    missing: Sequence[str]
    """Namespaces without a report."""
    unreadable: Sequence[UnreadableInput]
    """Errors of reports that could not be read."""


def report(
    month: Annotated[str, typer.Option(help="Only this month, such as 2026-11.")] = "",
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibration", help="Instead: claims of experiments beside what live proofs showed."
        ),
    ] = False,
    namespace: NamespaceOption = "",
    all_namespaces: EverywhereOption = False,
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Say what tuning cost and what it saved, by month, target and kernel."""
    check_month(month)
    desk = open_desk(
        namespace=namespace, everywhere=all_namespaces, context=context, kubeconfig=kubeconfig
    )
    if calibration:
        _calibrate(desk, month=month, kernel=kernel, output=output)
        return
    read = _look(desk)
    for error in read.unreadable:
        say(f"kubectl retuned: cannot be read: {error}")
    for each in read.missing:
        say(
            f"kubectl retuned: namespace {each} has no report: the operator writes it every ten "
            "minutes where there are targets"
        )
    if read.left_out:
        say(f"kubectl retuned: {read.left_out} older accounts found no room; the store has them")
    check_kernel(kernel, {each.definition for each in read.accounts})
    found = chosen(read.accounts, month=month, kernel=kernel)
    print_answer(
        output,
        accounts_body(found, price=None)
        | {
            "left_out": read.left_out,
            "missing": list(read.missing),
            "unreadable": [str(each) for each in read.unreadable],
        },
        names=[f"configmap/{REPORT}" for _ in read.namespaces],
        text=lambda: print_accounts(found, price=None, keeper="operator"),
    )


def _calibrate(desk: ClusterSession, *, month: str, kernel: str, output: OutputFormat) -> None:
    """Print what experiments claimed beside what live proofs of the cluster showed."""
    proposals, unreadable = desk.all(PROPOSALS, SwapProposal)
    faults, proven = [str(error) for error in unreadable], list[Calibration]()
    for each in proposals:
        try:
            proven += calibrations_of(each)
        except ValueError as error:  # a verdict of another release
            faults.append(f"SwapProposal {full_name(each)}: {error}")
    for fault in faults:
        say(f"kubectl retuned: cannot be read: {fault}")
    check_kernel(kernel, {each.spec.kernel for each in proposals})
    proven.sort(key=lambda each: each.at)
    found = chosen_calibrations(proven, month=month, kernel=kernel)
    print_answer(
        output,
        calibration_body(found) | {"unreadable": faults},
        names=[f"swapproposal.retuned.dev/{each.proposal}" for each in found],
        text=lambda: print_calibration(found),
    )


def _look(desk: ClusterSession) -> _Read:
    accounts: list[Account] = []
    namespaces, missing, unreadable, left_out = [], [], list[UnreadableInput](), 0
    for namespace in [desk.namespace] if desk.namespace else _with_targets(desk):
        try:
            with explained("get", CONFIG_MAPS, namespace=namespace):
                body = desk.cluster.get(CONFIG_MAPS, REPORT, namespace=namespace)
            found, more = read_report(body, namespace=namespace)
        except NotFound:
            missing.append(namespace)
        except UnreadableInput as error:
            unreadable.append(error)
        else:
            namespaces.append(namespace)
            accounts += found
            left_out += more
    accounts.sort(key=lambda each: (each.target, each.definition))
    accounts.sort(key=lambda each: each.month, reverse=True)
    return _Read(
        accounts=tuple(accounts),
        left_out=left_out,
        namespaces=namespaces,
        missing=missing,
        unreadable=unreadable,
    )


def _with_targets(desk: ClusterSession) -> list[str]:
    with explained("list", TARGETS):
        listed = desk.cluster.list(TARGETS)
    return sorted({str(body.get("metadata", {}).get("namespace", "")) for body in listed.items})
