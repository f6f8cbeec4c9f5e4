"""The functions of vLLM and SGLang as they are in their packages, run through the same service.

Their modules import a whole server; only the functions that read tuned-config files are taken out
of the source and run, with stand-ins for what they ask the machine (name of the device, settings).
"""

from __future__ import annotations

import ast
import functools
import json
import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

import pytest
from tests.expect import raises_code
from tests.runtime.tuned_files import fake_servers as fakes
from tests.runtime.tuned_files.test_service import back, files, order
from tests.runtime.ways_in.real_servers import sources

from retuned.runtime.schema import Refused
from retuned.runtime.tuned_files.strict import digest_of

pytestmark = [pytest.mark.index, pytest.mark.timeout(900)]
WANTED = {
    *("get_config_file_name", "get_moe_configs", "get_default_config"),
    *("try_get_optimal_moe_config", "should_moe_wna16_use_cuda", "_use_low_smem_fp8_default"),
}
TOP = 8192
NEW = {"BLOCK_SIZE_M": 48, "BLOCK_SIZE_N": 32, "num_warps": 2}
OLD = {
    str(2**n): {"BLOCK_SIZE_M": 16 << (n % 3), "BLOCK_SIZE_N": 64, "num_warps": 4 + 4 * (n % 2)}
    for n in (9, 0, 3, 5, 6, 11, 12)
}
"""Not in rising order: where two are as near, the servers take what comes first."""
LOOKUP = {"E": 16, "N": 384, "K": 1024, "top_k": 4, "dtype": "fp8_w8a8"}


class Log(logging.Logger):
    """A server's logger: more methods, more arguments."""

    def info(self, *_: Any, **__: Any) -> None: ...

    warning = info_once = warning_once = info


def lifted(source: Path, name: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    """Return a module of the wanted functions of a source file, and nothing else of it."""
    tree = ast.parse(source.read_text("utf-8"))
    kept = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in WANTED]
    assert {"get_moe_configs", "try_get_optimal_moe_config"} <= {node.name for node in kept}
    module: Any = ModuleType(name)
    module.__dict__.update(
        functools=functools, json=json, os=os, logger=Log("x"), __file__=str(source), Any=Any,
        Optional=Optional, Dict=dict, List=list, Tuple=tuple, **given,
    )  # fmt: skip
    code = compile(ast.Module([*kept], []), str(source), "exec", dont_inherit=True)
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    package: Any = ModuleType(name.rpartition(".")[0])
    package.get_config = lambda: None
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return module


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "mine"
    folder.mkdir()
    return lifted(
        sources("vllm") / "vllm/model_executor/layers/fused_moe/fused_moe.py",
        fakes.VLLM,
        monkeypatch,
        envs=SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=str(folder), VLLM_BATCH_INVARIANT=False),
        get_device_name_as_file_name=lambda: "Made_Up",
        current_platform=SimpleNamespace(is_rocm=lambda: False, is_cuda=lambda: True),
        next_power_of_2=lambda n: 1 << max(n - 1, 0).bit_length(),
    )


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "configs" / "triton_3_9_0").mkdir(parents=True)
    (tmp_path / "configs" / "triton_3_6_0").mkdir()
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(tmp_path))
    triton = SimpleNamespace(__version__="3.9.0")
    monkeypatch.setitem(sys.modules, "triton", triton)
    calm = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    return lifted(
        sources("sglang")
        / "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
        fakes.SGLANG,
        monkeypatch,
        triton=triton,
        get_device_name=lambda: "Made Up",
        get_exec=lambda: calm,
        _is_hip=False,
        _get_cuda_shared_memory_per_block_optin=lambda: None,
    )


def picks(module: Any) -> dict[int, Any]:
    ask = functools.partial(
        module.try_get_optimal_moe_config, (16, 768, 1024), (16, 1024, 384), 4, "fp8_w8a8"
    )
    return {m: dict(ask(m)) for m in (*range(1, TOP + 1), 20_000, 100_000)}


def change(kind: str, before: bytes | None, **fields: Any) -> dict[str, Any]:
    return {
        "format": kind,
        "guard": [[40, 56], [300, 310]],
        "rows": [{"M": 48, "config": NEW}, {"M": 304, "config": NEW}],
        "lookup": LOOKUP,
        "before": digest_of(before),
    } | fields


def guarded(m: int) -> bool:
    return 40 <= m <= 56 or 300 <= m <= 310


def proven(module: Any, body: dict[str, Any], path: Path) -> None:
    """Carry the change out and back; at every size the server has to say the right thing."""
    before, data = picks(module), path.read_bytes() if path.exists() else None
    tuned = files()
    tuned.prepare(order(body))
    said = tuned.commit(order(body))
    assert said["outcome"] == "engaged", said
    assert said["path"] == str(path)
    assert picks(module) == {m: NEW if guarded(m) else config for m, config in before.items()}
    assert tuned.rollback(back(body))["outcome"] == "engaged"
    assert (path.read_bytes() if path.exists() else None) == data
    assert picks(module) == before


