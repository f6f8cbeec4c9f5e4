"""A pod whose server has a tunable: a real runtime in this process, behind its real socket."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.sidecar import sidecar_world
from tests.sidecar.sidecar_world import TARGET, PodWorld

from retuned.contract import Digest, Guard
from retuned.ports import Swapper
from retuned.runtime import Runtime, attach
from retuned.runtime.tunables.records import canonical, digest_of_text
from retuned.runtime.tunables.state import Tunable
from retuned.runtime_client.change_orders import ChangeSwapper
from retuned.sidecar.artifacts import Artifacts
from retuned.sidecar.key_pinning import PinnedKeys
from retuned.sidecar.sockets import PodSocket
from retuned.sidecar.store import PodStore
from retuned.sidecar.tables import OrderedTables
from retuned.stages.swap import SwapOrder
from retuned.store.artifact_folder import MANIFEST, bundle_of, sign_artifact

SOURCE = "sha256:" + "5" * 64
ROWS = 48
"""Rows of the launches that the server makes."""


def kernel(name: str = "k", *, source: str = SOURCE) -> Tunable:
    return Tunable(
        "played",
        kernel=name,
        module="m",
        source=source,
        geometry={},
        axes=("rows",),
        space={},
        check=lambda _: None,
    )


NAME = kernel().id
OTHER = kernel("other").id


def text_of(tile: int = 32, *, name: str = NAME, **changed: Any) -> str:
    body: dict[str, Any] = {
        "format": "table",
        "tunable": name,
        "family": "played",
        "source": SOURCE,
        "rules": [{"when": {"rows": [33, 64]}, "config": {"tile": tile}}],
        "captures": [],
        "before": None,
    }
    return canonical({**body, **changed})


FIRST_TEXT = text_of(32)
FIRST: Digest = digest_of_text(FIRST_TEXT)
SECOND_TEXT = text_of(64, before=FIRST)
SECOND: Digest = digest_of_text(SECOND_TEXT)


class TablePod(PodWorld):
    """A pod with a server whose kernels are `NAME` and, once launched, others."""

    def __init__(self, folder: Path) -> None:
        self.environment = {"RETUNED_TRUST": "pin"}
        self.sockets = folder / "s"
        self.runtime: Runtime | None = None
        super().__init__(folder)
        self.publish_text(FIRST_TEXT)
        self.publish_text(SECOND_TEXT)
        self.begin()

    # --- the server -------------------------------------------------------------------------------

    def begin(self, *kernels: Tunable, launches: int = 1, tuned: bool = True) -> None:
        """Start the server, again if it runs: it forgets all orders."""
        self.end()
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            self.runtime = attach(server="test", socket_dir=self.sockets)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        if tuned:
            self.runtime.tune_tables()
        self.runtime.listen()
        for each in kernels or (kernel(),):
            self.runtime._host.tunables.registry.add(each)
        for _ in range(launches):
            self.launch()

    def end(self) -> None:
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None

    def tunable(self, name: str = NAME) -> Tunable:
        assert self.runtime is not None
        found = self.runtime._host.tunables.registry.find(name)
        assert found is not None
        return found

    def launch(self, rows: int = ROWS, *, name: str = NAME) -> Mapping[str, Any] | None:
        """Launch; return the configuration of the table, None for the server's own."""
        found = self.tunable(name)
        axes = {"rows": rows}
        return found.choose(axes, found.sized(axes))

    def tile(self) -> int | None:
        """Return what a launch runs: the tile of the table, None for the server's own choice."""
        found = self.launch()
        return None if found is None else int(found["tile"])

    # --- the pod ----------------------------------------------------------------------------------

    def swaps(self, store: PodStore, artifacts: Artifacts, believed: PinnedKeys) -> Swapper:
        server = PodSocket(self.sockets, key=believed.shown_to_servers)
        return ChangeSwapper(
            self.swapper,
            self.sockets,
            changes=OrderedTables(store, artifacts),
            term=server.term,
            key=believed.shown_to_servers,
            server=server,
        )

    def close(self) -> None:
        self.end()
        self.ctx.store.close()

    # --- the operator's side ----------------------------------------------------------------------

    def publish_text(self, text: str, **signed: Any) -> Digest:
        """Put a signed table into the operator's store; return the digest that an order names."""
        digest: Digest = signed.pop("artifact", digest_of_text(text))
        self.operator.artifacts[digest] = self.signed_text(text, artifact=digest, **signed)
        return digest

    def signed_text(
        self, text: str, *, artifact: Digest, name: str = NAME, target: str = TARGET
    ) -> dict[str, bytes]:
        folder = self.folder / "tables" / digest_of_text(text + artifact + name + target)[7:]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(text)
        sign_artifact(folder, notary=self.notary, artifact=artifact, definition=name, target=target)
        return bundle_of(folder)

    def in_force(self, name: str = NAME) -> Digest | None:
        """Return what the sidecar reads from the server."""
        slots: Sequence[Any] = self.ctx.swapper.slots()
        return next((slot.active for slot in slots if slot.definition == name), None)


def swap(
    artifact: Digest = FIRST,
    *,
    epoch: int = 2,
    proposal: str = "p1",
    name: str = NAME,
    previous: Digest | None = None,
    target: str = TARGET,
) -> SwapOrder:
    order = sidecar_world.swap(
        artifact, epoch=epoch, proposal=proposal, name=name, previous=previous, target=target
    )
    return order.model_copy(update={"guard": Guard(bounds={"rows": (33, 64)})})
