"""What the operator's runtime relies on, over the fake API server and over a real one.

A test that holds for both keeps the fake one honest: all other tests of controllers run over it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.expect import raises_naming
from tests.fakeapi.access import Identity
from tests.operators import examples
from tests.plane.servers import (
    Server,
    eventually,
    fake_server,
    gone,
    real_api,
    real_server,
    refusal,
)

from retuned_operator.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
)
from retuned_operator.kube.resources import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    DECISIONS,
    DEFINITIONS,
    EXPERIMENTS,
    FREEZES,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    POLICIES,
    PROPOSALS,
    SERVICE_ACCOUNTS,
    TARGETS,
    TOKEN_REVIEWS,
    Obj,
)
from retuned_operator.kube.watch import EventType, WatchEvent
from retuned_operator.manifests.names import owner

REAL = pytest.param("real", marks=pytest.mark.plane)


@pytest.fixture(params=["fake", REAL])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Return each of them in turn, with a namespace of its own."""
    if request.param == "fake":
        with fake_server() as found:
            yield found
        return
    plane = request.getfixturevalue("plane")
    with real_server(plane) as found:
        yield found


def a_map(server: Server, name: str = "notes", **more: Any) -> Obj:
    return {"metadata": server.metadata(name), "data": {"a": "1"}, **more}


def ours(server: Server, body: Obj, **metadata: Any) -> Obj:
    """Return an example as somebody would send it."""
    name = metadata.pop("name", body["metadata"]["name"])
    return {"metadata": server.metadata(name, **metadata), "spec": body["spec"]}


def a_pods_token(server: Server, *, audience: str) -> tuple[str, str]:
    """Return a token of a pod's own account, and the pod's uid."""
    api, here = server.api, server.namespace
    api.create(SERVICE_ACCOUNTS, {"metadata": server.metadata("chat")})
    containers = [{"name": "server", "image": "nothing/runs:here"}]
    spec = {"serviceAccountName": "chat", "containers": containers, "nodeName": "nowhere"}
    pod = api.create(PODS, {"metadata": server.metadata("chat-0"), "spec": spec})
    uid = str(pod["metadata"]["uid"])
    if server.fake is not None:
        extra = {"name": "chat-0", "uid": uid}
        who = Identity(
            name=f"system:serviceaccount:{here}:chat",
            extra={f"authentication.kubernetes.io/pod-{k}": (v,) for k, v in extra.items()},
            audiences=(audience,),
        )
        server.fake.access.add("a-pods-token", who)
        return "a-pods-token", uid
    assert server.plane is not None
    asked = ("create", "token", "chat", f"--namespace={here}", f"--audience={audience}")
    bound = ("--bound-object-kind=Pod", "--bound-object-name=chat-0")
    return server.plane.kubectl(*asked, *bound, kubeconfig=server.plane.admin()).strip(), uid


def version(body: Obj) -> str:
    return str(body["metadata"]["resourceVersion"])


def first(server: Server, count: int, **watch: Any) -> list[WatchEvent]:
    """Return the first events of a watch that are no bookmarks."""
    found: list[WatchEvent] = []
    with server.api.watch(CONFIG_MAPS, namespace=server.namespace, **watch) as events:
        for event in events:
            if event.type is not EventType.BOOKMARK:
                found.append(event)
            if len(found) == count:
                break
    return found


