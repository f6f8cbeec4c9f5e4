"""Orders on files, carried out: engaged only if the server itself says so, else all as it was."""

from __future__ import annotations

import hashlib
import importlib
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code
from tests.runtime.tuned_files import fake_servers as fakes
from tests.runtime.tuned_files.test_formats import GEMM, RESULTS

from retuned.runtime import attach
from retuned.runtime.artifacts.trust import SIGNATURE_FILE, Trust
from retuned.runtime.core.epochs import Fence
from retuned.runtime.core.host import RuntimeHost
from retuned.runtime.plugins import join
from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.service import TunedFiles
from retuned.runtime.tuned_files.strict import digest_of
from retuned.store.artifact_folder import sign_artifact
from retuned.store.keys import Ed25519Notary

NAME = "E=8,N=256,device_name=X.json"
OLD = {"1": {"BLOCK_SIZE_M": 16}, "64": {"BLOCK_SIZE_M": 64}, "512": {"BLOCK_SIZE_M": 128}}
NEW = {"BLOCK_SIZE_M": 32, "num_warps": 8}
LOOKUP = {"E": 8, "N": 256, "K": 512, "top_k": 2, "dtype": None}
NO_GRAPHS = {"count": 0, "captured_before": 0, "following": True}
SIZES = (*range(1, 1200), 8192)


def order(body: dict[str, Any], *, epoch: int = 1, **fields: Any) -> dict[str, Any]:
    said = {
        "id": f"order-{epoch}",
        "kind": "swap",
        "definition": "fused_moe",
        "target": "server-a",
        "who": "daemon",
        "when": "2026-11-22T10:00:00Z",
        "epoch": epoch,
        "change": json.dumps(body),
    }
    return {"order": said | fields}


def moe_change(data: bytes | None, **fields: Any) -> dict[str, Any]:
    body = {
        "format": "moe-vllm",
        "guard": [[20, 28]],
        "rows": [{"M": 24, "config": NEW}],
        "lookup": LOOKUP,
        "before": digest_of(data),
    }
    return body | fields


