"""The commands about proposals: see, approve, reject, abort, roll back.

Every decision is a SwapDecision, written once and bound to the artifact and the policy that the
person saw. Its author is the user that the API server authenticates. Rollback and abort need no
confirmation.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from retuned.errors import Refused, UsageError
from retuned.stages.gate import DecisionKind
from retuned.stages.gate.description import live_proof_words
from retuned.text import print_fields, say, short_id
from retuned_operator.kube.errors import AlreadyExists
from retuned_operator.kube.resources import DECISIONS, EXPERIMENTS, PROPOSALS
from retuned_operator.kubectl import texts
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.kubectl.cluster_session import ClusterSession, full_name
from retuned_operator.kubectl.connection import open_desk
from retuned_operator.kubectl.decisions import (
    check_digest,
    check_phase,
    check_policy,
    decision_of,
    warnings,
)
from retuned_operator.kubectl.freezes import seen as seen_freezes
from retuned_operator.kubectl.options import (
    CommentOption,
    ContextOption,
    EverywhereOption,
    FormOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    ProposalArgument,
    print_answer,
)
from retuned_operator.schema import KernelExperiment, SwapDecision, SwapProposal, read, write

_SHORT = 12
"""Digits of a digest that a person types."""


def proposals(
    all: Annotated[bool, typer.Option("--all", help="Ended ones too.")] = False,
    namespace: NamespaceOption = "",
    all_namespaces: EverywhereOption = False,
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """List proposals and what each waits for."""
    desk = open_desk(
        namespace=namespace, everywhere=all_namespaces, context=context, kubeconfig=kubeconfig
    )
    known, unreadable = desk.all(PROPOSALS, SwapProposal)
    rows = [each for each in known if all or not each.status.phase.is_terminal]
    frozen = seen_freezes(desk)
    for error in unreadable:
        say(f"kubectl retuned: cannot be read: {error}")
    print_answer(
        output,
        {
            "proposals": [texts.summary(each) for each in rows],
            "freezes": [freeze.model_dump(mode="json") for freeze in frozen],
            "unreadable": [str(error) for error in unreadable],
        },
        names=[f"swapproposal.retuned.dev/{each.metadata.name}" for each in rows],
        text=lambda: texts.print_proposals(
            rows,
            freezes=frozen,
            now=desk.now,
            everywhere=all_namespaces,
            wide=output is OutputFormat.WIDE,
        ),
    )


def show(
    proposal: ProposalArgument,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Show one proposal: numbers, risk, policy, decisions, and what was done."""
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    found = desk.proposal(proposal)
    decisions, unreadable = desk.decisions(found)
    for error in unreadable:
        say(f"kubectl retuned: cannot be read, and holds proposals back: {error}")
    plan = _plan(found, desk)
    print_answer(
        output,
        texts.summary(found)
        | {
            "live_proof_plan": plan,
            "decisions": [texts.decision_body(each) for each in decisions],
            "proposal": write(found),
            "unreadable": [str(error) for error in unreadable],
        },
        names=[f"swapproposal.retuned.dev/{found.metadata.name}"],
        text=lambda: texts.print_proposal(found, decisions, plan=plan, now=desk.now),
    )


def _plan(found: SwapProposal, desk: ClusterSession) -> list[str]:
    """Return what a live proof will do, in sentences; empty once it has swapped."""
    if not found.status.phase.is_before_swap:
        return []
    try:
        return list(live_proof_words(desk.policy(found).spec.live_proof))
    except Refused:  # no policy, or not judged yet: the gate's sentence reports it
        return []


