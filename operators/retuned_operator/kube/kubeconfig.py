"""Address and credentials of an API server: a kubeconfig, or the service account of a pod."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from kubernetes import config as kubernetes_config
from kubernetes.client.configuration import Configuration

from retuned.errors import UsageError
from retuned_operator.kube.errors import printable


def configuration_of(
    kubeconfig: Path | None = None, *, context: str | None = None
) -> Configuration:
    """Return how to reach an API server, and as whom.

    Parameters
    ----------
    kubeconfig
        None means the service account inside a pod, and elsewhere ``KUBECONFIG``.
    context
        One of its contexts; None means the current one.

    Raises
    ------
    UsageError
        If no configuration names an API server, or it cannot be read.
    """
    found = Configuration()
    of = "" if kubeconfig is None else f" by {printable(str(kubeconfig))}"
    try:
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes_config.load_incluster_config(client_configuration=found)
        else:
            kubernetes_config.load_kube_config(
                config_file=None if kubeconfig is None else str(kubeconfig),
                context=context,
                client_configuration=found,
                persist_config=False,
            )
    except (kubernetes_config.ConfigException, OSError, yaml.YAMLError, ValueError) as error:
        text = f"no way to an API server{of}: {printable(str(error))[:300]}"
        raise UsageError(text) from error
    except (AttributeError, KeyError, TypeError) as error:  # the client does not look before
        text = f"no way to an API server{of}: the kubeconfig has another shape"
        raise UsageError(text) from error
    return found
