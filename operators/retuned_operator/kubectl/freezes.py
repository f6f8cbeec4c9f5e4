"""``kubectl retuned freeze`` and ``thaw``: the stop sign for the cluster or a part of it."""

from __future__ import annotations

from typing import Annotated

import typer

from retuned.api.decision import TuningFreezeSpec
from retuned.errors import Refused, UsageError
from retuned.report.proposal_text import end_words, scope_words
from retuned.stages.gate import StopPolicy
from retuned.stages.gate import TuningFreeze as Sign
from retuned.text import safe, say, stdout, until
from retuned_operator.kube.errors import NotFound
from retuned_operator.kube.resources import FREEZES
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.kubectl.cluster_session import ClusterSession
from retuned_operator.kubectl.connection import open_desk
from retuned_operator.kubectl.options import (
    ContextOption,
    FormOption,
    KubeconfigOption,
    OutputFormat,
    print_answer,
)
from retuned_operator.manifests.names import child_name
from retuned_operator.schema import API_VERSION, FreezeScope, ObjectMeta, TuningFreeze, read, write

_KIND = "tuningfreeze.retuned.dev"


def seen(desk: ClusterSession) -> list[Sign]:
    """Return the freezes in force; none, with a warning, if the caller may not list them."""
    try:
        return standing(desk)
    except Refused as error:  # a role in one namespace does not reach them
        say(f"kubectl retuned: whether something is frozen cannot be seen: {error}")
        return []


def standing(desk: ClusterSession) -> list[Sign]:
    """Return the freezes in force; print a warning for each that cannot be read.

    Raises
    ------
    Refused
        If the caller may not see them.
    """
    known, unreadable = desk.all(FREEZES, TuningFreeze)
    for error in unreadable:
        say(f"kubectl retuned: a freeze cannot be read, so everything is held: {error}")
    signs = [each.stage_freeze() for each in known]
    return [each for each in signs if each.until is None or desk.now < each.until]


def freeze(
    reason: Annotated[str, typer.Option("--reason", "--comment", "-m", help="Why.")] = "",
    until_: Annotated[
        str, typer.Option("--until", help="2h, or a time like 2026-12-24T18:00+01:00.")
    ] = "",
    target: Annotated[
        list[str] | None, typer.Option(help="Only these, as NAMESPACE/NAME (glob).")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="Only these kernels (glob).")] = None,
    stop: Annotated[
        StopPolicy, typer.Option(help="What becomes of swaps under way and promoted ones.")
    ] = StopPolicy.HOLD,
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """No new experiments and swaps, in the whole cluster or a part of it.

    What is measured or swapped already goes on, and so do watching and rollbacks; --stop takes
    swaps back as well.
    """
    desk = open_desk(namespace="", everywhere=True, context=context, kubeconfig=kubeconfig)
    user = desk.who().user
    spec = TuningFreezeSpec(
        stop_policy=stop,
        scope=FreezeScope(targets=tuple(target or ()), kernels=tuple(kernel or ())),
        until=until(until_, now=desk.now) if until_ else None,
        reason=reason,
        user=user,
    )
    name = f"{desk.now:%Y%m%d-%H%M%S}-" + child_name("x", user, desk.now.isoformat())[2:8]
    made = TuningFreeze(
        api_version=API_VERSION,
        kind="TuningFreeze",
        metadata=ObjectMeta(name=f"freeze-{name}"),
        spec=spec,
    )
    body = write(made)
    body.pop("status", None)
    with explained("create", FREEZES):
        sign = read(TuningFreeze, desk.cluster.create(FREEZES, body)).stage_freeze()
    words = f"Frozen {scope_words(sign.scope)}, {end_words(sign)} ({sign.id})."
    print_answer(
        output,
        {"freeze": sign.model_dump(mode="json")},
        names=[f"{_KIND}/{sign.id}"],
        text=lambda: stdout().print(
            safe(words, limit=4000) + "\nRollbacks stay possible; `kubectl retuned thaw` lifts it.",
            soft_wrap=True,
        ),
    )


def thaw(
    name: Annotated[str, typer.Argument(help="Which freeze; not needed if only one.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Every freeze in force.")] = False,
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Lift a freeze."""
    desk = open_desk(namespace="", everywhere=True, context=context, kubeconfig=kubeconfig)
    chosen = [name] if name else [each.id for each in standing(desk)]
    if len(chosen) > 1 and not all:
        names = ", ".join(chosen)
        raise UsageError(f"{len(chosen)} freezes are in force: {names}; name one, or --all")
    lifted = [each for each in chosen if _lifted(desk, each)]
    if name and not lifted:
        raise UsageError(f"no freeze {name[:60]!r} is in force; see `kubectl retuned status`")
    if not lifted:
        raise Refused("nothing is frozen")
    print_answer(
        output,
        {"thawed": lifted},
        names=[f"{_KIND}/{each}" for each in lifted],
        text=lambda: stdout().print(safe(f"Lifted {', '.join(lifted)}.", limit=1000)),
    )


def _lifted(desk: ClusterSession, name: str) -> bool:
    try:
        with explained("delete", FREEZES):
            desk.cluster.delete(FREEZES, name)
    except NotFound:
        return False
    return True
