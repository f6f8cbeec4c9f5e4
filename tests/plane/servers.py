"""A fake and a real API server behind one face, so that one suite can run over both."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tests.fakeapi.server import FakeApi
from tests.plane.control_plane import ControlPlane

from retuned_operator.kube.client import Api
from retuned_operator.kube.errors import ApiError, NotFound
from retuned_operator.kube.kubeconfig import configuration_of
from retuned_operator.kube.resources import NAMESPACES, Obj, Resource
from retuned_operator.kube.transport import Timeouts, Transport

TIMEOUTS = Timeouts(connect_s=30.0, answer_s=60.0, watch_s=60.0, stall_s=90.0)
"""For machines that do much else besides."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One API server with a namespace of the test's own."""

    api: Api
    namespace: str
    plane: ControlPlane | None
    """None if it is the fake one."""
    fake: FakeApi | None

    def metadata(self, name: str, **more: object) -> Obj:
        return {"name": name, "namespace": self.namespace, **more}


@contextmanager
def fake_server() -> Iterator[Server]:
    with FakeApi(namespaces=("default",)) as fake:
        api = fake.api(timeouts=TIMEOUTS)
        yield Server(api=api, namespace=_own_namespace(api), plane=None, fake=fake)


@contextmanager
def real_server(plane: ControlPlane) -> Iterator[Server]:
    api = real_api(plane)
    yield Server(api=api, namespace=_own_namespace(api), plane=plane, fake=None)
    api.close()


def real_api(
    plane: ControlPlane,
    *,
    user: str = "",
    groups: tuple[str, ...] = (),
    timeouts: Timeouts = TIMEOUTS,
) -> Api:
    """Return the real API server as a user sees it; empty means who may do all."""
    kubeconfig = plane.kubeconfig(user, groups=groups) if user else plane.admin()
    return Api(Transport(configuration_of(kubeconfig), timeouts=timeouts))


def eventually(look: Callable[[], T | None], *, within_s: float = 150.0) -> T:
    """Return the first thing that is seen and not nothing.

    Raises
    ------
    AssertionError
        If there is none in time.
    """
    end = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def gone(api: Api, resource: Resource, name: str, *, namespace: str) -> bool:
    """Say whether an object is not there."""
    try:
        api.get(resource, name, namespace=namespace)
    except NotFound:
        return True
    return False


def refusal(act: Callable[[], object]) -> ApiError | None:
    """Return how something is refused; None if it is not."""
    try:
        act()
    except ApiError as error:
        return error
    return None


def _own_namespace(api: Api) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    api.create(NAMESPACES, {"metadata": {"name": name}})
    return name
