"""What was spent and saved, written where people with a kubeconfig find it.

The sums stay in the operator's store; a ConfigMap in each namespace with targets repeats them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from retuned.stages.watch import Account
from retuned_operator.manifests.report import REPORT, report_map
from retuned_operator.runtime.errors import ApiError, NotFound
from retuned_operator.runtime.resources import CONFIG_MAPS, Resource

log = logging.getLogger(__name__)


class Objects(Protocol):
    """What of the API server is needed; `retuned_operator.runtime.client.Api` has it."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return one object, or raise `NotFound`."""
        ...

    def apply(
        self, resource: Resource, body: Mapping[str, Any], *, force: bool = True
    ) -> dict[str, Any]:
        """Make the fields of an object what they are in `body`."""
        ...


def write_reports(
    api: Objects, accounts: Sequence[Account], *, namespaces: Iterable[str]
) -> tuple[str, ...]:
    """Tell namespaces what was spent and saved there; what says so already is not written again.

    Returns the namespaces that could not be told: the others are not kept waiting for them.

    Parameters
    ----------
    api
        The API server, as who leads.
    accounts
        Newest month first.
    namespaces
        Those with targets.
    """
    untold = []
    for namespace in sorted(set(namespaces)):
        wanted = report_map(namespace, accounts)
        try:
            if _data(api, namespace) != wanted["data"]:
                api.apply(CONFIG_MAPS, wanted)
        except ApiError as error:
            log.warning("configmap %s/%s cannot be written: %s", namespace, REPORT, error)
            untold.append(namespace)
    return tuple(untold)


def _data(api: Objects, namespace: str) -> object:
    try:
        return api.get(CONFIG_MAPS, REPORT, namespace=namespace).get("data")
    except NotFound:
        return None
