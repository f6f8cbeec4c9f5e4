"""Every error Retuned raises on purpose, as one tree.

RetunedError
├── UsageError            the command or its settings are wrong, or name what is nowhere exit 2
├── Refused               a request was declined: not allowed, or without an object      exit 1
├── UnreadableInput       a file, record or answer from outside cannot be understood     exit 3
│   └── PolicyInvalid     a gate policy, with each problem and its line                  exit 1
├── MissingDependency     a compiler, GPU, server or package that is needed is absent    exit 4
├── CandidateError        a candidate kernel broke its contract; never the harness' fault
│   ├── CompileFailed
│   ├── CandidateCrashed  died by a signal, or ran out of its memory limit
│   └── CandidateTimedOut
├── HarnessError          our own machinery failed; says nothing about the candidate     exit 5
└── TemporaryError        trying again later may succeed; carries the delay              exit 5
    └── PartialCommit     some processes of a server have an order and others have not

A message says what happened, where, and what to do about it. Each error has a stable `code` as
well, which is what a program reads; all that is not listed above ends with exit code 1.
"""

from __future__ import annotations

from dataclasses import dataclass


class RetunedError(Exception):
    """Base of all; catch it at a program's edge to print one clear line.

    Parameters
    ----------
    args
        The message, for a person.
    """

    exit_code = 1
    """Exit code of a program that ends with it."""
    code: str = "failed"
    """Stable reason, kebab-case, for a program."""
    where: str = ""
    """The place; empty where the message names it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.message = str(self)


class UsageError(RetunedError):
    """The command line or the settings are wrong, or name what is not there; nothing was done."""

    exit_code = 2
    code = "wrong-usage"


class Refused(RetunedError):
    """What was asked for is not allowed, or has no meaning now; nothing was done."""

    code = "refused"


class UnreadableInput(RetunedError):
    """Something from outside cannot be read.

    Parameters
    ----------
    code
        Stable reason, kebab-case, such as ``truncated-gzip``.
    where
        The place: a path, with row, byte offset or table where known.
    message
        What is wrong and what to do, one sentence for a person.
    """

    exit_code = 3

    def __init__(self, code: str, *, where: str, message: str) -> None:
        super().__init__(f"{where}: {message} [{code}]")
        self.code = code
        self.where = where
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in a policy file."""

    path: str
    """Dotted path to the field, for example ``spec.windows.0.timeZone``."""
    line: int | None
    """Line in the file, from 1; None where the field is absent."""
    message: str
    """What is wrong and what is accepted."""


class PolicyInvalid(UnreadableInput):
    """A gate policy that must not be used; fail closed."""

    exit_code = 1

    def __init__(self, where: str, *, problems: tuple[Problem, ...]) -> None:
        text = "; ".join(f"{p.path}: {p.message}" for p in problems)
        super().__init__("policy-invalid", where=where, message=text)
        self.problems = problems


class MissingDependency(RetunedError):
    """A thing that is needed is not on this machine; the message says how to get it."""

    exit_code = 4
    code = "missing-dependency"


class CandidateError(RetunedError):
    """The candidate broke its contract.

    Parameters
    ----------
    reason
        Stable code, the same vocabulary as verdicts use.
    detail
        Compiler output or the like, already shortened; from an untrusted source.
    """

    def __init__(self, reason: str, *, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.code = reason
        self.message = detail
        self.reason = reason
        self.detail = detail


class CompileFailed(CandidateError):
    """The compiler refused the source."""


class CandidateCrashed(CandidateError):
    """The child running the candidate died."""


class CandidateTimedOut(CandidateError):
    """The child running the candidate did not end in time and was killed."""


class HarnessError(RetunedError):
    """Our own machinery failed; no conclusion about the candidate may be drawn."""

    exit_code = 5
    code = "harness-failed"


class TemporaryError(RetunedError):
    """Trying again may succeed.

    Parameters
    ----------
    message
        What failed.
    delay_s
        Seconds to wait before the next try.
    """

    exit_code = 5
    code = "temporary"

    def __init__(self, message: str, *, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class PartialCommit(TemporaryError):
    """Some processes of a server carried an order out, and others did not or do not say.

    Parameters
    ----------
    message
        Who has it and who has not.
    cause
        What went wrong with the first that has not.
    delay_s
        Seconds to wait before the next try.
    """

    code = "partial-commit"

    def __init__(self, message: str, *, cause: RetunedError, delay_s: float) -> None:
        super().__init__(message, delay_s=delay_s)
        self.cause = cause
