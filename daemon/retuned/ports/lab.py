"""What an experiment needs: a bench, proposers of variants, and keys that sign what was found."""

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
    """One candidate's way through the lab."""

    solution: Solution
    """What was tried."""
    verdict: Verdict
    """What the judge said."""
    seconds: float
    """Wall time it cost."""
    definition: Digest | None = None
    """Content of the definition that it was tried against; None where nobody wrote it down."""


class Bench(Protocol):
    """A lab that carries out a plan: this machine's child processes, or pods."""

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
        """Return the raw numbers that a verdict names; None if the lab has none of that name."""
        ...

    def turns(self, plan: str) -> Sequence[Turn]:
        """Return which generators were asked for candidates of a plan, oldest first.

        Parameters
        ----------
        plan
            The plan's id. Turns may be forgotten once the daemon starts anew after the plan's end.
        """
        ...

    def stop(self) -> None:
        """End the run in flight, from another thread, and begin none any more.

        The run raises `TemporaryError`: what it has yielded is kept, the rest is resumed later.
        """
        ...


class EndToEnd(Protocol):
    """A running server as its users see it: the same requests, sent again and again."""

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
    """Who speaks."""
    content: str
    """The text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question to a language model."""

    messages: tuple[ChatMessage, ...]
    """The conversation; everything that is sent."""
    purpose: Mapping[str, int | str] = field(default_factory=dict)
    """What the asker wants to find again in `ChatModel.exchanges`; never sent."""
    max_tokens: int = 4096
    """Longest answer, tokens."""

    @property
    def digest(self) -> Digest:
        """Content digest: the same question is asked, and paid, once."""
        messages = [[message.role, message.content] for message in self.messages]
        purpose = sorted(self.purpose.items())
        return digest_of([messages, [list(pair) for pair in purpose], self.max_tokens])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What the model said; a stranger's text, whatever it says."""

    request: Digest
    """Digest of the question as it was sent; transcripts name it."""
    text: str
    """The answer, with secrets taken out."""
    finish: str
    """Why it ended: ``stop``, or ``length`` where it was cut off."""
    prompt_tokens: int
    """What was read, as reported, or else the most it can have been."""
    completion_tokens: int
    """What was written, as reported, or else the most it can have been."""
    usd: float
    """What it cost."""
    replayed: bool = False
    """Whether it was paid for earlier."""


class ChatModel(Protocol):
    """A language model behind a budget, and what was said so far in one conversation."""

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
        """Return every question that was answered, oldest first."""
        ...


class Verifier(Protocol):
    """Says whether somebody signed something."""

    def check(self, payload: bytes, *, key: str, signature: bytes) -> EvidenceFault | None:
        """Return what is wrong: ``evidence-key-unknown``, ``-key-revoked``, ``evidence-altered``.

        Raises
        ------
        UnreadableInput
            If the keys cannot be read; treat that as doubt.
        """
        ...


class Notary(Verifier, Protocol):
    """Signs what was measured, and knows its own signatures."""

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