def approve(
    proposal: ProposalArgument,
    comment: CommentOption = "",
    digest: Annotated[
        str, typer.Option(help="Refuse unless the artifact is exactly this one.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needs --digest.")] = False,
    break_glass: Annotated[
        bool, typer.Option(help="Emergency: alone, outside the windows. Shows in the record.")
    ] = False,
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Approve the swap to the artifact that is shown, under the policy now in force."""
    if yes and not digest:
        raise UsageError("--yes needs --digest: the digest of the artifact that you approve")
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    kind = DecisionKind.BREAK_GLASS if break_glass else DecisionKind.APPROVE
    found = desk.proposal(proposal)
    check_phase(found, kind)
    check_digest(found, digest)
    policy = desk.policy(found)
    gate = check_policy(found, policy, kind=kind, comment=comment)
    who = desk.who()
    for warning in warnings(found, policy, who, kind=kind, comment=comment):
        say(f"kubectl retuned: may not count: {warning}")
    if not yes:
        _confirm(found, desk)
    word = decision_of(found, who, kind=kind, comment=comment, gate=gate)
    _give(desk, word, found, output)


def reject(
    proposal: ProposalArgument,
    comment: CommentOption = "",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Reject a proposal; one rejection ends it."""
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    _say_no(desk, proposal, DecisionKind.REJECT, comment=comment, output=output)


def abort(
    proposal: Annotated[
        str, typer.Argument(help="A proposal, or experiment/NAME for an experiment.")
    ],
    comment: CommentOption = "",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Stop a proposal in any phase; a swap under way is rolled back. Never gated."""
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    kind, _, name = proposal.partition("/")
    if kind in ("experiment", "kexp", "kernelexperiment"):
        _abort_experiment(desk, name, comment=comment, output=output)
    else:
        _say_no(desk, proposal, DecisionKind.ABORT, comment=comment, output=output)


def rollback(
    proposal: ProposalArgument,
    comment: CommentOption = "",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Take a swap back, a promoted one too. Never gated by windows, freezes or approvals."""
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    _say_no(desk, proposal, DecisionKind.ABORT, comment=comment, output=output, back=True)


def _say_no(
    desk: ClusterSession,
    asked: str,
    kind: DecisionKind,
    *,
    comment: str,
    output: OutputFormat,
    back: bool = False,
) -> None:
    found = desk.proposal(asked)
    check_phase(found, kind, back=back)
    word = decision_of(found, desk.who(), kind=kind, comment=comment, gate=found.status.gate)
    _give(desk, word, found, output)


def _give(
    desk: ClusterSession, word: SwapDecision, about: SwapProposal, output: OutputFormat
) -> None:
    """Write a decision; an identical earlier one counts as written."""
    body = write(word)
    body.pop("status", None)
    namespace, already = word.metadata.namespace, False
    with explained("create", DECISIONS, namespace=namespace):
        try:
            made = desk.cluster.create(DECISIONS, body)
        except AlreadyExists:
            made = desk.cluster.get(DECISIONS, word.metadata.name, namespace=namespace)
            already = True
    kept = read(SwapDecision, made)
    print_answer(
        output,
        {
            "decision": texts.decision_body(kept),
            "proposal": full_name(about),
            "already_said": already,
        },
        names=[f"swapdecision.retuned.dev/{kept.metadata.name}"],
        text=lambda: texts.print_decision(kept, about, already=already),
    )


def _abort_experiment(
    desk: ClusterSession, name: str, *, comment: str, output: OutputFormat
) -> None:
    namespace = desk.namespace
    found = desk.one(EXPERIMENTS, KernelExperiment, name, namespace=namespace) if name else None
    if found is None:
        raise UsageError(f"no experiment {name!r:.80} in namespace {namespace}")
    if found.status.phase.is_terminal:
        raise Refused(f"{full_name(found)} is {found.status.phase}; there is nothing to stop")
    wanted = {"requested": True, "reason": comment}
    with explained("patch", EXPERIMENTS, namespace=namespace):
        desk.cluster.patch(
            EXPERIMENTS, name, change={"spec": {"abort": wanted}}, namespace=namespace
        )
    print_answer(
        output,
        {"experiment": full_name(found), "abort": wanted},
        names=[f"kernelexperiment.retuned.dev/{name}"],
        text=lambda: print_fields([("aborted", full_name(found))]),
    )


def asks_a_person() -> bool:
    """Whether the standard input is a terminal."""
    return sys.stdin.isatty()


def _confirm(found: SwapProposal, desk: ClusterSession) -> None:
    """Ask the person to type the beginning of the digest, so that they read it.

    Raises
    ------
    UsageError
        If the standard input is not a terminal.
    Refused
        If it is another one.
    """
    artifact = found.spec.artifact.digest
    if not asks_a_person():
        raise UsageError(f"the input is not a terminal: add --yes --digest {artifact}")
    for name, value in texts.subject(found, now=desk.now):
        say(f"{name:12} {value}")
    typed = typer.prompt(
        f"Type the first {_SHORT} digits of the artifact to approve it", default="", err=True
    )
    if typed.strip().lower().removeprefix("sha256:") != short_id(artifact, length=_SHORT):
        raise Refused("that is not the artifact; nothing was approved")