def back(body: dict[str, Any], *, epoch: int = 2, undoes: str = "order-1") -> dict[str, Any]:
    return order(body, epoch=epoch, kind="rollback", undoes=undoes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "configs"
    found.mkdir()
    (found / NAME).write_text(json.dumps(OLD, indent=4))
    return found


Load = Callable[[str, Any], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    for name in (fakes.VLLM, fakes.SGLANG, fakes.AITER, fakes.TUNABLE):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def put(name: str, module: Any) -> Any:
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


@pytest.fixture
def module(folder: Path, tmp_path: Path, load: Load) -> Any:
    return load(fakes.VLLM, fakes.vllm(folder, tmp_path / "package"))


def files(*, trust: Trust | None = None, graphs: dict[str, Any] | None = None) -> TunedFiles:
    fence = Fence()
    made = TunedFiles(
        trust=trust or Trust(), fence=lambda: fence, graphs=lambda: graphs or NO_GRAPHS
    )
    made.turn_on()
    return made


def picks(module: Any, sizes: Any = SIZES) -> dict[int, Any]:
    ask = module.try_get_optimal_moe_config
    return {m: ask((8, 512, 512), (8, 512, 256), 2, None, m, None) for m in sizes}


def test_a_change_reaches_the_guarded_sizes_of_the_live_server_and_no_other(
    module: Any, folder: Path
) -> None:
    data = (folder / NAME).read_bytes()
    before = picks(module)
    tuned = files()
    request = order(moe_change(data))
    said = tuned.prepare(request)
    assert (said["path"], said["reload"]) == (str(folder / NAME), "now")
    assert (folder / NAME).read_bytes() == data
    said = tuned.commit(request)
    assert (said["outcome"], said["engaged"], said["reach"]) == ("engaged", True, "all")
    assert (said["wrote"], said["restored"], said["mismatches"]) == (True, False, [])
    assert said["digest"] == digest_of((folder / NAME).read_bytes())
    expected = {m: NEW if 20 <= m <= 28 else before[m] for m in SIZES}
    assert picks(module) == expected
    assert tuned.commit(request) == said | {"already": True}
    assert tuned.prepare(request) == {"already": True}
    undone = tuned.rollback(back(moe_change(data)))
    assert (undone["outcome"], undone["restored"]) == ("engaged", True)
    assert (folder / NAME).read_bytes() == data
    assert picks(module) == before
    assert tuned.rollback(back(moe_change(data)))["already"]


def test_what_captured_graphs_launch_is_said_to_need_a_new_capture(
    module: Any, folder: Path
) -> None:
    request = order(moe_change((folder / NAME).read_bytes()))
    tuned = files(graphs={"count": 3, "captured_before": 1, "following": True, "graphs": []})
    tuned.prepare(request)
    said = tuned.commit(request)
    assert said["reach"] == "needs-recapture"
    assert said["graphs"] == {"count": 3, "captured_before": 1, "following": True}
    blind = files(graphs={"count": 0, "captured_before": 0, "following": False})
    assert blind.rollback(back(moe_change(None)))["reach"] == "graphs-unknown"


def test_a_cache_that_does_not_empty_is_no_engagement_and_the_file_goes_back(
    module: Any, folder: Path
) -> None:
    data = (folder / NAME).read_bytes()
    picks(module)
    frozen = module.get_moe_configs(8, 256, None, 0, 0)

    def configs(*_: Any) -> Any:
        return frozen

    configs.cache_clear = lambda: None  # type: ignore[attr-defined]
    module.get_moe_configs = configs
    tuned = files()
    request = order(moe_change(data))
    tuned.prepare(request)
    said = tuned.commit(request)
    assert (said["outcome"], said["engaged"], said["restored"]) == ("not-engaged", False, True)
    assert said["reason"] == "picks-differ"
    assert said["mismatches"]
    assert (folder / NAME).read_bytes() == data
    assert tuned.state({})["outcomes"]["order-1"]["outcome"] == "not-engaged"


def test_a_cache_that_fails_to_empty_puts_everything_back(module: Any, folder: Path) -> None:
    data = (folder / NAME).read_bytes()
    before = picks(module)
    calls: list[int] = []
    real = module.get_moe_configs.cache_clear

    class Configs:
        def __call__(self, *args: Any) -> Any:
            return real.__self__(*args)

        def cache_clear(self) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("busy")
            real()

    module.get_moe_configs = Configs()
    tuned = files()
    request = order(moe_change(data))
    tuned.prepare(request)
    said = tuned.commit(request)
    assert (said["outcome"], said["reason"]) == ("not-engaged", "lookup-failed")
    assert said["restored"]
    assert (folder / NAME).read_bytes() == data
    assert picks(module) == before


def test_a_pick_that_cannot_even_be_compared_leaves_no_file_behind(
    module: Any, folder: Path
) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ArithmeticError("neither true nor false")

        __hash__ = None  # type: ignore[assignment]

    data = (folder / NAME).read_bytes()
    tuned = files()
    request = order(moe_change(data))
    tuned.prepare(request)
    real = module.try_get_optimal_moe_config
    module.try_get_optimal_moe_config = lambda *a: dict.fromkeys(real(*a), Odd())
    with pytest.raises(ArithmeticError):
        tuned.commit(request)
    assert (folder / NAME).read_bytes() == data


def test_a_server_that_picks_by_another_rule_is_refused_before_anything_is_written(
    module: Any, folder: Path
) -> None:
    def next_above(w1: Any, w2: Any, top_k: int, dtype: Any, m: int, block: Any = None) -> Any:
        found = module.get_moe_configs(8, 256, None, 0, 0)
        return found[min((key for key in found if key >= m), default=max(found))]

    data = (folder / NAME).read_bytes()
    module.try_get_optimal_moe_config = next_above
    with raises_code(Refused, "picks-differ"):
        files().prepare(order(moe_change(data)))
    assert [each.name for each in folder.iterdir()] == [NAME]


def test_an_order_for_another_file_than_is_there_is_refused(module: Any, folder: Path) -> None:
    with raises_code(Refused, "file-differs"):
        files().prepare(order(moe_change(b"something else")))
    with raises_code(Refused, "file-differs"):
        files().prepare(order(moe_change(None)))


def test_a_file_that_changes_between_the_phases_is_left_alone(module: Any, folder: Path) -> None:
    tuned = files()
    request = order(moe_change((folder / NAME).read_bytes()))
    tuned.prepare(request)
    (folder / NAME).write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    with raises_code(Refused, "changed-by-others"):
        tuned.commit(request)
    assert (folder / NAME).read_text() == '{"1": {"BLOCK_SIZE_M": 16}}'


def test_a_way_back_over_somebody_elses_file_is_refused_and_said(module: Any, folder: Path) -> None:
    body = moe_change((folder / NAME).read_bytes())
    tuned = files()
    tuned.prepare(order(body))
    tuned.commit(order(body))
    (folder / NAME).write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    with raises_code(Refused, "changed-by-others"):
        tuned.rollback(back(body))


def test_ranks_that_share_a_file_write_it_once_and_each_prove_it(
    folder: Path, tmp_path: Path, load: Load
) -> None:
    body = moe_change((folder / NAME).read_bytes())
    ranks = [(fakes.vllm(folder, tmp_path / "package"), files()) for _ in range(3)]
    before = picks(ranks[0][0])
    for module, tuned in ranks[:2]:
        load(fakes.VLLM, module)
        picks(module)
        tuned.prepare(order(body))
    for index, (module, tuned) in enumerate(ranks):
        load(fakes.VLLM, module)
        if index == 2:  # a rank that came late finds the file written
            tuned.prepare(order(body))
        said = tuned.commit(order(body))
        assert (said["engaged"], said["wrote"]) == (True, index == 0)
        assert picks(module)[24] == NEW
    for index, (module, tuned) in enumerate(ranks):
        load(fakes.VLLM, module)
        said = tuned.rollback(back(body))
        assert (said["engaged"], said["restored"]) == (True, index == 0)
        assert picks(module) == before


def test_a_process_that_was_restarted_can_still_go_back(module: Any, folder: Path) -> None:
    data = (folder / NAME).read_bytes()
    first = files()
    first.prepare(order(moe_change(data)))
    first.commit(order(moe_change(data)))
    module.get_moe_configs.cache_clear()
    second = files()
    assert second.rollback(back(moe_change(data)))["engaged"]
    assert (folder / NAME).read_bytes() == data


def test_a_file_of_the_package_is_copied_with_the_change_and_never_written(
    tmp_path: Path, load: Load
) -> None:
    package, folder = tmp_path / "package", tmp_path / "mine"
    (package / "configs").mkdir(parents=True)
    folder.mkdir()
    shipped = package / "configs" / NAME
    (tmp_path / "store").write_text(json.dumps({"triton_version": "3.9.0"} | OLD))
    shipped.symlink_to(tmp_path / "store")  # as some installers do
    data = shipped.read_bytes()
    module = load(fakes.VLLM, fakes.vllm(folder, package))
    before = picks(module)
    tuned = files()
    body = moe_change(data)
    tuned.prepare(order(body))
    assert tuned.commit(order(body))["engaged"]
    assert shipped.read_bytes() == data
    assert json.loads((folder / NAME).read_text())["triton_version"] == "3.9.0"
    assert picks(module)[24] == NEW
    late = files()
    late.prepare(order(body))
    assert not late.commit(order(body))["wrote"]
    assert tuned.rollback(back(body))["engaged"]
    assert not (folder / NAME).exists()
    assert picks(module) == before


def test_without_a_file_the_servers_own_defaults_are_pinned(folder: Path, module: Any) -> None:
    (folder / NAME).unlink()
    before = picks(module)
    told = [[1, 64, fakes.default(1)], [65, None, fakes.default(65)]]
    tuned = files()
    with raises_code(Refused, "default-unknown"):
        tuned.prepare(order(moe_change(None)))
    wrong = [[1, 100, fakes.default(1)], [101, None, fakes.default(65)]]
    with raises_code(Refused, "picks-differ"):
        tuned.prepare(order(moe_change(None, defaults=wrong)))
    body = moe_change(None, defaults=told)
    tuned.prepare(order(body))
    assert tuned.commit(order(body))["engaged"]
    assert picks(module) == {m: NEW if 20 <= m <= 28 else before[m] for m in SIZES}
    assert tuned.rollback(back(body))["engaged"]
    assert not (folder / NAME).exists()


def test_a_server_without_a_folder_of_its_own_is_told_how_to_get_one(
    tmp_path: Path, load: Load
) -> None:
    load(fakes.VLLM, fakes.vllm(None, tmp_path))
    with raises_code(Refused, "folder-not-set", "VLLM_TUNED_CONFIG_FOLDER"):
        files().prepare(order(moe_change(None)))


def test_a_server_that_is_not_loaded_or_not_known_is_refused(
    module: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = moe_change((folder / NAME).read_bytes())
    with raises_code(Refused, "server-not-here"):
        files().prepare(order(body | {"format": "moe-sglang"}))
    del module.try_get_optimal_moe_config
    with raises_code(Refused, "server-unknown", "try_get_optimal_moe_config"):
        files().prepare(order(body))
    module.try_get_optimal_moe_config = lambda *_: {}
    module.get_moe_configs = lambda *_: None
    with raises_code(Refused, "server-unknown", "cache_clear"):
        files().prepare(order(body))


def test_a_name_of_a_file_that_leads_elsewhere_is_refused(module: Any, folder: Path) -> None:
    module.get_config_file_name = lambda *_: "../../etc/passwd"
    with raises_code(Refused, "server-unknown"):
        files().prepare(order(moe_change(None)))


def test_epochs_terms_and_the_switch_hold_as_for_kernels(module: Any, folder: Path) -> None:
    body = moe_change((folder / NAME).read_bytes())
    tuned = files()
    with raises_code(Refused, "not-prepared"):
        tuned.commit(order(body))
    tuned.prepare(order(body, epoch=5) | {"term": 9})
    tuned.commit(order(body, epoch=5) | {"term": 9})
    with raises_code(Refused, "former-daemon"):
        tuned.rollback(back(body, epoch=6, undoes="order-5") | {"term": 8})
    with raises_code(Refused, "stale-epoch"):
        tuned.rollback(back(body, epoch=4, undoes="order-5") | {"term": 9})
    off = TunedFiles(trust=Trust(), fence=Fence, graphs=dict)
    with raises_code(Refused, "tuned-off"):
        off.prepare(order(body))


def test_an_unsigned_change_is_refused_where_signatures_are_needed_and_a_way_back_is_not(
    module: Any, folder: Path, tmp_path: Path
) -> None:
    notary = Ed25519Notary(tmp_path / "keys")
    trust = Trust(notary.public_hex())
    body = moe_change((folder / NAME).read_bytes())
    text = json.dumps(body)
    artifact = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "artifact.json").write_text(text)
    sign_artifact(
        tmp_path / "artifact",
        notary=notary,
        artifact=artifact,
        definition="fused_moe",
        target="server-a",
    )
    signature = (tmp_path / "artifact" / SIGNATURE_FILE).read_text()
    tuned = files(trust=trust)
    with raises_code(Refused, "signature-missing"):
        tuned.prepare(order(body))
    others: list[dict[str, Any]] = [
        {"definition": "gemm"},
        {"target": "server-b"},
        {"change": text + " "},
    ]
    for fields in others:
        with raises_code(Refused, "signature-mismatch"):
            tuned.prepare(order(body, **fields) | {"signature": signature})
    assert not tuned.prepare(order(body) | {"signature": signature})["already"]
    assert tuned.commit(order(body) | {"signature": signature})["engaged"]
    assert tuned.rollback(back(body))["engaged"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "maybe"}, "kind"),
        ({"change": 7}, "change"),
        ({"change": "{"}, "change"),
        ({"change": "[]"}, "change"),
        ({"change": '{"before": NaN}'}, "change"),
        ({"change": '{"before": null, "before": null}'}, "change"),
        ({"change": "{}"}, "before"),
        ({"epoch": 0}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"id": ""}, "id"),
        ({"kind": "rollback"}, "undoes"),
    ],
)
def test_an_order_is_checked_field_by_field(
    module: Any, folder: Path, fields: dict[str, Any], says: str
) -> None:
    with raises_code(Refused, "order-invalid", f"'{says}'"):
        files().prepare(order(moe_change(None), **fields))


