"""``kubectl retuned rearm --lessons``: a person lifts what live proofs have shown of a kernel.

The target's spec has what was lifted, and until when. The operator reads it; the lessons stay in
its store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from retuned.api.target import LiftedLessons, TargetLesson
from retuned.errors import Refused, UsageError
from retuned.text import safe, say, stdout
from retuned_operator.kube.resources import TARGETS
from retuned_operator.kubectl.api_errors import explained
from retuned_operator.kubectl.cluster_session import ClusterSession, full_name
from retuned_operator.kubectl.connection import open_desk
from retuned_operator.kubectl.options import (
    ContextOption,
    FormOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    print_answer,
)
from retuned_operator.schema import TuningTarget

_LONGEST_REASON = 1000
_MOST = 64
"""Kernels in a target's spec, the newest."""


def rearm(
    kernel: Annotated[str, typer.Argument(help="Kernel whose lessons are lifted.")],
    reason: Annotated[str, typer.Option("--reason", "--comment", "-m", help="Why.")] = "",
    lessons: Annotated[
        bool, typer.Option("--lessons", help="Lift what live proofs of the kernel have shown.")
    ] = False,
    target: Annotated[
        str, typer.Option(help="Which target; not needed where one has such lessons.")
    ] = "",
    namespace: NamespaceOption = "",
    context: ContextOption = "",
    kubeconfig: KubeconfigOption = None,
    output: FormOption = OutputFormat.TABLE,
) -> None:
    """Lift the lessons of live proofs about a kernel, so that similar claims are proposed again.

    It swaps nothing. It needs a reason, which it writes into the target's spec.
    """
    why = reason.strip()
    if not lessons:
        raise UsageError("--lessons is needed: in a cluster nothing else can be rearmed")
    if not why:
        raise UsageError("--reason is needed: the new knowledge since the proof")
    if len(why) > _LONGEST_REASON:
        raise UsageError(f"--reason has {len(why)} characters; {_LONGEST_REASON} are kept")
    desk = open_desk(namespace=namespace, everywhere=False, context=context, kubeconfig=kubeconfig)
    found = _target(desk, kernel, named=target)
    gone = _of(found, kernel)
    newest = max(each.at for each in gone)
    _lift(desk, found, LiftedLessons(kernel=kernel, at=max(newest, desk.now), reason=why))
    words = [f"{safe(kernel)}: {safe(each.sentence, limit=1000)}" for each in gone]
    print_answer(
        output,
        {
            "target": full_name(found),
            "kernel": kernel,
            "reason": why,
            "lifted": [each.model_dump(mode="json", by_alias=True) for each in gone],
        },
        names=[f"tuningtarget.retuned.dev/{found.metadata.name}"],
        text=lambda: stdout().print(
            f"Lifted in {full_name(found)}:\n" + "\n".join(words), soft_wrap=True
        ),
    )


def _target(desk: ClusterSession, kernel: str, *, named: str) -> TuningTarget:
    """Return the target whose lessons on a kernel are meant.

    Raises
    ------
    UsageError
        If no target is meant, or several are.
    Refused
        If no lesson on the kernel holds there.
    """
    known, unreadable = desk.all(TARGETS, TuningTarget)
    for error in unreadable:
        say(f"kubectl retuned: cannot be read: {error}")
    if named:
        known = [each for each in known if each.metadata.name == named]
        if not known:
            raise UsageError(f"no target {named!r:.80} in namespace {desk.namespace}")
    able = [each for each in known if _of(each, kernel)]
    if not able:
        raise Refused(f"no lesson on {safe(kernel, limit=80)} holds; see `kubectl retuned status`")
    if len(able) > 1:
        names = ", ".join(each.metadata.name for each in able)
        raise UsageError(f"several targets have lessons on it: {names}; name one with --target")
    return able[0]


def _of(target: TuningTarget, kernel: str) -> Sequence[TargetLesson]:
    return [each for each in target.status.lessons if each.kernel == kernel]


def _lift(desk: ClusterSession, target: TuningTarget, entry: LiftedLessons) -> None:
    """Write the lifted lessons, unless another client has changed the target since."""
    rest = [each for each in target.spec.lifted_lessons if each.kernel != entry.kernel]
    kept = sorted(rest, key=lambda each: each.at)[-_MOST + 1 :]
    change = {
        "metadata": {"resourceVersion": target.metadata.resource_version},
        "spec": {
            "liftedLessons": [
                each.model_dump(mode="json", by_alias=True) for each in (*kept, entry)
            ]
        },
    }
    namespace = target.metadata.namespace
    with explained("patch", TARGETS, namespace=namespace):
        desk.cluster.patch(TARGETS, target.metadata.name, change=change, namespace=namespace)