def test_vllms_own_lookup_takes_a_change_at_the_guarded_sizes_alone(
    vllm: Any, tmp_path: Path
) -> None:
    path = tmp_path / "mine" / "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8.json"
    path.write_text(json.dumps({"triton_version": "3.9.0"} | OLD, indent=4))
    proven(vllm, change("moe-vllm", path.read_bytes()), path)


def test_vllms_own_defaults_are_kept_where_there_was_no_file(vllm: Any, tmp_path: Path) -> None:
    defaults: list[list[Any]] = []
    for m in range(1, 4097):  # what the server picks, as told by whoever asked it
        config = vllm.get_default_config(m, 16, 384, 1024, 4, "fp8_w8a8", None)
        if not defaults or defaults[-1][2] != config:
            defaults.append([m, m, config])
        defaults[-1][1] = m
    defaults[-1][1] = None
    path = tmp_path / "mine" / "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8.json"
    proven(vllm, change("moe-vllm", None, defaults=defaults), path)
    short = [*defaults[:-2], [defaults[-2][0], None, defaults[-2][2]]]
    with raises_code(Refused, "picks-differ"):
        files().prepare(order(change("moe-vllm", None, defaults=short)))


def test_names_of_vllms_files_with_blocks_and_packed_weights_are_its_own(
    vllm: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    blocks = folder / "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8,block_shape=[128,128].json"
    packed = folder / "E=16,N=768,device_name=Made_Up,dtype=int4_w4a16.json"
    for path, lookup in (
        (blocks, LOOKUP | {"block_shape": [128, 128]}),
        (packed, LOOKUP | {"dtype": "int4_w4a16"}),
    ):
        path.write_text(json.dumps(OLD))
        body = change("moe-vllm", path.read_bytes(), lookup=lookup)
        tuned = files()
        assert tuned.prepare(order(body))["path"] == str(path)
        assert tuned.commit(order(body))["engaged"]


def test_sglangs_own_lookup_takes_a_change_at_the_guarded_sizes_alone(
    sglang: Any, tmp_path: Path
) -> None:
    name = "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8.json"
    path = tmp_path / "configs" / "triton_3_9_0" / name
    path.write_text(json.dumps(OLD, indent=2) + "\n")
    proven(sglang, change("moe-sglang", path.read_bytes()), path)


def test_sglangs_file_of_an_older_triton_is_where_the_new_one_begins(
    sglang: Any, tmp_path: Path
) -> None:
    name = "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8.json"
    older = tmp_path / "configs" / "triton_3_6_0" / name
    older.write_text(json.dumps(OLD))
    body = change("moe-sglang", older.read_bytes())
    proven(sglang, body, tmp_path / "configs" / "triton_3_9_0" / name)


def test_sglangs_file_for_the_second_product_is_one_of_its_own(sglang: Any, tmp_path: Path) -> None:
    root = tmp_path / "configs" / "triton_3_9_0"
    name = "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8"
    (root / f"{name}.json").write_text(json.dumps(OLD))
    path = root / f"{name}_down.json"
    path.write_text(json.dumps({m: c | {"USE_TMA": True} for m, c in OLD.items()}))
    up = sglang.try_get_optimal_moe_config(
        (16, 768, 1024), (16, 1024, 384), 4, "fp8_w8a8", 48, return_down_config=True
    )[0]
    new = NEW | {"USE_TMA": False}
    body = change("moe-sglang", path.read_bytes(), lookup=LOOKUP | {"down": True}, guard=[[40, 56]])
    tuned = files()
    tuned.prepare(order(body | {"rows": [{"M": 48, "config": new}]}))
    said = tuned.commit(order(body | {"rows": [{"M": 48, "config": new}]}))
    assert said["outcome"] == "not-engaged"  # both products share the first one's BLOCK_SIZE_M
    assert json.loads(path.read_text())["64"]["USE_TMA"] is True
    fits = new | {"BLOCK_SIZE_M": up["BLOCK_SIZE_M"]}
    second = body | {"rows": [{"M": 44, "config": fits}], "guard": [[41, 46]]}
    tuned.prepare(order(second, epoch=2))
    assert tuned.commit(order(second, epoch=2))["engaged"]


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(("name", "kind"), [("vllm", "moe-vllm"), ("sglang", "moe-sglang")])
def test_what_the_servers_own_lookups_pick_is_told_for_every_size_with_a_file_and_without(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, kind: str, written: bool
) -> None:
    module = request.getfixturevalue(name)
    file = "E=16,N=384,device_name=Made_Up,dtype=fp8_w8a8.json"
    folder = "mine" if name == "vllm" else "configs/triton_3_9_0"
    if written:
        (tmp_path / folder / file).write_text(json.dumps(OLD))
    said = files().look({"format": kind, "lookup": LOOKUP})
    assert said["path"] == str(tmp_path / folder / file)
    assert (said["digest"] is not None) is written
    found = picks(module)
    runs = [(first, last, row) for first, last, row in said["runs"]]
    assert (runs[0][0], runs[-1][1]) == (1, 2**31 - 1)
    for m, config in found.items():
        assert [row for first, last, row in runs if first <= m <= last] == [config]
