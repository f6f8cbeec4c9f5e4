"""The operator's API, as a sidecar calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from retuned.api.agent import Ack, Hello, OrderDone, Orders, Report, Welcome
from retuned.contract import Digest


class Operator(Protocol):
    """The operator of a cluster, called by a sidecar; it may be unreachable for hours.

    Every method may raise `TemporaryError`: the operator does not answer, is busy, or does not
    recognize the token. It may raise `Refused` with the operator's code: a retry does not help.
    """

    def hello(self, hello: Hello) -> Welcome:
        """Announce the sidecar and return the operator's response with its signing key.

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
        """Report a profile, drift, live kernel or slot status; idempotent.

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
        """Return this pod's orders once their revision differs from `after`.

        Parameters
        ----------
        after
            Last known revision; with 0 the operator answers immediately.
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
        """Write the files of an artifact into an empty folder; its content is unverified.

        Raises
        ------
        TemporaryError
            If it does not answer, or stops in the middle.
        Refused
            ``artifact-unknown``, ``artifact-damaged``, ``artifact-too-large``.
        UnreadableInput
            ``bundle-invalid`` or ``bundle-corrupt``: the content does not match its header.
        OSError
            If the folder cannot be written.
        """
        ...

    def done(self, said: OrderDone, *, traceparent: str = "") -> None:
        """Report the outcome of an order; idempotent.

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
