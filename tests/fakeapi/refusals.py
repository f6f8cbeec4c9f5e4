"""What the fake API server answers when it does not do what was asked."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """An answer that is no object.

    Parameters
    ----------
    code
        HTTP status.
    reason
        Kubernetes' code.
    """

    def __init__(self, code: int, reason: str, *, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def body(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def not_found(plural: str, name: str) -> Refusal:
    return Refusal(404, "NotFound", message=f'{plural} "{name}" not found')


def exists(plural: str, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", message=f'{plural} "{name}" already exists')


def changed(plural: str, name: str) -> Refusal:
    text = f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'
    return Refusal(409, "Conflict", message=text)


def bad(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message=message)


def invalid(kind: str, name: str, *, message: str) -> Refusal:
    return Refusal(422, "Invalid", message=f'{kind} "{name}" is invalid: {message}')


def expired() -> Refusal:
    return Refusal(410, "Expired", message="too old resource version")
