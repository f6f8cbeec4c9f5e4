"""An AdmissionReview in, an AdmissionReview out. Pure.

Every pod is admitted. One that requests the sidecar and cannot take it is admitted unchanged, with
a warning for its author and a note in the audit log.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retuned.errors import UnreadableInput
from retuned_operator.manifests.injection import Injection, NotInjected, inject
from retuned_operator.manifests.settings import SidecarSettings

MAX_REVIEW_BYTES = 4 * 2**20
"""Largest review that is read; a pod is 1.5 MiB at most."""
INJECTED = "injected"
"""What became of a pod that got the sidecar."""
FAILED = "failed"
"""What became of a pod that our own fault kept from the sidecar."""
_AUDIT = "sidecar"
"""Key of the note in the audit log, below the name of the webhook."""
_MAX_WARNING = 250
"""Longer warnings are cut by the API server."""
_MAX_UID = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResponse:
    """The answer to the API server."""

    body: Mapping[str, Any]
    """The AdmissionReview."""
    outcome: str
    """``injected``, ``failed``, or why the pod is left as it is, stable code."""
    subject: str
    """Namespace and name of the pod, or the beginning of its name."""


def parse(text: bytes) -> Mapping[str, Any]:
    """Read a review.

    Raises
    ------
    UnreadableInput
        ``not-json`` or ``no-review``.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable("not-json", str(error)[:100]) from None
    request = body.get("request") if isinstance(body, dict) else None
    if body.get("apiVersion") != "admission.k8s.io/v1" if isinstance(body, dict) else True:
        raise _unreadable("no-review", "expected an AdmissionReview of admission.k8s.io/v1")
    uid = request.get("uid") if isinstance(request, dict) else None
    if not isinstance(uid, str) or not 0 < len(uid) <= _MAX_UID:
        raise _unreadable("no-review", "the review has no request with a uid")
    found: dict[str, Any] = body
    return found


def answer(review: Mapping[str, Any], *, settings: SidecarSettings) -> AdmissionResponse:
    """Answer a review that `parse` has read.

    Parameters
    ----------
    review
        From the API server.
    settings
        How the sidecar looks.
    """
    request = review["request"]
    pod = request.get("object")
    if not _is_new_pod(request) or not isinstance(pod, Mapping):
        return _answered(request, NotInjected.NOT_A_POD, detail="only new pods are injected")
    result = inject(pod, settings=settings)
    if result.reason is not None:
        return _answered(request, result.reason, detail=result.detail)
    return _with_patch(request, result)


def admitted(review: Mapping[str, Any]) -> AdmissionResponse:
    """Answer a review where our own fault keeps the pod from the sidecar."""
    return _answered(review["request"], None, detail="the operator failed; see its log")


def _is_new_pod(request: Mapping[str, Any]) -> bool:
    kind = request.get("kind")
    return (
        isinstance(kind, Mapping)
        and (kind.get("group"), kind.get("kind")) == ("", "Pod")
        and request.get("operation") == "CREATE"
        and not request.get("subResource")
    )


def _with_patch(request: Mapping[str, Any], result: Injection) -> AdmissionResponse:
    patch = json.dumps(list(result.patch), allow_nan=False).encode()
    response = {
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch).decode(),
        "auditAnnotations": {_AUDIT: INJECTED},
    }
    return _answer(request, response, INJECTED)


def _answered(
    request: Mapping[str, Any], reason: NotInjected | None, *, detail: str
) -> AdmissionResponse:
    code = FAILED if reason is None else str(reason)
    response: dict[str, Any] = {"auditAnnotations": {_AUDIT: code}}
    if reason is None or reason.is_trouble:
        response["warnings"] = [_warning(f"retuned: no sidecar: {detail}", code)]
    return _answer(request, response, code)


def _answer(
    request: Mapping[str, Any], response: Mapping[str, Any], outcome: str
) -> AdmissionResponse:
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": request["uid"], "allowed": True, **response},
    }
    return AdmissionResponse(body=body, outcome=outcome, subject=_subject(request))


def _subject(request: Mapping[str, Any]) -> str:
    pod = request.get("object")
    metadata = pod.get("metadata") if isinstance(pod, Mapping) else None
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = request.get("name") or metadata.get("name") or metadata.get("generateName") or ""
    return _plain(f"{request.get('namespace', '')}/{name}")[:320]


def _warning(text: str, code: str) -> str:
    end = f" [{code}]"
    return _plain(text)[: _MAX_WARNING - len(end)] + end


def _plain(text: str) -> str:
    """Leave ASCII that a header and a terminal can carry."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


def _unreadable(code: str, message: str) -> UnreadableInput:
    return UnreadableInput(code, where="admission review", message=message)
