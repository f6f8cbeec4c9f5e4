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
from retuned.store.envelopes import payload_of, seal

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
            lesson = Lesson.model_validate(stored.body["lesson"])
            if verifier is not None:
                _check(store, lesson, signed=stored.body["evidence"], verifier=verifier)
        except (KeyError, ValidationError, UnreadableInput) as error:
            log.error("lesson %s is not believed: %s", stored.id, error)
        else:
            found.append(lesson)
    return found


def _check(store: Store, lesson: Lesson, *, signed: Digest, verifier: Verifier) -> None:
    """Raise where a lesson is not the one that was signed."""
    text = payload_of(store.get_blob(signed), verifier=verifier)
    if isinstance(text, Doubt):
        raise UnreadableInput("lesson-altered", where=signed, message=text.detail)
    if Lesson.model_validate_json(text) != lesson:
        message = "is of another lesson than the record"
        raise UnreadableInput("lesson-altered", where=signed, message=message)
