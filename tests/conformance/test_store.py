"""One suite over both stores: SQLite and the fake mean the same."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.expect import raises_code, raises_naming

from retuned.clock import FakeClock
from retuned.errors import UnreadableInput
from retuned.ports import Event, Store
from retuned.store.memory import MemoryStore
from retuned.store.sqlite import SqliteStore

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(clock)
    else:
        sqlite = SqliteStore(tmp_path / "state", clock=clock)
        yield sqlite
        sqlite.close()


def event(id: str = "p1", **detail: object) -> Event:
    return Event(at=NOON, kind="proposal", id=id, what="approved", who="ada", detail=detail)


def test_what_was_added_comes_back_with_its_time(store: Store, clock: FakeClock) -> None:
    assert store.add("proposal", "p1", {"a": [1, 2.5, None, "ü"]}, phase="awaiting")
    clock.advance(60)
    assert store.advance("proposal", "p1", expect="awaiting", to="approved")
    found = store.get("proposal", "p1")
    assert found is not None
    assert (found.phase, found.body) == ("approved", {"a": [1, 2.5, None, "ü"]})
    assert (found.created_at, found.updated_at) == (NOON, NOON + timedelta(seconds=60))
    assert found.created_at.tzinfo is not None


def test_a_second_add_changes_nothing(store: Store) -> None:
    assert store.add("proposal", "p1", {"a": 1}, phase="awaiting")
    assert not store.add("proposal", "p1", {"a": 2}, phase="approved")
    found = store.get("proposal", "p1")
    assert found is not None
    assert (found.phase, found.body) == ("awaiting", {"a": 1})


def test_the_same_id_in_two_kinds_is_two_records(store: Store) -> None:
    assert store.add("proposal", "x", {}, phase="a")
    assert store.add("order", "x", {}, phase="a")


def test_advance_needs_the_expected_phase_and_an_existing_record(store: Store) -> None:
    store.add("proposal", "p1", {"a": 1}, phase="awaiting")
    assert not store.advance("proposal", "p1", expect="approved", to="swapping", body={"a": 2})
    assert not store.advance("proposal", "p2", expect="awaiting", to="approved")
    found = store.get("proposal", "p1")
    assert found is not None
    assert (found.phase, found.body) == ("awaiting", {"a": 1})


def test_advance_replaces_the_body_only_when_given_one(store: Store) -> None:
    store.add("proposal", "p1", {"a": 1}, phase="awaiting")
    assert store.advance("proposal", "p1", expect="awaiting", to="awaiting", body={})
    found = store.get("proposal", "p1")
    assert found is not None
    assert found.body == {}


def test_a_caller_cannot_change_the_store_through_what_it_got(store: Store) -> None:
    body = {"list": [1]}
    store.add("proposal", "p1", body, phase="a")
    body["list"].append(2)
    first = store.get("proposal", "p1")
    assert first is not None
    first.body["list"].append(3)
    second = store.get("proposal", "p1")
    assert second is not None
    assert second.body == {"list": [1]}


def test_lists_are_oldest_first_and_a_limit_keeps_the_newest(store: Store) -> None:
    for i in (3, 1, 2):
        store.add("proposal", f"p{i}", {}, phase="odd" if i % 2 else "even")
    store.advance("proposal", "p3", expect="odd", to="odd")  # an update does not move it
    assert [s.id for s in store.list("proposal")] == ["p3", "p1", "p2"]
    assert [s.id for s in store.list("proposal", phase="odd")] == ["p3", "p1"]
    assert [s.id for s in store.list("proposal", limit=2)] == ["p1", "p2"]
    assert store.list("proposal", limit=0) == []
    assert store.list("nothing") == []
    with raises_naming(ValueError, "limit"):
        store.list("proposal", limit=-1)


def test_lists_are_narrowed_by_the_beginning_of_the_id_and_by_what_it_sorts_after(
    store: Store,
) -> None:
    for id in ("plan-2/b", "plan-1/z", "plan-10/a", "plan-1/a", "plan-1"):
        store.add("finding", id, {"id": id}, phase="odd" if "1/" in id else "even")
    store.add("other", "plan-1/q", {}, phase="odd")
    assert [s.id for s in store.list("finding", prefix="plan-1/")] == ["plan-1/z", "plan-1/a"]
    assert store.ids("finding", prefix="plan-1") == ["plan-1/z", "plan-10/a", "plan-1/a", "plan-1"]
    assert store.ids("finding", above="plan-1/z") == ["plan-2/b", "plan-10/a"]
    assert store.ids("finding", above="plan-10/a", phase="even") == ["plan-2/b"]
    assert store.ids("finding", prefix="plan-1/", above="plan-1/a") == ["plan-1/z"]
    assert store.ids("finding", phase="odd") == ["plan-1/z", "plan-1/a"]
    assert [s.id for s in store.list("finding", prefix="plan-1/", limit=1)] == ["plan-1/a"]
    assert store.ids("finding", prefix="plan-3") == store.ids("nothing") == []
    with raises_naming(ValueError, "limit"):
        store.list("finding", prefix="plan-1", limit=-1)


@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff", "z", "%", "_", "*", "'", "\u00e9"])
def test_a_prefix_is_text_and_no_pattern(store: Store, last: str) -> None:
    inside = [f"a{last}", f"a{last}\U0010ffff", f"a{last}b"]
    for id in (*inside, "a", "b", "aa", "a\ue000"):
        store.add("k", id, {}, phase="p")
    assert [id for id in store.ids("k", prefix=f"a{last}") if id not in inside] == []
    assert store.ids("k", prefix=f"a{last}") == inside
    assert [s.id for s in store.list("k", prefix=f"a{last}")] == inside


def test_the_trail_keeps_order_and_filters_by_id(store: Store) -> None:
    for n in range(3):
        store.record(event("p1", n=n))
    store.record(event("p2"))
    assert [e.detail["n"] for e in store.events(id="p1")] == [0, 1, 2]
    assert [e.id for e in store.events(limit=2)] == ["p1", "p2"]
    assert store.events(limit=0) == []
    assert store.events()[0] == event("p1", n=0)


def test_decisions_are_never_changed(store: Store) -> None:
    store.add("decision", "d1", {"decision": "Reject"}, phase="given")
    with raises_naming(ValueError, "'decision'"):
        store.advance("decision", "d1", expect="given", to="given", body={"decision": "Approve"})


def test_what_is_no_json_is_refused_and_nothing_is_written(store: Store) -> None:
    with raises_naming(ValueError, "JSON"):
        store.add("proposal", "p1", {"a": math.nan}, phase="a")
    with pytest.raises(TypeError):
        store.add("proposal", "p1", {"a": object()}, phase="a")
    assert store.get("proposal", "p1") is None


@pytest.mark.parametrize("bad", ["", "a\nb", "a\x00", "x" * 513])
def test_odd_names_are_refused(store: Store, bad: str) -> None:
    fields = {"kind": (bad, "i", "p"), "id": ("k", bad, "p"), "phase": ("k", "i", bad)}
    for named, (kind, id, phase) in fields.items():
        with raises_naming(ValueError, f" {named} ", "512"):
            store.add(kind, id, {}, phase=phase)


def test_sql_in_a_name_is_only_a_name(store: Store) -> None:
    evil = "x'; DROP TABLE records; --"
    assert store.add(evil, evil, {"a": evil}, phase=evil)
    assert [s.body for s in store.list(evil, phase=evil)] == [{"a": evil}]


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    store.add("proposal", "p1", {"a": 1}, phase="awaiting")

    def half() -> None:
        with store.transaction():
            store.advance("proposal", "p1", expect="awaiting", to="approved")
            store.add("order", "o1", {}, phase="new")
            store.record(event())
            seen = store.get("proposal", "p1")
            assert seen is not None
            assert seen.phase == "approved"  # its own writes are seen inside
            raise KeyError("half way")

    with pytest.raises(KeyError):
        half()
    found = store.get("proposal", "p1")
    assert found is not None
    assert found.phase == "awaiting"
    assert store.get("order", "o1") is None
    assert store.events() == []


def test_transactions_do_not_nest_and_the_store_lives_on(store: Store) -> None:
    def nest() -> None:
        with store.transaction():
            store.add("proposal", "p1", {}, phase="a")
            with store.transaction():
                pass

    with raises_naming(RuntimeError, "transactions"):
        nest()
    assert store.get("proposal", "p1") is None
    with store.transaction():
        store.add("proposal", "p1", {}, phase="a")
    assert store.get("proposal", "p1") is not None


def test_of_many_threads_one_wins_a_phase(store: Store) -> None:
    store.add("proposal", "p1", {}, phase="awaiting")
    wins: list[int] = []

    def grab(n: int) -> None:
        if store.advance("proposal", "p1", expect="awaiting", to=f"taken-{n}"):
            wins.append(n)

    threads = [threading.Thread(target=grab, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("proposal", "p1")
    assert found is not None
    assert len(wins) == 1
    assert found.phase == f"taken-{wins[0]}"


def test_another_thread_waits_for_an_open_transaction(store: Store) -> None:
    store.add("counter", "c", {"n": 0}, phase="current")

    def bump() -> None:
        for _ in range(20):
            with store.transaction():
                now = store.get("counter", "c")
                assert now is not None
                store.advance(
                    "counter", "c", expect="current", to="current", body={"n": now.body["n"] + 1}
                )

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("counter", "c")
    assert found is not None
    assert found.body == {"n": 80}


def test_blobs_come_back_and_are_the_same_twice(store: Store) -> None:
    digest = store.put_blob(b"\x00kernel\xff")
    assert store.put_blob(b"\x00kernel\xff") == digest
    assert store.get_blob(digest) == b"\x00kernel\xff"
    assert store.get_blob(store.put_blob(b"")) == b""


@pytest.mark.parametrize("bad", ["sha256:" + "0" * 64, "sha256:../../etc/passwd", "", "md5:x"])
def test_a_blob_that_was_never_kept_is_named(store: Store, bad: str) -> None:
    with pytest.raises(UnreadableInput) as caught:
        store.get_blob(bad)
    assert caught.value.code in {"blob-missing", "not-a-digest"}


def test_decisions_and_orders_are_found_by_the_proposal_they_name(store: Store) -> None:
    for number, proposal in enumerate(("p1", "p2", "p1")):
        store.add("order", f"o{number}", {"proposal": proposal}, phase="done")
        store.add("decision", f"d{number}", {"proposal": proposal}, phase="given")
    store.add("order", "odd", {"definition": "linear"}, phase="done")
    assert [each.id for each in store.list("order", proposal="p1")] == ["o0", "o2"]
    assert [each.id for each in store.list("order", proposal="p1", limit=1)] == ["o2"]
    assert [each.id for each in store.list("decision", proposal="p2")] == ["d1"]
    assert store.list("order", proposal="p1", phase="new") == []
    assert store.list("decision", proposal="p1' OR 1=1 --") == []
    with raises_naming(ValueError, "'finding'"):
        store.list("finding", proposal="p1")


def test_a_dropped_blob_is_gone_and_may_come_back(store: Store) -> None:
    digest = store.put_blob(b"evidence")
    other = store.put_blob(b"other")
    assert store.drop_blob(digest)
    with pytest.raises(UnreadableInput) as caught:
        store.get_blob(digest)
    assert caught.value.code == "blob-missing"
    assert not store.drop_blob(digest)
    assert store.get_blob(other) == b"other"
    assert store.put_blob(b"evidence") == digest
    assert store.get_blob(digest) == b"evidence"
    with raises_code(UnreadableInput, "not-a-digest", "sha256:../../etc/passwd"):
        store.drop_blob("sha256:../../etc/passwd")


NAMES = st.sampled_from(["p1", "p2", "p3"])
PHASES = st.sampled_from(["a", "b"])
Step = Callable[[Store], object]


def adding(id: str, phase: str, n: int) -> Step:
    return lambda store: store.add("k", id, {"n": n}, phase=phase)


def advancing(id: str, expect: str, to: str, n: int) -> Step:
    return lambda store: store.advance("k", id, expect=expect, to=to, body={"n": n})


def naming(prefix: str, above: str, phase: str | None) -> Step:
    return lambda store: (
        store.ids("k", prefix=prefix, above=above, phase=phase),
        [s.id for s in store.list("k", prefix=prefix, above=above, phase=phase)],
    )


def listing(phase: str, limit: int) -> Step:
    return lambda store: [(s.id, s.body) for s in store.list("k", phase=phase, limit=limit)]


STEP: st.SearchStrategy[Step] = st.one_of(
    st.builds(adding, NAMES, PHASES, st.integers()),
    st.builds(advancing, NAMES, PHASES, PHASES, st.integers()),
    st.builds(listing, PHASES, st.integers(0, 4)),
    st.builds(naming, st.sampled_from(["", "p", "p1", "q"]), NAMES, PHASES | st.none()),
    st.builds(lambda id: lambda store: store.record(event(id)), NAMES),
    st.builds(lambda id: lambda store: store.events(id=id), NAMES),
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=12))
def test_both_stores_answer_alike_to_any_sequence(
    steps: list[Callable[[Store], object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    memory = MemoryStore(FakeClock(NOON))
    sqlite = SqliteStore(tmp_path_factory.mktemp("s"), clock=FakeClock(NOON))
    try:
        assert [step(memory) for step in steps] == [step(sqlite) for step in steps]
        assert memory.list("k") == sqlite.list("k")
        assert memory.events() == sqlite.events()
    finally:
        sqlite.close()


def test_a_page_is_the_newest_of_some_phases_before_a_record(store: Store) -> None:
    for number in range(9):
        store.add("proposal", f"p{number}", {"n": number}, phase=("a", "b", "c")[number % 3])
    store.add("order", "p3", {}, phase="a")
    first = store.page("proposal", phases=("a", "b"), limit=3)
    assert [each.id for each in first] == ["p7", "p6", "p4"]
    second = store.page("proposal", phases=("a", "b"), before="p4", limit=3)
    assert [each.id for each in second] == ["p3", "p1", "p0"]
    assert store.page("proposal", phases=("a",), before="nobody", limit=3) == []
    assert store.page("proposal", phases=(), limit=3) == []


def test_a_page_keeps_the_order_of_adding_whatever_became_of_a_record(store: Store) -> None:
    for name in ("old", "new"):
        store.add("proposal", name, {}, phase="a")
    store.advance("proposal", "old", expect="a", to="b")
    assert [each.id for each in store.page("proposal", phases=("a", "b"), limit=9)] == [
        "new",
        "old",
    ]


def test_what_is_old_is_forgotten_but_what_is_named_or_in_another_phase(
    store: Store, clock: FakeClock
) -> None:
    for name, phase in (("a", "over"), ("b", "over"), ("c", "open"), ("d", "over")):
        store.add("window", name, {"n": 1}, phase=phase)
    store.add("report", "a", {}, phase="over")
    clock.advance(10.0)
    at = clock.now()
    store.add("window", "e", {}, phase="over")
    assert store.forget("window", phase="over", before=at, keep=["b", "nobody"]) == 2
    assert store.ids("window") == ["b", "c", "e"]
    assert store.ids("report") == ["a"]
    assert store.forget("window", phase="over", before=at, keep=["b"]) == 0
    assert store.add("window", "a", {"n": 2}, phase="over"), "a name is free again"
    assert store.ids("window") == ["b", "c", "e", "a"]


def test_people_s_words_cannot_be_forgotten(store: Store) -> None:
    store.add("decision", "d", {"proposal": "p"}, phase="final")
    with raises_naming(ValueError, "'decision'"):
        store.forget("decision", phase="final", before=datetime.max.replace(tzinfo=UTC))
    assert store.ids("decision") == ["d"]


def test_more_is_forgotten_than_one_write_takes(tmp_path: Path) -> None:
    clock, steps = FakeClock(NOON), list[str]()
    store = SqliteStore(tmp_path, clock=clock, hook=steps.append)
    with store.transaction():
        for number in range(450):
            store.add("window", f"w{number}", {}, phase="over")
    clock.advance(1.0)
    steps.clear()
    assert store.forget("window", phase="over", before=clock.now()) == 450
    assert store.ids("window") == []
    assert steps.count("written") == 3, "others may write in between"
    store.close()


def test_records_are_counted_by_phase(store: Store) -> None:
    assert dict(store.counts("proposal")) == {}
    for name, phase in (("x", "a"), ("y", "a"), ("z", "b")):
        store.add("proposal", name, {}, phase=phase)
    store.add("order", "x", {}, phase="a")
    assert dict(store.counts("proposal")) == {"a": 2, "b": 1}
