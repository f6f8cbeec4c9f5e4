"""What a pod tells of its server's kernels is a stranger's, and never code that others run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.lifting import live
from tests.operators import examples

from retuned.api.agent import DefinitionPost, PodRef
from retuned.catalog.user import entry_of
from retuned.catalog.user.launch_rules import launch_data_of
from retuned.clock import FakeClock
from retuned.contract import Language
from retuned.errors import Refused
from retuned.lifting.lift import lift_all
from retuned.lifting.store_records import LiftedRecord
from retuned.stages.profile import Signature, SignatureStat
from retuned.store.sqlite import SqliteStore
from retuned_operator.schema import TuningTarget, read
from retuned_operator.store import kernels as live_kernels
from retuned_operator.store.artifacts import is_bound
from retuned_operator.store.kernels import CatalogKernels, LiveKernels

TARGET = "serving/chat"
SEEN = (1, 7, 64)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "state", clock=FakeClock())) as store:
        yield store


@pytest.fixture
def kept(store: SqliteStore) -> LiveKernels:
    return LiveKernels(store)


def lifted(records: Sequence[dict[str, Any]]) -> LiftedRecord:
    (found,) = lift_all(records).lifted
    return LiftedRecord.of(found)


def norm(*rows: int) -> LiftedRecord:
    return lifted([live.rmsnorm(each) for each in rows or SEEN])


def post(record: LiftedRecord | str, *, name: str = "") -> DefinitionPost:
    text = record if isinstance(record, str) else record.model_dump_json()
    named = name or (norm().own.name if isinstance(record, str) else record.own.name)
    pod = PodRef(namespace="serving", name="chat-0", uid="u-0")
    return DefinitionPost(pod=pod, target=TARGET, name=named, text=text)


def target() -> TuningTarget:
    return read(TuningTarget, examples.a_target())


def test_a_live_kernel_is_known_to_its_target_alone_and_after_a_restart(
    kept: LiveKernels, store: SqliteStore
) -> None:
    record = norm()
    kept.take(TARGET, post(record))
    kept.take(TARGET, post(record))
    assert [each.own.name for each in LiveKernels(store).every(TARGET)] == [record.own.name]
    assert LiveKernels(store).find(TARGET, record.own.name) == record.own
    assert kept.find("other/chat", record.own.name) is None
    assert kept.find("serving/ch", record.own.name) is None
    kernels = CatalogKernels(kept)
    incumbent = kernels.incumbent(record.own.name, target=target())
    assert incumbent == entry_of(record.own, Language.TRITON).incumbent
    assert kernels.structures(record.own.name, target=target()) == ("lifted",)
    assert kernels.is_live(record.own.name, target=target())
    assert not kernels.is_live("rmsnorm_h512", target=target())
    assert kernels.incumbent("rmsnorm_h512", target=target()) is not None


def test_launches_are_told_by_name_and_grid(kept: LiveKernels) -> None:
    record = norm()
    kept.take(TARGET, post(record))
    stat = SignatureStat(
        signature=Signature(kernel="_rms_norm_forward", blocks=(64, 1, 1), threads=(128, 1, 1)),
        launches=100,
        gpu_time_ns=1_000_000,
        median_ns=10_000,
    )
    ((workload, part),) = CatalogKernels(kept).live_shapes(target=target())(stat)
    assert (workload.definition, workload.axes, part) == (record.own.name, {"rows": 64}, 1.0)
    assert CatalogKernels().live_shapes(target=target())(stat) == []


def test_what_several_pods_know_is_put_together(kept: LiveKernels) -> None:
    wide = lifted([live.scale(n) for n in (700, 7, 4096, 9000)])
    narrow = lifted([live.scale(n) for n in (700, 8, 4096)])
    for told in (narrow, wide, narrow):
        kept.take(TARGET, post(told))
    (record,) = kept.every(TARGET)
    assert record.own.where == "n_elements <= 9000"
    assert {w.axes["n_elements"] for w in record.workloads} == {7, 8, 700, 4096, 9000}


def test_lengths_that_turn_out_to_vary_set_the_earlier_definition_aside_whoever_tells_it_again(
    kept: LiveKernels,
) -> None:
    few = lifted([live.softmax(rows, 512) for rows in (1, 7)])
    more = lifted([*(live.softmax(rows, 512) for rows in (1, 7)), live.softmax(3, 1000)])
    for told in (few, more, few):
        kept.take(TARGET, post(told))
    assert [each.own.name for each in kept.every(TARGET)] == [more.own.name]
    assert kept.find(TARGET, few.own.name) is not None, "experiments of it may still run"


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    body = json.loads(norm().model_dump_json())
    change(body)
    return json.dumps(body)


def _put(*path: str | int, value: object) -> Callable[[dict[str, Any]], object]:
    def change(body: dict[str, Any]) -> None:
        place: Any = body
        for each in path[:-1]:
            place = place[each]
        place[path[-1]] = value

    return change


ABOUT = ("own", "definition")
REFERENCE = "def run(X_ptr, W_ptr):\n    return X_ptr\n"
VARIANT = ("own", "variants", 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{}", "definition-malformed"),
        ("[" * 60_000, "definition-malformed"),
        (changed(_put(*ABOUT, "name", value="rmsnorm_h512")), "definition-malformed"),
        (changed(_put("own", "surprise", value=1)), "definition-malformed"),
        (changed(_put("grids", value=[])), "definition-malformed"),
        (changed(_put("workloads", 0, "axes", value={"cols": 3})), "definition-malformed"),
        (changed(_put("workloads", 0, "axes", value={"rows": 2**40})), "definition-malformed"),
        (changed(_put("workloads", 0, "definition", value="x")), "definition-malformed"),
        (changed(_put("own", "lifted", value=None)), "definition-brings-code"),
        (changed(_put(*ABOUT, "reference", value=REFERENCE)), "definition-brings-code"),
        (changed(lambda b: b["own"]["variants"].append(b["own"]["variants"][0])),
         "definition-brings-code"),
        (changed(_put(*VARIANT, "serves", value="kernel")), "definition-brings-code"),
        (changed(_put(*VARIANT, "trust", value="L")), "definition-brings-code"),
        (changed(_put(*ABOUT, "op_type", value="rmsnorm")), "definition-brings-code"),
        (changed(_put(*VARIANT, "sources", 0, "content", value="import os\nos.system('x')\n")),
         "definition-invalid"),
        (changed(_put("own", "where", value="rows.__class__")), "definition-invalid"),
        (changed(_put("own", "where", value="rows <= 3")), "definition-invalid"),
    ],
)  # fmt: skip
def test_what_is_not_a_live_kernel_s_own_parameters_is_refused(
    kept: LiveKernels, text: str, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        kept.take(TARGET, post(text))
    assert refused.value.code == code
    assert list(kept.every(TARGET)) == []


def test_another_pod_cannot_exchange_the_source_of_a_known_kernel(kept: LiveKernels) -> None:
    kept.take(TARGET, post(norm()))
    source = norm().own.variants[0].sources[0].content
    other = changed(_put(*VARIANT, "sources", 0, "content", value=source + "\n# another\n"))
    with pytest.raises(Refused) as refused:
        kept.take(TARGET, post(other))
    assert refused.value.code == "definition-differs"
    assert kept.find(TARGET, norm().own.name) == norm().own


def test_a_target_has_so_many_live_kernels_and_no_more(
    kept: LiveKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_kernels, "MAX_DEFINITIONS", 1)
    kept.take(TARGET, post(norm()))
    with pytest.raises(Refused) as refused:
        kept.take(TARGET, post(lifted([live.scale(n) for n in (700, 7, 4096)])))
    assert refused.value.code == "too-many-definitions"
    kept.take(TARGET, post(norm(*SEEN, 99)))
    kept.take("other/chat", post(lifted([live.scale(n) for n in (700, 7, 4096)])))


def test_an_artifact_that_says_otherwise_how_launches_are_read_is_not_kept() -> None:
    own = norm().own
    solution = entry_of(own, Language.TRITON).incumbent
    expected = launch_data_of(own, solution)
    assert expected["intercept"]["code"] == "live"

    def files(**changes: Any) -> dict[str, bytes]:
        return {"artifact.json": json.dumps({**expected, **changes}).encode()}

    assert is_bound(files(), expected)
    foreign = {**expected["intercept"], "code": "artifact"}
    assert not is_bound(files(intercept=foreign), expected)
    assert not is_bound(files(grid=["1"]), expected)
    assert not is_bound(files(), {}), "the catalog's kernels take over no launches"
    assert not is_bound({"artifact.json": b"[" * 100_000}, {})
    assert is_bound({"artifact.json": b"{}"}, {})