def test_the_control_socket_knows_the_operations(module: Any, folder: Path) -> None:
    host = RuntimeHost("s", trust=Trust())
    body = moe_change((folder / NAME).read_bytes())
    with raises_code(Refused, "tuned-off"):
        host.answer({"op": "tuned-prepare", **order(body)})
    host.tuned.turn_on()
    host.answer({"op": "tuned-prepare", **order(body)})
    said = host.answer({"op": "tuned-commit", **order(body)})
    assert said["engaged"]
    json.dumps(host.answer({"op": "tuned"}), allow_nan=False)
    host.reset()
    assert host.answer({"op": "tuned"})["outcomes"] == {}


def test_a_commit_of_something_else_under_the_same_name_is_refused(
    module: Any, folder: Path
) -> None:
    body = moe_change((folder / NAME).read_bytes())
    tuned = files()
    tuned.prepare(order(body))
    other = body | {"rows": [{"M": 24, "config": {"BLOCK_SIZE_M": 512}}]}
    with raises_code(Refused, "not-prepared"):
        tuned.commit(order(other))


def test_a_daemon_drives_a_change_over_the_socket(
    module: Any, folder: Path, tmp_path: Path
) -> None:
    runtime = attach(tmp_path / "c.sock", server="s")
    assert runtime.tune_files()["moe-vllm"] == fakes.VLLM
    body = moe_change((folder / NAME).read_bytes())
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(tmp_path / "c.sock"))
        peer.settimeout(120)
        with peer.makefile("rw") as stream:

            def ask(op: str, request: dict[str, Any]) -> dict[str, Any]:
                stream.write(json.dumps({"op": op, "term": 3, **request}) + "\n")
                stream.flush()
                answer: dict[str, Any] = json.loads(stream.readline())
                return answer

            assert ask("tuned-prepare", order(body))["ok"]
            assert ask("tuned-commit", order(body))["engaged"]
            assert picks(module, [24])[24] == NEW
            assert ask("tuned-rollback", back(body))["engaged"]
            refused = ask("tuned-prepare", order(moe_change(b"x"), epoch=7))
            assert (refused["ok"], refused["reason"]) == (False, "file-differs")
    runtime.close()


