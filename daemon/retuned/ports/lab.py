"""Ports of an experiment: a bench, generators of variants, and keys that sign evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from retuned.contract import Definition, Digest, Solution, Workload, digest_of
from retuned.stages.experiment import ExperimentPlan, Turn
from retuned.stages.verdict import EvidenceFault, Verdict
from retuned.stages.watch import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One candidate's verdict and cost."""

    solution: Solution
    verdict: Verdict
    seconds: float
    """Wall time."""
    definition: Digest | None = None
    """Digest of the definition that it was tested against; None if not recorded."""


class Bench(Protocol):
    """A lab that runs a plan in child processes of this machine or in pods."""

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        """Yield a finding per candidate as soon as it is final, so that each is paid once.

        `known` holds findings of an earlier, interrupted run of the same plan: they are not
        measured again.

        Raises
        ------
        HarnessError
            If the lab itself failed; nothing may be concluded.
        MissingDependency
            If this machine lacks a compiler or device.
        """
        ...

    def build(self, solution: Solution) -> Path:
        """Return the folder of the compiled artifact, ready for `Swapper.prepare`."""
        ...

    def evidence(self, digest: Digest) -> bytes | None:
        """Return the evidence with a digest; None if the lab does not have it."""
        ...

    def turns(self, plan: str) -> Sequence[Turn]:
        """Return the requests to generators for a plan, oldest first.

        Parameters
        ----------
        plan
            The plan's id. After the plan's end, a restart of the daemon may lose its turns.
        """
        ...

    def stop(self) -> None:
        """End the current run, from another thread, and refuse new ones.

        The run raises `TemporaryError`: its findings so far are kept, the rest is resumed later.
        """
        ...


class EndToEnd(Protocol):
    """A running server as clients see it: the same requests, sent repeatedly."""

    def serve(self) -> Served:
        """Send every request once, several at a time, and return all answers with their times.

        A request that fails is an answer that failed.

        Raises
        ------
        TemporaryError
            If the server answers none of them.
        """
        ...


class Generator(Protocol):
    """Proposes variants; never judges them."""

    name: str

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return up to `count` variants not in `history`; empty means the space is exhausted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message to a language model."""

    role: Literal["system", "user"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request to a language model."""

    messages: tuple[ChatMessage, ...]
    """The conversation: everything that is sent."""
    purpose: Mapping[str, int | str] = field(default_factory=dict)
    """Data of the caller to find the request in `ChatModel.exchanges`; never sent."""
    max_tokens: int = 4096
    """Longest answer, tokens."""

    @property
    def digest(self) -> Digest:
        """Content digest; a request is sent and paid for once."""
        messages = [[message.role, message.content] for message in self.messages]
        purpose = sorted(self.purpose.items())
        return digest_of([messages, [list(pair) for pair in purpose], self.max_tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """Response of the model; untrusted text."""

    request: Digest
    """Digest of the request as it was sent; transcripts name it."""
    text: str
    """The response, with secrets removed."""
    finish: str
    """Why it ended: ``stop``, or ``length`` where it was cut off."""
    prompt_tokens: int
    """Input tokens as reported, else an upper bound."""
    completion_tokens: int
    """Output tokens as reported, else an upper bound."""
    usd: float
    """Cost, US dollars."""
    replayed: bool = False
    """Whether it was paid for earlier."""


class ChatModel(Protocol):
    """A language model behind a budget, with the exchanges of one conversation."""

    def ask(self, request: ChatRequest) -> ChatAnswer:
        """Return the model's answer; one that was paid for earlier is not asked for again.

        Raises
        ------
        Refused
            With the code ``budget-spent``, ``transcript-full``, ``endpoint-refused`` or
            ``redirected``: asking again is of no use.
        TemporaryError
            If the model did not answer after all tries.
        UnreadableInput
            If no try brought an answer that can be read.
        """
        ...

    def exchanges(self) -> Sequence[tuple[ChatRequest, ChatAnswer]]:
        """Return every request with its response, oldest first."""
        ...


class Verifier(Protocol):
    """Checks signatures."""

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Return what is wrong: ``evidence-key-unknown``, ``-key-revoked``, ``evidence-altered``.

        Raises
        ------
        UnreadableInput
            If the keys cannot be read; treat the payload as unverified.
        """
        ...


class Notary(Verifier, Protocol):
    """Signs evidence and checks its own signatures."""

    def sign(self, payload: bytes) -> tuple[str, bytes]:
        """Return the name of the key and the signature; a first key is made where there is none.

        Raises
        ------
        UnreadableInput
            If the key is there and cannot be used.
        TemporaryError
            If no key can be kept.
        """
        ...
