"""What experiments on tunables get: the servers' report, their image, and the table in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from retuned.contract import Digest
from retuned.errors import TemporaryError
from retuned.experiment.tunable_task import TunableInputs
from retuned.stages.proposal import rules_in
from retuned.stages.verdict import server_side
from retuned_operator.controllers.cluster_view import server_pods
from retuned_operator.controllers.objects import FINISHED, part, parts
from retuned_operator.controllers.ports import Caches, ProvenTable, TunableSource
from retuned_operator.kube.resources import TARGETS, Obj
from retuned_operator.manifests import ServerImage
from retuned_operator.schema import TuningTarget, read
from retuned_operator.store.tunables import PodTunables, malformed, refused

_RETRY_S = 15.0
_PULLED = "docker-pullable://"
_ROOT = 0


class ClusterTunables:
    """The `TunableSources` of a cluster.

    Parameters
    ----------
    posts
        What pods posted.
    caches
        Targets and pods.
    table
        A table by the digest of its text; None where there is none.
    """

    def __init__(
        self,
        posts: PodTunables,
        caches: Caches,
        *,
        table: Callable[[Digest], ProvenTable | None],
    ) -> None:
        self._posts, self._caches, self._table = posts, caches, table

    def source(self, target: str, tunable: str) -> TunableSource | None:
        """Return what an experiment gets; see `TunableSources.source`."""
        post, needs = self._posts.newest(target, tunable), self._posts.needs(target, tunable)
        body = self._caches.get(TARGETS, target)
        if post is None or needs is None or body is None:
            return None
        resource = read(TuningTarget, body)
        pods = server_pods(self._caches, resource)
        if pods is None:
            raise TemporaryError(f"the pods of {target} are not known now", delay_s=_RETRY_S)
        environment = part(needs, "environment")
        try:
            inputs = TunableInputs.of(
                part(needs, "report"),
                parts(needs, "recipes"),
                environment=environment,
                measured_in=server_side(post.facts.environment()),
                in_force=self._in_force(resource, tunable),
            )
        except ValidationError as error:
            raise malformed(error) from None
        python = str(environment.get("executable", ""))
        image = image_of(pods, container=resource.spec.container, python=python)
        return TunableSource(inputs=inputs, server=image)

    def _in_force(self, target: TuningTarget, tunable: str) -> list[dict[str, Any]]:
        """Return the rules of the table in force; none for the servers' own choice."""
        entries = target.status.active_kernels
        entry = next((each for each in entries if each.kernel == tunable), None)
        if entry is None:
            return []
        table = self._table(entry.digest)
        if table is None:
            message = f"the table {entry.digest} of {tunable} is not in the store"
            raise refused("table-unknown", message)
        return rules_in(table.text)


def image_of(pods: Sequence[Obj], *, container: str, python: str) -> ServerImage:
    """Return the image that all server pods run, with what pulls and starts it.

    A pod that has ended, such as one that was evicted, may stay in the cluster and does not count.

    Raises
    ------
    Refused
        ``server-image-differs``, or as `ServerImage`.
    """
    found = {}
    for pod in pods:
        if part(pod, "status").get("phase") in FINISHED:
            continue
        spec = part(pod, "spec")
        named = next((e for e in parts(spec, "containers") if e.get("name") == container), None)
        image = _digest_of(pod, container) if named is not None else ""
        if named is not None and image:
            found[image] = (pod, named)
    if len(found) > 1:
        text = f"{len(found)} images run in the pods, as during a rollout; an experiment needs one"
        raise refused("server-image-differs", text)
    image, (pod, named) = next(iter(found.items())) if found else ("", ({}, {}))
    spec = part(pod, "spec")
    user = part(named, "securityContext").get("runAsUser")
    user = part(spec, "securityContext").get("runAsUser") if user is None else user
    return ServerImage(
        image=image,
        python=python,
        pull_secrets=tuple(str(e.get("name", "")) for e in parts(spec, "imagePullSecrets")),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        user_id=user if isinstance(user, int) and user != _ROOT else None,
    )


def _digest_of(pod: Mapping[str, Any], container: str) -> str:
    """Return the image of a container by digest, as the node runs it; empty before it does."""
    statuses = parts(part(pod, "status"), "containerStatuses")
    status = next((each for each in statuses if each.get("name") == container), {})
    return str(status.get("imageID") or "").removeprefix(_PULLED)