@pytest.mark.parametrize(("switch", "on"), [("", True), ("off", False)])
def test_a_joined_process_takes_orders_on_files_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, on: bool
) -> None:
    monkeypatch.setenv("RETUNED_SOCKET_DIR", str(tmp_path / "s"))
    monkeypatch.setenv("RETUNED_TUNED", switch)
    (part,) = (each for each in join.PARTS if each.name == "tuned-files")
    process = join.PluginAttachment((part,))
    runtime = process.join()
    assert runtime is not None
    try:
        assert runtime._host.answer({"op": "tuned"})["on"] is on
        assert runtime.socket is None
    finally:
        process.leave()


# --- the other servers ----------------------------------------------------------------------------


def test_a_file_of_another_triton_is_the_beginning_of_this_ones(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "triton", type("Triton", (), {"__version__": "3.9.0"}))
    for version in ("3_1_0", "3_6_0"):
        (tmp_path / "configs" / f"triton_{version}").mkdir(parents=True)
    old = tmp_path / "configs" / "triton_3_6_0" / NAME
    old.write_text(json.dumps(OLD))
    module = load(fakes.SGLANG, fakes.sglang(tmp_path, "3.9.0"))
    body = moe_change(old.read_bytes(), format="moe-sglang")
    tuned = files()
    with raises_code(Refused, "folder-not-set", "triton_3_9_0"):
        tuned.prepare(order(body))
    (tmp_path / "configs" / "triton_3_9_0").mkdir()
    tuned.prepare(order(body))
    said = tuned.commit(order(body))
    assert said["engaged"]
    assert said["path"] == str(tmp_path / "configs" / "triton_3_9_0" / NAME)
    ask = module.try_get_optimal_moe_config
    names = {"block_shape": None, "per_channel_quant": False, "return_down_config": True}
    up, (down, _) = ask((8, 512, 512), (8, 512, 256), 2, None, 24, **names)
    assert up == down == NEW
    down_lookup = {**LOOKUP, "down": True}
    with raises_code(Refused, "down-file-missing"):
        tuned.prepare(order(body | {"lookup": down_lookup}, epoch=3))
    assert tuned.rollback(back(body))["engaged"]
    assert old.read_text() == json.dumps(OLD)


