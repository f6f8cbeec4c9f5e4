"""Lessons of live proofs in a store: signed, and in force until a person lifts them.

A lesson survives restarts, and no cleaning removes it.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import UnreadableInput
from retuned.ports import Notary, Store, Verifier
from retuned.stages.proposal import Lesson
from retuned.stages.verdict import Doubt
from retuned.store.envelopes import PASSING, payload_of, seal

log = logging.getLogger(__name__)

LESSON = "lesson"
"""Kind of the records: holds -> lifted -> holds."""
HOLDS = "holds"
"""Phase of a lesson in force."""
LIFTED = "lifted"
"""Phase of a lesson that a person has lifted, on one machine."""


def keep(store: Store, lesson: Lesson, *, id: str, notary: Notary) -> Digest:
    """Keep a lesson, and return the digest of its signed form; a lifted one is in force again.

    Parameters
    ----------
    id
        Of the record; the same proof has the same.

    Raises
    ------
    TemporaryError
        If it cannot be written.
    """
    signed = store.put_blob(seal(lesson.model_dump_json().encode(), notary=notary))
    body = {"lesson": lesson.model_dump(mode="json"), "evidence": signed}
    if not store.add(LESSON, id, body, phase=HOLDS):
        store.advance(LESSON, id, expect=LIFTED, to=HOLDS, body=body)
    return signed


def kept(store: Store, *, prefix: str = "", verifier: Verifier | None = None) -> list[Lesson]:
    """Return the lessons in force, oldest first; one that cannot be read is logged.

    Parameters
    ----------
    prefix
        Beginning of their records' ids; empty returns all.
    verifier
        Checks their signatures: a lesson that differs from its signed form is left out, and logged.
        None checks none.
    """
    found = []
    for stored in store.list(LESSON, phase=HOLDS, prefix=prefix):
        try:
            lesson, signed = Lesson.model_validate(stored.body["lesson"]), stored.body["evidence"]
            doubt = "" if verifier is None else _doubt(store, lesson, signed, verifier=verifier)
        except KeyError as error:
            doubt = f"its record has no {error}"
        except ValidationError as error:
            doubt = str(error)
        if doubt:
            log.error("lesson %s does not count: %s", stored.id, doubt)
        else:
            found.append(lesson)
    return found


def _doubt(store: Store, lesson: Lesson, signed: Digest, *, verifier: Verifier) -> str:
    """Return why a lesson is not the one that was signed; empty if it is, or if that is unknown.

    A signed form that cannot be read now is not evidence against the lesson.
    """
    try:
        text = payload_of(store.get_blob(signed), verifier=verifier)
    except OSError:
        return ""
    except UnreadableInput as error:
        return "" if error.code in PASSING else str(error)
    if isinstance(text, Doubt):
        return text.detail
    same = Lesson.model_validate_json(text) == lesson
    return "" if same else "its signed form is of another lesson"
