"""From the kubeconfig to the cluster; the official client does it, and is loaded only here."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from retuned.errors import MissingDependency, UsageError
from retuned_operator.kubectl.cluster_session import ClusterSession

if TYPE_CHECKING:
    from retuned_operator.kube.transport import Timeouts

_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def open_desk(
    *,
    namespace: str,
    everywhere: bool,
    context: str,
    kubeconfig: Path | None,
    timeouts: Timeouts | None = None,
) -> ClusterSession:
    """Reach the cluster as the caller.

    Parameters
    ----------
    namespace
        Empty is the one that the kubeconfig's context names.
    everywhere
        Whether all namespaces are meant.
    context
        One of the kubeconfig's; empty is the current one.
    kubeconfig
        File; None means ``KUBECONFIG``, then ``~/.kube/config``.
    timeouts
        Limits; None is as usual.

    Raises
    ------
    UsageError
        If no kubeconfig names a cluster.
    MissingDependency
        If the client is not installed.
    """
    try:
        from retuned_operator.kube.client import connect
    except ImportError as error:
        raise MissingDependency(
            f"{error.name} is not installed: pip install 'retuned[operator]'"
        ) from error
    if everywhere and namespace:
        raise UsageError("give either -n NAMESPACE or -A")
    named = os.environ.get("KUBECONFIG", "")
    file = kubeconfig or (Path(named) if named else None)
    api = connect(file, context=context or None, timeouts=timeouts)
    where = "" if everywhere else namespace or _namespace(file, context)
    return ClusterSession(cluster=api, namespace=where, now=datetime.now(UTC))


def _namespace(kubeconfig: Path | None, context: str) -> str:
    """Return the namespace of the context; inside a pod that of the pod."""
    from kubernetes import config

    if kubeconfig is None and not context and _IN_POD.is_file():
        return _IN_POD.read_text("utf-8").strip() or "default"
    try:
        contexts, active = config.list_kube_config_contexts(
            None if kubeconfig is None else str(kubeconfig)
        )
    except config.ConfigException as error:
        raise UsageError(f"the kubeconfig cannot be read: {str(error)[:200]}") from error
    chosen = next((c for c in contexts if c.get("name") == context), None) if context else active
    inside = (chosen or {}).get("context") or {}
    return str(inside.get("namespace") or "default")