AITER_LOOKUP = {"N": 512, "K": 256, "bias": False}


def aiter_change(data: bytes, **fields: Any) -> dict[str, Any]:
    header, _, row = data.decode().splitlines()[:3]
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    body = {
        "format": "aiter",
        "guard": [[17, 32]],
        "rows": [cells | {"M": "32", "solidx": "11", "kernelName": "k_n"}],
        "rule": "fine-then-capped",
        "lookup": AITER_LOOKUP,
        "before": digest_of(data),
    }
    return body | fields


@pytest.fixture
def table(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bf16_tuned_gemm.csv"
    path.write_text(GEMM)
    monkeypatch.setenv("AITER_CONFIG_GEMM_BF16", str(path))
    load(fakes.AITER, fakes.aiter(path))
    return path


def test_a_table_of_aiter_is_reloaded_through_all_its_caches(table: Path) -> None:
    module: Any = sys.modules[fakes.AITER]
    before = {m: module.get_GEMM_A16W16_config(m, 512, 256) for m in range(1, 200)}
    body = aiter_change(table.read_bytes())
    tuned = files()
    tuned.prepare(order(body))
    assert tuned.commit(order(body))["engaged"]
    for m in range(1, 200):
        found = module.get_GEMM_A16W16_config(m, 512, 256)
        assert found["kernelName"] == "k_n" if 17 <= m <= 32 else found == before[m], m
    assert tuned.rollback(back(body))["engaged"]
    assert table.read_text() == GEMM


def test_another_padding_than_the_servers_own_is_refused(table: Path) -> None:
    body = aiter_change(table.read_bytes(), rule="small-power-then-capped")
    with raises_code(Refused, "padding-unknown", "M=1"):
        files().prepare(order(body))


def test_a_table_that_is_merged_from_several_is_refused(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = aiter_change(table.read_bytes())
    for named in (f"{table}:{table}2", ""):
        monkeypatch.setenv("AITER_CONFIG_GEMM_BF16", named)
        with raises_code(Refused, "merged-table"):
            files().prepare(order(body))


def test_a_table_that_compiled_code_looks_up_in_is_written_for_the_next_start(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a8w8.csv"
    text = "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName\n"
    path.write_text(text + "gfx942,80,32,512,256,torch.int8,3,0,1.5,k_a\n")
    monkeypatch.setenv("AITER_CONFIG_GEMM_A8W8", str(path))
    cells = dict(
        zip(text.strip().split(","), path.read_text().split("\n")[1].split(","), strict=True)
    )
    body = {
        "format": "aiter",
        "guard": [[17, 32]],
        "rows": [cells | {"kernelId": "4"}],
        "rule": "fine-then-power",
        "lookup": {"table": "GEMM_A8W8"},
        "before": digest_of(path.read_bytes()),
    }
    tuned = files()
    assert tuned.prepare(order(body))["reload"] == "at-restart"
    said = tuned.commit(order(body))
    assert (said["outcome"], said["engaged"], said["wrote"]) == ("needs-restart", False, True)
    assert ",4,0,1.5," in path.read_text()
    assert tuned.rollback(back(body))["outcome"] == "needs-restart"
    assert ",3,0,1.5," in path.read_text()


@pytest.fixture
def tunable(tmp_path: Path, load: Load) -> fakes.Tunable:
    path = tmp_path / "tunableop_results0.csv"
    path.write_text(RESULTS)
    found: fakes.Tunable = load(fakes.TUNABLE, fakes.Tunable(path))
    return found


KEY = ("GemmTunableOp_BFloat16_TN", "tn_64_16_32_ld_32_32_64")


def results_change() -> dict[str, Any]:
    rows = [[*KEY, "Gemm_Hipblaslt_77", "0.25"], ["GemmTunableOp_float_NT", "nt_1_2_3", "G", "1"]]
    return {"format": "tunable-op", "rows": rows, "before": digest_of(RESULTS.encode())}


def test_results_of_pytorch_are_cleared_and_read_again(tunable: fakes.Tunable) -> None:
    before = dict(tunable.rows)
    tuned = files()
    tuned.prepare(order(results_change()))
    assert tuned.commit(order(results_change()))["engaged"]
    assert tunable.rows[KEY] == "Gemm_Hipblaslt_77"
    assert tuned.rollback(back(results_change()))["engaged"]
    assert tunable.rows == before


def test_results_that_only_memory_has_are_not_lost(tunable: fakes.Tunable) -> None:
    tunable.rows["GemmTunableOp_float_NN", "nn_1_1_1"] = "G"
    with raises_code(Refused, "rows-in-memory-only", "nn_1_1_1"):
        files().prepare(order(results_change()))


def test_a_pytorch_that_tunes_or_does_not_look_is_refused(tunable: fakes.Tunable) -> None:
    tunable.tuning = True
    with raises_code(Refused, "tuning-on"):
        files().prepare(order(results_change()))
    tunable.on = False
    with raises_code(Refused, "tunable-off"):
        files().prepare(order(results_change()))


def test_a_pytorch_that_cannot_forget_takes_the_file_at_its_next_start(
    tunable: fakes.Tunable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fakes.Tunable, "_clear_all")
    tuned = files()
    tuned.prepare(order(results_change()))
    assert tuned.commit(order(results_change()))["outcome"] == "needs-restart"
    assert tunable.rows[KEY] == "Gemm_Hipblaslt_12"


def test_the_installed_pytorch_has_what_is_asked_for_and_is_off_unless_switched_on(
    load: Load,
) -> None:
    tunable = importlib.import_module(fakes.TUNABLE)
    load(fakes.TUNABLE, tunable)
    for name in ("get_results", "get_filename", "read_file", "tuning_is_enabled", "_clear_all"):
        assert callable(getattr(tunable, name)), name
    assert not tunable.is_enabled()
    with raises_code(Refused, "tunable-off"):
        files().prepare(order(results_change()))
