"""Lessons of live proofs in a store: signed, and in force until a person lifts them.

A lesson survives restarts, and no cleaning removes it.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.ports import Notary, Store
from retuned.stages.proposal import Lesson
from retuned.store.envelopes import seal

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


def kept(store: Store, *, prefix: str = "") -> list[Lesson]:
    """Return the lessons in force, oldest first; one that cannot be read is logged.

    Parameters
    ----------
    prefix
        Beginning of their records' ids; empty returns all.
    """
    found = []
    for stored in store.list(LESSON, phase=HOLDS, prefix=prefix):
        try:
            found.append(Lesson.model_validate(stored.body["lesson"]))
        except (KeyError, ValidationError) as error:
            log.error("lesson %s cannot be understood: %s", stored.id, error)
    return found