class TestObjects:
    def test_that_are_made_get_a_uid_a_version_and_a_time(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        assert made["kind"] == "ConfigMap"
        assert made["metadata"]["uid"]
        assert made["metadata"]["creationTimestamp"].endswith("Z")
        assert int(version(made)) > 0
        found = server.api.get(CONFIG_MAPS, "notes", namespace=server.namespace)
        assert found["data"] == {"a": "1"}
        assert version(found) == version(made)

    def test_are_made_once(self, server: Server) -> None:
        server.api.create(CONFIG_MAPS, a_map(server))
        with pytest.raises(AlreadyExists):
            server.api.create(CONFIG_MAPS, a_map(server))

    def test_that_are_not_there_are_not_found(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        with pytest.raises(NotFound):
            server.api.get(CONFIG_MAPS, "none", **where)
        with pytest.raises(NotFound):
            server.api.patch(CONFIG_MAPS, "none", change={"data": {}}, **where)
        with pytest.raises(NotFound):
            server.api.patch_status(TARGETS, "none", status={}, **where)
        with pytest.raises(NotFound):
            server.api.delete(CONFIG_MAPS, "none", **where)

    def test_need_their_namespace_to_be_there(self, server: Server) -> None:
        body = {"metadata": {"name": "notes", "namespace": "nowhere"}}
        with pytest.raises(NotFound):
            server.api.create(CONFIG_MAPS, body)

    def test_get_a_name_if_they_bring_the_beginning_of_one(self, server: Server) -> None:
        body = {"metadata": {"generateName": "note-", "namespace": server.namespace}}
        made = [server.api.create(CONFIG_MAPS, body)["metadata"]["name"] for _ in range(2)]
        assert made[0] != made[1]
        assert all(name.startswith("note-") and len(name) == 10 for name in made)

    def test_that_are_replaced_at_an_old_version_conflict(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        newer = server.api.replace(CONFIG_MAPS, {**made, "data": {"a": "2"}})
        assert version(newer) != version(made)
        with pytest.raises(Conflict):
            server.api.replace(CONFIG_MAPS, {**made, "data": {"a": "3"}})

    def test_that_are_patched_at_an_old_version_conflict(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        where = {"namespace": server.namespace}
        change = {"metadata": {"resourceVersion": version(made)}, "data": {"b": "2", "a": None}}
        newer = server.api.patch(CONFIG_MAPS, "notes", change=change, **where)
        assert newer["data"] == {"b": "2"}
        with pytest.raises(Conflict):
            server.api.patch(CONFIG_MAPS, "notes", change=change | {"data": {"c": "3"}}, **where)

    def test_keep_their_version_if_nothing_changes(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        change = {"data": {"a": "1"}}
        same = server.api.patch(CONFIG_MAPS, "notes", change=change, namespace=server.namespace)
        assert version(same) == version(made)

    def test_are_deleted_only_if_they_are_the_ones_that_were_meant(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        where = {"namespace": server.namespace}
        with pytest.raises(Conflict):
            server.api.delete(CONFIG_MAPS, "notes", uid="another", **where)
        server.api.patch(CONFIG_MAPS, "notes", change={"data": {"b": "2"}}, **where)
        with pytest.raises(Conflict):
            server.api.delete(CONFIG_MAPS, "notes", version=version(made), **where)
        server.api.delete(CONFIG_MAPS, "notes", uid=made["metadata"]["uid"], **where)
        assert gone(server.api, CONFIG_MAPS, "notes", namespace=server.namespace)

    def test_with_a_finalizer_stay_until_it_is_taken_away(self, server: Server) -> None:
        body = a_map(server)
        body["metadata"]["finalizers"] = ["retuned.dev/tests"]
        server.api.create(CONFIG_MAPS, body)
        where = {"namespace": server.namespace}
        server.api.delete(CONFIG_MAPS, "notes", **where)
        found = server.api.get(CONFIG_MAPS, "notes", **where)
        assert found["metadata"]["deletionTimestamp"]
        server.api.patch(CONFIG_MAPS, "notes", change={"metadata": {"finalizers": None}}, **where)
        assert gone(server.api, CONFIG_MAPS, "notes", namespace=server.namespace)

    def test_that_say_their_version_before_they_are_made_are_refused(self, server: Server) -> None:
        body = a_map(server)
        body["metadata"]["resourceVersion"] = "7"
        assert refusal(lambda: server.api.create(CONFIG_MAPS, body)) is not None


class TestChildren:
    def test_go_with_their_owner(self, server: Server) -> None:
        target = server.api.create(TARGETS, ours(server, examples.a_target()))
        child = a_map(server)
        child["metadata"]["ownerReferences"] = [
            owner("TuningTarget", name="chat", uid=target["metadata"]["uid"])
        ]
        server.api.create(CONFIG_MAPS, child)
        server.api.create(CONFIG_MAPS, a_map(server, "free"))
        server.api.delete(TARGETS, "chat", namespace=server.namespace)
        eventually(lambda: gone(server.api, CONFIG_MAPS, "notes", namespace=server.namespace))
        assert not gone(server.api, CONFIG_MAPS, "free", namespace=server.namespace)

    def test_are_made_once_for_the_same_owner_and_never_for_two(self, server: Server) -> None:
        first_one = server.api.create(TARGETS, ours(server, examples.a_target()))
        child = a_map(server)
        reference = owner("TuningTarget", name="chat", uid=first_one["metadata"]["uid"])
        child["metadata"]["ownerReferences"] = [reference]
        made = server.api.create_once(CONFIG_MAPS, child)
        again = server.api.create_once(CONFIG_MAPS, child)
        assert again["metadata"]["uid"] == made["metadata"]["uid"]
        child["metadata"]["ownerReferences"] = [{**reference, "uid": "another"}]
        with pytest.raises(Conflict):
            server.api.create_once(CONFIG_MAPS, child)


class TestOurKinds:
    def test_are_defined(self, server: Server) -> None:
        names = {each["metadata"]["name"] for each in server.api.list(DEFINITIONS).items}
        assert {f"{each.plural}.retuned.dev" for each in (TARGETS, PROPOSALS, FREEZES)} <= names

    def test_are_filled_up_with_what_was_left_out(self, server: Server) -> None:
        spec = {"gates": [{"name": "one", "approvals": {"required": 1, "from": [{"group": "g"}]}}]}
        body = {"metadata": server.metadata("prod"), "spec": {"mode": "Enforce", **spec}}
        made = server.api.create(POLICIES, body)
        assert made["spec"]["priority"] == 0
        assert made["spec"]["gates"][0]["approvals"]["distinctGroups"] is False
        assert made["metadata"]["generation"] == 1

    def test_have_a_status_of_its_own(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        body = ours(server, examples.a_target()) | {"status": {"pods": 7}}
        made = server.api.create(TARGETS, body)
        assert "status" not in made
        written = server.api.patch_status(TARGETS, "chat", status={"pods": 2}, **where)
        assert written["status"]["pods"] == 2
        assert written["metadata"]["generation"] == made["metadata"]["generation"]
        change = {"spec": {"mode": "Observe"}, "status": {"pods": 9}}
        changed = server.api.patch(TARGETS, "chat", change=change, **where)
        assert changed["status"]["pods"] == 2
        assert changed["spec"]["mode"] == "Observe"
        assert changed["metadata"]["generation"] == made["metadata"]["generation"] + 1

    def test_have_their_whole_status_replaced(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        server.api.create(TARGETS, ours(server, examples.a_target()))
        server.api.patch_status(TARGETS, "chat", status={"pods": 2, "sampledKernels": 3}, **where)
        written = server.api.patch_status(TARGETS, "chat", status={"pods": 4}, **where)
        assert written["status"].get("sampledKernels", 0) == 0

    def test_have_a_status_that_conflicts_at_an_old_version(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        made = server.api.create(TARGETS, ours(server, examples.a_target()))
        at = version(made)
        server.api.patch_status(TARGETS, "chat", status={"pods": 2}, version=at, **where)
        with pytest.raises(Conflict):
            server.api.patch_status(TARGETS, "chat", status={"pods": 3}, version=at, **where)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("container", 7), ("framework", "magic"), ("gpu", {"vendor": "amd"}), ("mode", "")],
    )
    def test_that_break_their_schema_are_refused(
        self, server: Server, field: str, value: object
    ) -> None:
        body = ours(server, examples.a_target())
        body["spec"] = body["spec"] | {field: value}
        with raises_naming(Invalid, f"spec.{field}"):
            server.api.create(TARGETS, body)

    def test_with_a_field_that_nobody_knows_are_refused(self, server: Server) -> None:
        body = ours(server, examples.a_target())
        body["spec"] = body["spec"] | {"contaimer": "server"}
        with raises_naming(Invalid, "spec.contaimer"):
            server.api.create(TARGETS, body)

    def test_never_change_a_decision(self, server: Server) -> None:
        server.api.create(DECISIONS, ours(server, examples.a_decision()))
        change = {"spec": {"decision": "Reject"}}
        with raises_naming(Invalid, "spec", "decision"):
            server.api.patch(DECISIONS, "swd-1", change=change, namespace=server.namespace)
        again = server.api.get(DECISIONS, "swd-1", namespace=server.namespace)
        assert again["spec"]["decision"] == "Approve"

    def test_never_change_what_a_proposal_is_about_but_can_abort_it(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        server.api.create(PROPOSALS, ours(server, examples.a_swap()))
        other = {"spec": {"artifact": {"digest": examples.EVIDENCE}}}
        with raises_naming(Invalid, "spec", "artifact"):
            server.api.patch(PROPOSALS, "swp-1", change=other, **where)
        stop = {"spec": {"abort": {"requested": True, "reason": "no"}}}
        assert server.api.patch(PROPOSALS, "swp-1", change=stop, **where)["spec"]["abort"]
        back = {"spec": {"abort": {"requested": False}}}
        with raises_naming(Invalid, "spec", "abort"):
            server.api.patch(PROPOSALS, "swp-1", change=back, **where)

    def test_have_rules_about_what_belongs_together(self, server: Server) -> None:
        body = ours(server, examples.a_swap(baselineDigest=examples.ARTIFACT))
        with raises_naming(Invalid, "spec", "artifact"):
            server.api.create(PROPOSALS, body)

    def test_keep_their_status_when_they_are_applied(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        body = ours(server, examples.an_experiment())
        server.api.apply(EXPERIMENTS, body)
        server.api.patch_status(EXPERIMENTS, "exp-1", status={"phase": "Queued"}, **where)
        again = server.api.apply(EXPERIMENTS, body)
        assert again["status"]["phase"] == "Queued"
        assert again["metadata"]["generation"] == 1

    def test_of_the_whole_cluster_have_no_namespace(self, server: Server) -> None:
        name = f"stop-{server.namespace}"
        body = {"metadata": {"name": name}, "spec": examples.a_freeze()["spec"]}
        server.api.create(FREEZES, body)
        assert name in {each["metadata"]["name"] for each in server.api.list(FREEZES).items}
        server.api.delete(FREEZES, name)


class TestApply:
    def test_makes_what_is_not_there_and_takes_back_what_it_leaves_out(
        self, server: Server
    ) -> None:
        made = server.api.apply(CONFIG_MAPS, a_map(server, data={"a": "1", "b": "2"}))
        assert made["data"] == {"a": "1", "b": "2"}
        again = server.api.apply(CONFIG_MAPS, a_map(server, data={"b": "3"}))
        assert again["data"] == {"b": "3"}

    def test_leaves_alone_what_others_set(self, server: Server) -> None:
        server.api.apply(CONFIG_MAPS, a_map(server, data={"a": "1"}))
        where = {"namespace": server.namespace}
        change = {"metadata": {"labels": {"team": "gpu"}}, "data": {"c": "9"}}
        server.api.patch(CONFIG_MAPS, "notes", change=change, **where)
        again = server.api.apply(CONFIG_MAPS, a_map(server, data={"a": "2"}))
        assert again["data"] == {"a": "2", "c": "9"}
        assert again["metadata"]["labels"] == {"team": "gpu"}

    def test_conflicts_with_another_manager_unless_it_is_forced(self, server: Server) -> None:
        made = server.api.create(CONFIG_MAPS, a_map(server))
        server.api.replace(CONFIG_MAPS, {**made, "data": {"a": "theirs"}})
        mine = a_map(server, data={"a": "mine"})
        with pytest.raises(Conflict):
            server.api.apply(CONFIG_MAPS, mine, force=False)
        assert server.api.apply(CONFIG_MAPS, mine)["data"] == {"a": "mine"}

    def test_to_an_old_version_conflicts(self, server: Server) -> None:
        made = server.api.apply(CONFIG_MAPS, a_map(server))
        server.api.apply(CONFIG_MAPS, a_map(server, data={"a": "2"}))
        old = a_map(server, data={"a": "3"})
        old["metadata"]["resourceVersion"] = version(made)
        with pytest.raises(Conflict):
            server.api.apply(CONFIG_MAPS, old)

    def test_of_the_same_changes_nothing(self, server: Server) -> None:
        made = server.api.apply(CONFIG_MAPS, a_map(server))
        assert version(server.api.apply(CONFIG_MAPS, a_map(server))) == version(made)


class TestLists:
    def test_come_in_parts_and_whole(self, server: Server) -> None:
        for n in range(5):
            server.api.create(CONFIG_MAPS, a_map(server, f"notes-{n}"))
        where = {"namespace": server.namespace}
        pages = list(server.api.pages(CONFIG_MAPS, limit=2, **where))
        assert all(len(page.items) <= 2 for page in pages)
        names = {each["metadata"]["name"] for page in pages for each in page.items}
        assert {f"notes-{n}" for n in range(5)} <= names
        whole = server.api.list(CONFIG_MAPS, **where)
        assert names == {each["metadata"]["name"] for each in whole.items}
        assert {each["kind"] for each in whole.items} == {"ConfigMap"}

    def test_can_be_selected_by_labels_and_names(self, server: Server) -> None:
        for name, label in (("one", "a"), ("two", "b"), ("three", "")):
            body = a_map(server, name)
            body["metadata"]["labels"] = {"is": label} if label else {}
            server.api.create(CONFIG_MAPS, body)

        def named(**selection: str) -> set[str]:
            found = server.api.list(CONFIG_MAPS, namespace=server.namespace, **selection)
            return {each["metadata"]["name"] for each in found.items} & {"one", "two", "three"}

        assert named(labels="is=a") == {"one"}
        assert named(labels="is") == {"one", "two"}
        assert named(labels="is!=a") == {"two", "three"}
        assert named(labels="!is") == {"three"}
        assert named(labels="is in (a,b),is!=b") == {"one"}
        assert named(labels="is notin (a)") == {"two", "three"}
        assert named(fields="metadata.name=two") == {"two"}

    def test_by_a_selector_that_nobody_can_read_are_refused(self, server: Server) -> None:
        with pytest.raises(Invalid):
            server.api.list(CONFIG_MAPS, namespace=server.namespace, labels="is = = a")
        with pytest.raises(Invalid):
            server.api.list(CONFIG_MAPS, namespace=server.namespace, fields="data.a=1")


class TestWatches:
    def test_tell_what_happened_since_the_list(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        listed = server.api.list(CONFIG_MAPS, **where)
        server.api.create(CONFIG_MAPS, a_map(server))
        server.api.patch(CONFIG_MAPS, "notes", change={"data": {"a": "2"}}, **where)
        server.api.delete(CONFIG_MAPS, "notes", **where)
        mine = [
            event
            for event in first(server, 3, version=listed.version, fields="metadata.name=notes")
        ]
        assert [event.type for event in mine] == ["ADDED", "MODIFIED", "DELETED"]
        assert mine[2].body["data"] == {"a": "2"}
        versions = [int(event.version) for event in mine]
        assert versions == sorted(set(versions))

    def test_tell_what_enters_and_leaves_their_selection(self, server: Server) -> None:
        where = {"namespace": server.namespace}
        listed = server.api.list(CONFIG_MAPS, **where)
        server.api.create(CONFIG_MAPS, a_map(server))
        for label in ("x", None):
            change = {"metadata": {"labels": {"is": label}}}
            server.api.patch(CONFIG_MAPS, "notes", change=change, **where)
        found = first(server, 2, version=listed.version, labels="is=x")
        assert [event.type for event in found] == ["ADDED", "DELETED"]

    def test_from_a_version_that_is_too_old_are_gone(self, server: Server) -> None:
        server.api.create(TARGETS, ours(server, examples.a_target()))
        with (
            pytest.raises(Gone),
            server.api.watch(TARGETS, version="1", namespace=server.namespace) as events,
        ):
            next(iter(events))

    def test_can_be_interrupted_by_another_thread(self, server: Server) -> None:
        listed = server.api.list(CONFIG_MAPS, namespace=server.namespace)
        ended = threading.Event()
        watch = server.api.watch(CONFIG_MAPS, version=listed.version, namespace=server.namespace)

        def read() -> None:
            with watch:
                refusal(lambda: list(watch))
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        watch.interrupt()
        assert ended.wait(20)
        reader.join()


class TestLeases:
    def test_are_one_writers_at_a_time(self, server: Server) -> None:
        body = {"metadata": server.metadata("leader"), "spec": {"holderIdentity": "a"}}
        made = server.api.create(LEASES, body)
        mine = {**made, "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15}}
        server.api.replace(LEASES, mine)
        with pytest.raises(Conflict):
            server.api.replace(LEASES, {**made, "spec": {"holderIdentity": "c"}})


class TestJobs:
    def test_are_suspended_and_released(self, server: Server) -> None:
        pod = {"restartPolicy": "Never", "containers": [{"name": "work", "image": "none/none:1"}]}
        spec = {"suspend": True, "backoffLimit": 0, "template": {"spec": pod}}
        server.api.create(JOBS, {"metadata": server.metadata("one"), "spec": spec})
        where = {"namespace": server.namespace}
        change = {"spec": {"suspend": False}}
        assert server.api.patch(JOBS, "one", change=change, **where)["spec"]["suspend"] is False
        server.api.delete(JOBS, "one", **where)
        eventually(lambda: gone(server.api, JOBS, "one", namespace=server.namespace))


class TestReviews:
    def test_know_a_token_that_nobody_issued(self, server: Server) -> None:
        body = {"spec": {"token": "made-up", "audiences": ["retuned.dev"]}}
        status = server.api.create(TOKEN_REVIEWS, body)["status"]
        assert not status.get("authenticated", False)

    def test_know_the_pod_that_a_token_is_bound_to_and_for_whom_it_is(self, server: Server) -> None:
        token, uid = a_pods_token(server, audience="retuned.dev")

        def review(**spec: object) -> Obj:
            body = {"spec": {"token": token, **spec}}
            found: Obj = server.api.create(TOKEN_REVIEWS, body)["status"]
            return found

        status = review(audiences=["retuned.dev", "another"])
        assert status["authenticated"] is True
        assert status["audiences"] == ["retuned.dev"]
        assert status["user"]["username"] == f"system:serviceaccount:{server.namespace}:chat"
        assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["chat-0"]
        assert status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
        for other in (review(audiences=["another"]), review()):
            assert not other.get("authenticated", False)
            assert other["error"]

    def test_know_who_may_do_what(self, server: Server) -> None:
        asked = {"group": "retuned.dev", "resource": "swapproposals", "verb": "approve"}
        asked |= {"namespace": server.namespace, "name": "swp-1"}

        def may(user: str, *groups: str) -> bool:
            spec = {"user": user, "groups": list(groups), "resourceAttributes": asked}
            return bool(server.api.create(ACCESS_REVIEWS, {"spec": spec})["status"]["allowed"])

        assert may("somebody", "system:masters")
        assert not may("somebody")


def test_logs_are_asked_for_of_pods_and_containers_that_there_are(server: Server) -> None:
    server.api.create(SERVICE_ACCOUNTS, {"metadata": server.metadata("chat")})
    containers = [{"name": "server", "image": "nothing/runs:here"}]
    spec = {"serviceAccountName": "chat", "containers": containers}
    server.api.create(PODS, {"metadata": server.metadata("one"), "spec": spec})
    with pytest.raises(NotFound):
        server.api.logs(server.namespace, "another", container="server", limit_bytes=100)
    with pytest.raises(Invalid, match="not valid for pod"):
        server.api.logs(server.namespace, "one", container="another", limit_bytes=100)


def test_who_may_not_is_forbidden_and_whom_nobody_knows_is_not_let_in(server: Server) -> None:
    if server.fake is not None:
        server.fake.access.add("ada", Identity(name="ada"))
        known, unknown = server.fake.api("ada"), server.fake.api("nobody")
        for api, kind in ((known, Forbidden), (unknown, Unauthorized)):
            with pytest.raises(kind):
                api.list(NAMESPACES)
        return
    assert server.plane is not None
    known = real_api(server.plane, user="ada")
    with pytest.raises(Forbidden):
        known.list(NAMESPACES)
    known.close()
