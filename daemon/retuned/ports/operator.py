"""The operator, as a sidecar sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from retuned.api.agent import Ack, Hello, OrderDone, Orders, Report, Welcome
from retuned.contract import Digest


class Operator(Protocol):
    """The operator of a cluster, as a sidecar asks it; it may be away for hours.

    Every method may raise `TemporaryError`: it does not answer, is busy, or does not know the
    token; and `Refused` with the operator's stable code: asking the same again is of no use.
    """

    def hello(self, hello: Hello) -> Welcome:
        """Say who is here, and learn which key signs artifacts.

        Raises
        ------
        TemporaryError
            If it does not answer.
        Refused
            ``not-your-pod``, ``pod-unknown``, ``pod-replaced``, ``no-target``, ``body-invalid``.
        UnreadableInput
            If its answer cannot be read.
        """
        ...

    def post(self, report: Report, *, traceparent: str = "") -> Ack:
        """Tell a profile, a drift or how the slots stand; telling it again changes nothing.

        Parameters
        ----------
        traceparent
            Span in which it was found; empty where traces are off.

        Raises
        ------
        TemporaryError
            If it does not answer or cannot keep it now.
        Refused
            As `hello`, and ``body-too-large``.
        UnreadableInput
            If its answer cannot be read.
        """
        ...

    def orders(self, *, after: int, wait_s: float) -> Orders:
        """Return all that this pod is to have, once it is not what `after` names.

        Parameters
        ----------
        after
            Revision that is known; 0 knows none, and is answered at once.
        wait_s
            Longest wait, seconds; then the set is returned as it is.

        Raises
        ------
        TemporaryError
            If it does not answer.
        Refused
            As `hello`.
        UnreadableInput
            If its answer cannot be read.
        """
        ...

    def artifact(self, digest: Digest, *, folder: Path) -> None:
        """Write the files of an artifact into an empty folder; what it claims to be is unproven.

        Raises
        ------
        TemporaryError
            If it does not answer, or stops in the middle.
        Refused
            ``artifact-unknown``, ``artifact-damaged``, ``artifact-too-large``.
        UnreadableInput
            ``bundle-invalid`` or ``bundle-corrupt``: what came is not what was announced.
        OSError
            If the folder cannot be written.
        """
        ...

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        """Tell what became of an order; telling it again changes nothing.

        Parameters
        ----------
        traceparent
            Span in which that happened; empty where traces are off.

        Raises
        ------
        TemporaryError
            If it does not answer or cannot keep it now.
        Refused
            As `hello`.
        """
        ...
