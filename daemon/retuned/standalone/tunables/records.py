"""What is known of a server's tunables: their records, the server's own choice, its environment."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import Field, ValidationError

from retuned.contract import Digest, Environment, Name, Record, Solution
from retuned.ports import Store
from retuned.stages.proposal import is_tunable as is_tunable
from retuned.stages.proposal import variant_of
from retuned.stages.verdict import server_side as server_side
from retuned.standalone.context import Context, RecordKind

log = logging.getLogger(__name__)


class TunableRecord(Record):
    """A tunable of the server, and why it gets no experiment; empty where it may."""

    definition: Name
    family: str = Field(max_length=64)
    kernel: str = Field(max_length=2000)
    module: str = Field(max_length=2000)
    source: str = Field(max_length=256)
    frozen: dict[str, Any] | None = None
    """Configuration that an autotuner of the server chose once for all sizes; None of others."""
    environment: Environment
    reason: str = ""
    detail: str = Field(default="", max_length=1000)

    @property
    def incumbent(self) -> Solution:
        """The server's own choice as a variant."""
        chosen = {"frozen": self.frozen} if self.frozen is not None else {}
        return variant_of(self.definition, [], author="server", source=self.source, **chosen)


def seen(store: Store, definition: str) -> TunableRecord | None:
    """Return the record of a tunable; None for any other kernel, and without a record."""
    stored = store.get(RecordKind.TUNABLE, definition) if is_tunable(definition) else None
    if stored is None:
        return None
    try:
        return TunableRecord.model_validate(stored.body)
    except ValidationError as error:
        log.error("tunable %s cannot be understood: %s", definition, error)
        return None


def environment_of(ctx: Context, definition: str) -> Digest:
    """Return the environment that evidence on a kernel must come from."""
    known = seen(ctx.store, definition)
    return known.environment.digest if known is not None else ctx.environment


def incumbent_named(store: Store, digest: Digest) -> Solution | None:
    """Return a server's own choice as a variant, by its digest; None if the digest is not one."""
    for stored in store.list(RecordKind.TUNABLE):
        known = seen(store, stored.id)
        if known is not None and known.incumbent.digest == digest:
            return known.incumbent
    return None
