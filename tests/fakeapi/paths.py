"""What a request is about."""

from __future__ import annotations

from urllib.parse import unquote

from tests.fakeapi.faults import Seen
from tests.fakeapi.objects import Place
from tests.fakeapi.refusals import bad, not_found

from retuned_operator.kube.resources import ALL


def seen(verb: str, place: Place, user: str) -> Seen:
    """Return a request as the log of faults has it."""
    return Seen(
        verb=verb,
        plural=place.resource.plural,
        namespace=place.namespace,
        name=place.name,
        subresource=place.subresource,
        user=user,
    )


def place_of(path: str) -> Place:
    """Return what a path is about.

    Raises
    ------
    Refusal
        404 if it is about nothing that there is.
    """
    parts = [unquote(each) for each in path.strip("/").split("/")]
    root, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    group, version = ("", root[-1]) if parts[0] == "api" else (root[1], root[-1])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        raise bad(f"no such path: {path}")
    plural, name, subresource = (*rest, "", "")[:3]
    for resource in ALL:
        if (resource.group, resource.version, resource.plural) == (group, version, plural):
            return Place(resource=resource, namespace=namespace, name=name, subresource=subresource)
    raise not_found(plural, name)
