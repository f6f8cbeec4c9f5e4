"""Tables that were made from wins: their text, signed for a target, and what they were made from.

The artifact of a win on a tunable is the text of a table. An order names the digest of the text,
people approve that digest, and a server verifies it. A record keeps which variant was proven.
"""

from __future__ import annotations

import hashlib
import logging

from pydantic import Field, ValidationError

from retuned.contract import Digest, Guard, Name, Record, Solution
from retuned.errors import CandidateError
from retuned.ports import Store
from retuned.stages.proposal import (
    Proposal,
    TableText,
    proves,
    read_table,
    rules_in,
    variant_of,
)
from retuned.store.artifact_folder import MANIFEST
from retuned_operator.store.artifacts import ArtifactFolders
from retuned_operator.store.reports import SOLUTION

log = logging.getLogger(__name__)

TABLE = "table"
"""Kind of the records of tables, by the digest of their text: final."""


class StoredTable(Record):
    """A table, and the proof that it rests on."""

    definition: Name
    solution: Digest
    """Variant that was proven."""
    guard: Guard
    """Launches for which it was."""
    text: str = Field(max_length=32 << 10)


def find_table(store: Store, digest: Digest) -> StoredTable | None:
    """Return a table by the digest of its text; None if it is not stored or not readable."""
    stored = store.get(TABLE, digest)
    if stored is None:
        return None
    try:
        found = StoredTable.model_validate(stored.body)
    except ValidationError as error:
        log.error("table %s cannot be read: %d faults", digest, error.error_count())
        return None
    if "sha256:" + hashlib.sha256(found.text.encode()).hexdigest() != digest:
        log.error("table %s has another text", digest)
        return None
    return found


def shown_table(store: Store, digest: Digest) -> Solution | None:
    """Return a table as a variant with all of its rules, for people; None if it is not a table."""
    found = find_table(store, digest)
    if found is None:
        return None
    return variant_of(found.definition, rules_in(found.text), author="search")


class TableStore:
    """The operator's tables.

    Parameters
    ----------
    store
        Records.
    artifacts
        Signed folders.
    """

    def __init__(self, store: Store, artifacts: ArtifactFolders) -> None:
        self._store = store
        self._artifacts = artifacts

    def keep(self, table: TableText, solution: Solution, *, guard: Guard, target: str) -> None:
        """Keep a table and sign it for its target; keeping it again signs it again.

        Raises
        ------
        TemporaryError
            If it cannot be written now.
        """
        record = StoredTable(
            definition=table.definition, solution=solution.digest, guard=guard, text=table.text
        )
        self._artifacts.keep(
            table.digest,
            {MANIFEST: table.text.encode()},
            definition=table.definition,
            target=target,
        )
        body = record.model_dump(mode="json")
        before = self._store.get(TABLE, table.digest)
        if before is None:
            self._store.add(TABLE, table.digest, body, phase="final")
        elif dict(before.body) != body:
            # another win may lead to the same text; the newest is what is proposed
            self._store.advance(TABLE, table.digest, expect="final", to="final", body=body)

    def find(self, digest: Digest) -> StoredTable | None:
        """Return a table by the digest of its text; None if it is not stored."""
        return find_table(self._store, digest)

    def proven(self, proposal: Proposal) -> Digest | None:
        """Return the variant that was proven for a proposal's table; None if the table has more.

        The rules of the table are computed again: those of the variant within the proposal's guard,
        then those of the table that it replaces.
        """
        found = self.find(proposal.artifact)
        stored = self._store.get(SOLUTION, found.solution) if found is not None else None
        if found is None or stored is None or found.definition != proposal.definition:
            return None
        try:
            solution = Solution.model_validate(stored.body)
            below = read_table(found.text).before
            before = self.find(below) if below is not None else None
            if below is not None and before is None:
                return None
            in_force = rules_in(before.text) if before is not None else []
            holds = proves(found.text, solution, proposal.guard, in_force=in_force)
        except (CandidateError, ValidationError) as error:
            log.error("table %s: %s", proposal.artifact, error)
            return None
        return found.solution if holds and solution.digest == found.solution else None
