"""The table of the servers' operators: the catalog's definitions, the servers' own calls."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from typing import Any

import pytest
import torch
from tests.runtime.ways_in.real_servers import sources

from retuned import catalog
from retuned.runtime.core.attach import attached
from retuned.runtime.plugins.join import PARTS, PluginAttachment
from retuned.runtime.plugins.operators_table import SGL_KERNEL, SGLANG, VLLM
from retuned.runtime.schema import parse_spec
from retuned.runtime.torch_ops.binding import FORMS
from retuned.runtime.torch_ops.override import Arguments

ALL = (*VLLM, *SGL_KERNEL, *SGLANG)
LENGTHS = {"H": 4096, "I": 14336, "G": 28672, "M": 7, "P": 2048, "Q": 32, "K": 8, "D": 128}


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("binding", ALL, ids=lambda binding: binding.operator)
def test_what_a_launch_is_bound_to_is_the_catalogs_own_definition(binding: Any, dtype: str) -> None:
    made = binding.definition(LENGTHS, dtype=dtype)
    theirs = catalog.get(made["name"]).definition.model_dump(mode="json")
    assert made["op_type"] == theirs["op_type"]
    assert parse_spec(made).same_launch(parse_spec(theirs))


@pytest.mark.parametrize("binding", ALL, ids=lambda binding: binding.operator)
def test_every_tensor_of_an_operator_is_bound(binding: Any) -> None:
    schema = torch._C.parse_schema(binding.schema)
    assert schema.name == binding.operator
    arguments = Arguments(binding, schema)
    assert all("Tensor" not in str(schema.arguments[place].type) for place in arguments.values)


def test_epsilon_is_the_catalogs() -> None:
    for binding in ALL:
        if "rmsnorm" in binding.op_type:
            ((_, epsilon),) = binding.equal
            name = binding.definition(LENGTHS, dtype="float32")["name"]
            said = re.search(r"\+ ([0-9.e-]+)\)", catalog.get(name).definition.description or "")
            assert said is not None
            assert float(said.group(1)) == epsilon


def calls(name: str, *files: str) -> dict[str, list[list[str]]]:
    """Arguments of each call of ``torch.ops`` in files of a real server, as written."""
    found: dict[str, list[list[str]]] = {}
    for file in files:
        for node in ast.walk(ast.parse((sources(name) / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called.startswith("torch.ops."):
                    key = "::".join(called.split(".")[2:4])
                    found.setdefault(key, []).append([ast.unparse(each) for each in node.args])
    return found


@pytest.mark.timeout(900)
def test_vllm_calls_its_operators_with_as_many_arguments_as_the_schemas_have() -> None:
    found = calls("vllm", "vllm/_custom_ops.py", "vllm/kernels/vllm_c.py")
    for operator in ("_C::rms_norm", "_C::fused_add_rms_norm", "_C::rotary_embedding"):
        (binding,) = [each for each in VLLM if each.operator == operator]
        schema = torch._C.parse_schema(binding.schema)
        least = sum(not each.has_default_value() for each in schema.arguments)
        assert found[operator]
        for given in found[operator]:
            assert least <= len(given) <= len(schema.arguments)
    assert found["_C::rms_norm"][0][1:] == ["input", "weight", "epsilon"]


@pytest.mark.timeout(900)
def test_the_modules_that_are_waited_for_are_the_servers() -> None:
    waited = {part.name: part.needs for part in PARTS if part.switch == "RETUNED_OPERATORS"}
    for part, server in (("vllm-operators", "vllm"), ("sglang-operators", "sglang")):
        path = waited[part].replace(".", "/") + ".py"
        assert (sources(server) / path).is_file(), path
    text = (sources("vllm") / "vllm/_custom_ops.py").read_text(encoding="utf-8")
    assert re.search(r"^current_platform\.import_kernels\(\)", text, re.MULTILINE)


@pytest.mark.timeout(900)
def test_sglangs_operator_has_the_schema_that_its_function_leads_to() -> None:
    path = "sglang/kernels/ops/activation/activation.py"
    tree = ast.parse((sources("sglang") / path).read_text(encoding="utf-8"))
    (node,) = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and each.name == "_run_activation_inplace"
    ]
    space: dict[str, Any] = {"torch": torch}
    source = f"def run({ast.unparse(node.args)}) -> None: ..."
    exec(source, space)  # the signature alone, to ask PyTorch what it makes of it
    schema = torch.library.infer_schema(space["run"], mutates_args=["out"])
    assert SGLANG[0].schema == f"sglang::{node.name}{schema}"


@pytest.mark.parametrize("binding", ALL, ids=lambda binding: binding.operator)
def test_a_schema_that_differs_is_reported_and_the_operator_left_alone(
    server: Any, binding: Any
) -> None:
    name = binding.operator.partition("::")[2]
    other = re.sub(r"\) -> \(\)$", ", int more=0) -> ()", binding.schema.partition("::")[2])
    server.register(binding, schema=other)
    assert server.runtime.override(binding)[f"{binding.operator}/CPU"] == "schema-differs"
    assert server.told(binding.operator)["state"] == "schema-differs"
    dump = torch._C._dispatch_dump(f"{binding.operator}")
    assert dump.count("CPU") == 1, f"{name} has its own kernel and no other"


def test_a_process_that_loads_the_library_is_given_slots(
    server: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, bindings: Any
) -> None:
    server.runtime.close()
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_custom_ops.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RETUNED_SOCKET_DIR", str(tmp_path / "s"))
    server.register(*VLLM)
    process = PluginAttachment(tuple(part for part in PARTS if part.name == "vllm-operators"))
    runtime = process.join()
    assert runtime is not None
    try:
        assert runtime._host.answer({"op": "hello"})["operators"] == []
        importlib.import_module("vllm._custom_ops")
        told = runtime._host.answer({"op": "hello"})["operators"]
        assert {each["operator"] for each in told if each["state"] == "on"} == {
            binding.operator for binding in VLLM
        }
        assert str(runtime.socket) == "None", "nothing has been launched"
        out, x = torch.empty(2, 16), torch.randn(2, 16)
        torch.ops._C.rms_norm(out, x, torch.ones(16), 1e-6)
        assert "s" in str(runtime.socket), "the first launch opens it"
    finally:
        process.leave()
        for name in ("vllm._custom_ops", "vllm"):
            sys.modules.pop(name, None)
    assert runtime not in attached()


def test_the_switch_leaves_the_operators_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETUNED_SOCKET_DIR", str(tmp_path / "s"))
    monkeypatch.setenv("RETUNED_OPERATORS", "off")
    process = PluginAttachment(tuple(part for part in PARTS if part.switch == "RETUNED_OPERATORS"))
    runtime = process.join()
    assert runtime is not None
    assert process._watch is None, "nothing is waited for"
    process.leave()
