"""FlashInfer-Bench JSON: what goes out comes back, what strangers write is read and never run."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code, raises_naming

from retuned import catalog
from retuned.contract import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    Environment,
    Guard,
    Language,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceStatus,
    TrustClass,
    Workload,
)
from retuned.errors import UnreadableInput
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict
from retuned_bench.flashinfer.definitions import export_definition, import_definition
from retuned_bench.flashinfer.schema import (
    DocumentType,
    NotExportable,
    kind_of,
    read_documents,
    traces_of,
)
from retuned_bench.flashinfer.solutions import export_solution, import_solution
from retuned_bench.flashinfer.traces import export_trace, import_trace

HERE = "test"
ENVIRONMENT = Environment(arch="gfx942", runtime="rocm 7.0", torch="2.15.0", numerics={"A": "1"})
SHA = "sha256:" + "a" * 64
NAMES = (
    "add_rmsnorm_h64",
    "attention_h2_d16",
    "gelu_mul_i64",
    "layernorm_h64",
    "linear_w8_n32_k64",
    "rmsnorm_h64",
    "rope_q4_k2_d64",
    "silu_mul_i64",
    "softmax_n64",
    "topk_gating_e64_k6",
)
LIKE_THEIRS = (
    DType.FLOAT32,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.FLOAT8_E4M3FN,
    DType.INT64,
    DType.INT32,
    DType.INT8,
    DType.BOOL,
)

words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda word: word.isidentifier() and not _is_keyword(word)
)
names = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,20}", fullmatch=True)
digests = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
positive = st.floats(min_value=1e-6, max_value=1e9)


def _is_keyword(word: str) -> bool:
    import keyword

    return keyword.iskeyword(word)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    axes = draw(
        st.dictionaries(
            words.map(str.upper),
            st.one_of(
                st.builds(AxisConst, value=st.integers(0, 2**30)),
                st.builds(AxisVar, description=st.text(max_size=20)),
            ),
            min_size=1,
            max_size=4,
        )
    )
    spec = st.builds(
        TensorSpec,
        shape=st.lists(st.sampled_from(sorted(axes)), max_size=3).map(tuple),
        dtype=st.sampled_from(LIKE_THEIRS),
    )
    tensors = draw(st.dictionaries(words, spec, min_size=2, max_size=5))
    (first, *others) = tensors
    inputs = {
        name: tensors[name].model_copy(update={"constant": draw(st.booleans())}) for name in others
    }
    return Definition(
        name=draw(names),
        op_type=draw(names),
        description=draw(st.text(max_size=40)),
        axes=axes,
        inputs=inputs,
        outputs={first: tensors[first]},
        reference=draw(
            st.sampled_from(["def run(**inputs):\n    return inputs", "def run(x): x\n"])
        ),
        tags=tuple(draw(st.lists(st.sampled_from(["fused", "stage:decode"]), max_size=2))),
    )


solutions = st.builds(
    Solution,
    name=names,
    definition=st.just("softmax_n32"),
    language=st.just(Language.CPU_CPP),
    entry=st.just("kernel"),
    sources=st.lists(
        st.builds(
            SourceFile,
            path=st.from_regex(r"[a-z][a-z0-9_]{0,8}\.(cpp|h)", fullmatch=True),
            content=st.text(max_size=60),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda source: source.path,
    ).map(tuple),
    structure=names,
    params=st.dictionaries(names, st.one_of(st.integers(-9, 9), words), max_size=3),
    layouts=st.dictionaries(words, st.sampled_from(["as-is", "transposed", "panels-32"])),
    scratch_bytes=st.integers(0, 2**30),
    guard=st.builds(Guard, bounds=st.dictionaries(words, st.just((1, 64)), max_size=2)),
    trust=st.just(TrustClass.GENERATED),
    author=words,
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    workload = Workload(
        definition="softmax_n32",
        axes={"M": draw(st.integers(0, 2**20))},
        weight=draw(st.one_of(st.just(1.0), st.floats(0.0, 1e6))),
    )
    status = draw(st.one_of(st.none(), st.sampled_from(TraceStatus)))
    if status is None:
        return Trace(definition="softmax_n32", workload=workload)
    body: dict[str, Any] = {
        "solution": draw(names),
        "candidate": draw(st.one_of(st.none(), digests)),
        "incumbent": draw(st.one_of(st.none(), digests)),
        "status": status,
        "reason": draw(words),
        "gate": "G6",
        "detail": draw(st.text(max_size=40)),
        "error_ratio": draw(st.one_of(st.none(), st.floats(0.0, 1e6))),
        "environment": ENVIRONMENT,
        "timestamp": "2026-01-02T03:04:05+00:00",
    }
    if status in (TraceStatus.PASSED, TraceStatus.INCORRECT_NUMERICAL):
        for name in ("max_absolute_error", "max_relative_error"):
            body[name] = draw(st.one_of(st.none(), st.floats(0.0, 1e6)))
    if status is TraceStatus.PASSED:
        body |= {
            "latency_us": draw(positive),
            "reference_latency_us": draw(positive),
            "speedup_factor": draw(positive),
            "speedup_bounds": draw(st.one_of(st.none(), st.tuples(positive, positive))),
            "confidence": draw(st.one_of(st.none(), st.just(0.99))),
        }
    return Trace(definition="softmax_n32", workload=workload, **body)


def through_json(body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(body, allow_nan=False))
    return found


@settings(max_examples=60)
@given(definitions())
def test_a_definition_comes_back_as_it_went(definition: Definition) -> None:
    body = through_json(export_definition(definition))
    assert kind_of(body, where=HERE) is DocumentType.DEFINITION
    assert import_definition(body, where=HERE).definition == definition


@settings(max_examples=60)
@given(solutions)
def test_a_solution_comes_back_as_it_went(solution: Solution) -> None:
    body = through_json(export_solution(solution, catalog.get("softmax_n32").definition))
    assert kind_of(body, where=HERE) is DocumentType.SOLUTION
    found = import_solution(body, where=HERE)
    assert found.solution == solution
    assert found.solution is not None
    assert found.solution.digest == solution.digest


@settings(max_examples=100)
@given(traces())
def test_a_trace_comes_back_as_it_went(trace: Trace) -> None:
    body = through_json(export_trace(trace, catalog.get("softmax_n32").definition))
    assert kind_of(body, where=HERE) is DocumentType.TRACE
    assert import_trace(body, where=HERE).trace == trace


@pytest.mark.parametrize("name", NAMES)
def test_the_catalog_goes_out_as_their_strict_reader_wants_it(name: str) -> None:
    for language in catalog.languages(name):
        entry = catalog.get(name, language=language)
        definition = through_json(export_definition(entry.definition))
        assert definition["tags"]
        assert all(isinstance(tag, str) and tag.strip() for tag in definition["tags"])
        runs = [
            n for n in ast.parse(definition["reference"]).body if isinstance(n, ast.FunctionDef)
        ]
        assert "run" in {node.name for node in runs}
        try:
            solution = through_json(export_solution(entry.incumbent, entry.definition))
        except NotExportable:
            assert any(layout != "as-is" for layout in entry.incumbent.layouts.values())
            continue
        spec = solution["spec"]
        assert spec["language"] in {"python", "triton", "cpp", "cuda", "tilelang"}
        file, _, symbol = spec["entry_point"].partition("::")
        contents = {source["path"]: source["content"] for source in solution["sources"]}
        assert symbol
        assert file in contents
        for path, content in contents.items():
            if path.endswith(".py"):
                ast.parse(content)
        assert import_solution(solution, where=HERE).solution is not None


def test_an_exported_triton_variant_brings_a_launcher_that_computes() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("triton", reason="Triton is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where it is interpreted
    entry = catalog.get("softmax_n64", language=Language.TRITON)
    guarded = entry.incumbent.model_copy(update={"guard": Guard(bounds={"M": (1, 8)})})
    files = {s["path"]: s["content"] for s in export_solution(guarded, entry.definition)["sources"]}
    module = _module(files["main.py"])
    x = torch.randn(5, 64, device=device)
    y = torch.empty_like(x)
    module["run"](x, y)
    torch.testing.assert_close(y, torch.softmax(x, dim=-1), atol=1e-6, rtol=1e-5)
    big = torch.randn(9, 64, device=device)
    with raises_naming(ValueError, "1 <= M <= 8", "9"):
        module["run"](big, torch.empty_like(big))


def test_an_exported_reference_takes_tensors_and_gives_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    definition = catalog.get("softmax_n64").definition
    module = _module(export_definition(definition)["reference"])
    x = torch.randn(3, 64)
    torch.testing.assert_close(module["run"](x), torch.softmax(x, dim=-1))


def _module(text: str) -> dict[str, Any]:
    """Run our own export: a file, because Triton reads its kernels' source."""
    import importlib.util
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported_main.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("exported_main", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["exported_main"] = module
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules["exported_main"]
        return vars(module)


def foreign(**changes: Any) -> dict[str, Any]:
    body = {
        "name": "rmsnorm_h4096",
        "op_type": "rmsnorm",
        "axes": {
            "batch_size": {"type": "var"},
            "hidden_size": {"type": "const", "value": 4096, "description": "channels"},
        },
        "inputs": {
            "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
            "eps": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
        "reference": "import torch\n\ndef run(hidden_states, eps):\n    return hidden_states",
        "tags": ["status:verified"],
        "constraints": ["batch_size > 0"],
        "something_new": {"deep": [1]},
    }
    return {**body, **changes}


def test_a_foreign_definition_is_read_and_its_pytorch_reference_is_not_run() -> None:
    found = import_definition(foreign(), where=HERE)
    assert found.definition.name == "rmsnorm_h4096"
    assert found.definition.inputs["eps"].shape == ()
    assert "imports 'torch'" in found.reference_problem
    assert found.dropped == ("constraints",)
    numpy = foreign(
        reference="import numpy as np\ndef run(hidden_states, eps): return hidden_states"
    )
    assert import_definition(numpy, where=HERE).reference_problem == ""
    older = {k: v for k, v in foreign(type="norm").items() if k != "op_type"}
    assert import_definition(older, where=HERE).definition.op_type == "norm"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../etc/passwd"},
        {"name": "a/b"},
        {"name": ""},
        {"name": "x" * 200},
        {"name": 3},
        {"axes": {}},
        {"axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "odd"}}},
        {"axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": -1}}},
        {"axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 2**70}}},
        {"axes": {"batch_size": {"type": "var"}}},
        {"inputs": {"output": {"shape": ["batch_size"], "dtype": "float32"}}},
        {"inputs": {"x": {"shape": ["batch_size"], "dtype": "float4_e2m1"}}},
        {"inputs": {"x": {"shape": "batch_size", "dtype": "float32"}}},
        {"inputs": {f"x{n}": {"shape": [], "dtype": "float32"} for n in range(65)}},
        {"reference": "x" * 1_000_001},
        {"tags": ["retuned:{"]},
        {"tags": ['retuned:{"constant":["x"]}', 'retuned:{"constant":["y"]}']},
        {"tags": ['retuned:{"constant":"x"}']},
        {"tags": [3]},
    ],
)
def test_definitions_that_no_record_holds_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput) as caught:
        import_definition(foreign(**changes), where=HERE)
    assert caught.value.where.startswith(HERE)


@pytest.mark.parametrize("dtype", [DType.FLOAT8_E4M3FNUZ, DType.FLOAT64, DType.UINT8])
def test_element_types_that_the_format_lacks_are_refused_on_the_way_out(dtype: DType) -> None:
    definition = catalog.get("softmax_n32").definition
    spec = definition.inputs["x"].model_copy(update={"dtype": dtype})
    with raises_code(NotExportable, "not-exportable", "'x'", dtype):
        export_definition(definition.model_copy(update={"inputs": {"x": spec}}))


def test_weights_that_want_repacking_are_refused_on_the_way_out() -> None:
    entry = catalog.get("softmax_n64", language=Language.TRITON)
    repacked = entry.incumbent.model_copy(update={"layouts": {"x": "transposed"}})
    with raises_code(NotExportable, "not-exportable", "softmax.passes", " x "):
        export_solution(repacked, entry.definition)
    product = catalog.get("gemm_bf16_n64_k256")
    split = product.solution("split-k", product.space("split-k").starts({"M": 1})[0])
    with raises_code(NotExportable, "not-exportable", "2 launches", "1 pieces of scratch"):
        export_solution(split, product.definition)


def foreign_solution(**changes: Any) -> dict[str, Any]:
    body = {
        "name": "someone_triton_1a2b3c",
        "definition": "rmsnorm_h4096",
        "author": "someone",
        "spec": {
            "language": "triton",
            "target_hardware": ["NVIDIA_H100"],
            "entry_point": "src/main.py::run",
            "destination_passing_style": False,
        },
        "sources": [{"path": "src/main.py", "content": "raise SystemExit('this was run')"}],
    }
    return {**body, **changes}


@pytest.mark.parametrize("language", ["python", "triton", "cuda", "cpp", "tilelang", "Triton"])
def test_foreign_host_code_is_read_and_is_no_candidate(language: str) -> None:
    spec = {**foreign_solution()["spec"], "language": language}
    found = import_solution(foreign_solution(spec=spec), where=HERE)
    assert found.solution is None
    assert found.reason == "host-code"
    assert "retuned.json" in found.detail


@pytest.mark.parametrize(
    "path", ["../main.py", "/etc/passwd", "a/../../b.py", "..\\b.py", "C:\\b.py", "a\0b.py", ""]
)
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    body = foreign_solution(sources=[{"path": path, "content": ""}])
    with pytest.raises(UnreadableInput):
        import_solution(body, where=HERE)


def test_a_solution_changed_after_its_export_is_refused() -> None:
    entry = catalog.get("softmax_n64", language=Language.TRITON)
    body = through_json(export_solution(entry.incumbent, entry.definition))
    found = import_solution(body, where=HERE).solution
    assert found is not None
    assert found.trust is TrustClass.GENERATED  # whatever the file says
    changed = through_json(body)
    changed["sources"][0]["content"] += "# changed\n"
    with raises_code(UnreadableInput, "bad-solution", "digest"):
        import_solution(changed, where=HERE)
    renamed = {**body, "name": "another"}
    with raises_code(UnreadableInput, "bad-solution", "name or definition"):
        import_solution(renamed, where=HERE)


@pytest.mark.parametrize(
    "own",
    [
        "{",
        "[]",
        "{}",
        '{"format": 2, "digest": "", "sources": [], "solution": {}}',
        '{"format": 1, "digest": "", "sources": ["nowhere.py"], "solution": {}}',
        '{"format": 1, "digest": "", "sources": ["src/main.py"], "solution": {}}',
        '{"format": 1, "format": 1}',
        '{"format": 1, "digest": NaN}',
    ],
)
def test_an_own_file_that_is_not_as_we_write_it_is_refused(own: str) -> None:
    sources = [*foreign_solution()["sources"], {"path": "retuned.json", "content": own}]
    with pytest.raises(UnreadableInput):
        import_solution(foreign_solution(sources=sources), where=HERE)


def foreign_trace(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "definition": "rmsnorm_h4096",
        "workload": {
            "uuid": "6120f144-b973-4bd9-b884-77ecb132914e",
            "axes": {"batch_size": 32},
            "inputs": {
                "hidden_states": {"type": "safetensors", "path": "/etc/passwd", "tensor_key": "x"},
                "eps": {"type": "scalar", "value": 1e-6},
            },
        },
        "solution": "someone_triton_1a2b3c",
        "evaluation": {
            "status": "PASSED",
            "log": "",
            "correctness": {"max_relative_error": 1e-5, "max_absolute_error": "NaN", "extra": None},
            "performance": {
                "latency_ms": 0.008,
                "reference_latency_ms": 0.019,
                "speedup_factor": 2.375,
            },
            "environment": {"hardware": "NVIDIA_H100", "libs": {"cuda": "12.6", "torch": "2.6.0"}},
            "timestamp": "2025-06-27T12:45:00Z",
        },
    }
    return {**body, **changes}


def test_a_foreign_trace_is_read_and_its_captured_inputs_are_left() -> None:
    found = import_trace(foreign_trace(), where=HERE)
    trace = found.trace
    assert trace.status is TraceStatus.PASSED
    assert trace.latency_us == pytest.approx(8.0)
    assert trace.reference_latency_us == pytest.approx(19.0)
    assert trace.max_relative_error == 1e-5
    assert trace.max_absolute_error is None
    assert trace.environment is not None
    assert (trace.environment.arch, trace.environment.runtime) == ("NVIDIA_H100", "12.6")
    assert found.dropped == ("captured inputs",)
    alone = import_trace(foreign_trace(solution=None, evaluation=None), where=HERE).trace
    assert alone.status is None
    assert alone.workload.axes == {"batch_size": 32}


def _evaluation(**changes: Any) -> dict[str, Any]:
    return {"evaluation": {**foreign_trace()["evaluation"], **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {}},
        {"workload": {"uuid": "x", "axes": {"M": -1}}},
        {"workload": {"uuid": "x", "axes": {"M": 2**60}}},
        {"workload": {"uuid": f"retuned-{'0' * 32};weight=..", "axes": {}}},
        {"workload": {"uuid": f"retuned-{'0' * 32};weight=1e999", "axes": {}}},
        {"definition": "a/b"},
        {"evaluation": None},
        {"solution": None},
        _evaluation(status="GREAT"),
        _evaluation(performance=None),
        _evaluation(status="TIMEOUT"),
        _evaluation(environment={"hardware": "H", "libs": {"retuned": "{"}}),
        _evaluation(environment={"hardware": "H", "libs": {"retuned": '{"status": "TIMEOUT"}'}}),
        _evaluation(environment={"hardware": "H", "libs": {"retuned": '{"gate": [1]}'}}),
        _evaluation(
            performance={"latency_ms": 0.0, "reference_latency_ms": 0, "speedup_factor": 0}
        ),
    ],
)
def test_traces_that_contradict_themselves_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput):
        import_trace(foreign_trace(**changes), where=HERE)


def verdict(reason: Reason, **changes: Any) -> Verdict:
    body = {
        "status": Status.REJECT,
        "reason": reason,
        "gate": "G6",
        "candidate": SHA,
        "incumbent": "sha256:" + "b" * 64,
        "detail": "because",
        "error_ratio": 0.5,
    }
    return Verdict.model_validate({**body, **changes})


def finding(answer: Verdict) -> Finding:
    return Finding(solution=catalog.get("softmax_n32").incumbent, verdict=answer, seconds=1.0)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.COMPILE_FAILED, TraceStatus.COMPILE_ERROR),
        (Reason.CRASHED, TraceStatus.RUNTIME_ERROR),
        (Reason.TIMED_OUT, TraceStatus.TIMEOUT),
        (Reason.WRONG_OUTPUT, TraceStatus.INCORRECT_NUMERICAL),
        (Reason.IMPOSSIBLY_FAST, TraceStatus.RUNTIME_ERROR),
    ],
)
def test_a_verdict_against_a_solution_is_a_trace_without_numbers(
    reason: Reason, status: TraceStatus
) -> None:
    workloads = [Workload(definition="softmax_n32", axes={"M": m}) for m in (1, 64)]
    found = traces_of(
        finding(verdict(reason)),
        workloads,
        environment=ENVIRONMENT,
        measured_at=datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert [each.status for each in found] == [status, status]
    assert {each.reason for each in found} == {str(reason)}
    body = export_trace(found[0], catalog.get("softmax_n32").definition)
    assert body["evaluation"]["performance"] is None
    errors = body["evaluation"]["correctness"]
    assert (errors is not None) == (status is TraceStatus.INCORRECT_NUMERICAL)
    # never zero where nothing was measured: somebody's filter would take that for perfection
    assert errors is None or set(errors.values()) == {"NaN"}


def test_a_win_is_a_trace_per_shape_and_what_was_not_timed_has_none() -> None:
    speedup = Interval(lower=1.2, point=1.5, upper=1.6, confidence=0.95)
    shapes = tuple(
        ShapeResult(axes={"M": m}, weight=2.0, incumbent_us=3.0, candidate_us=2.0, speedup=speedup)
        for m in (1, 64)
    )
    won = verdict(
        Reason.FASTER, status=Status.PROMOTE, speedup=speedup, noise_floor_ratio=1.01, shapes=shapes
    )
    when = datetime(2026, 1, 2, tzinfo=UTC)
    found = traces_of(finding(won), [], environment=ENVIRONMENT, measured_at=when)
    assert [each.workload.axes for each in found] == [{"M": 1}, {"M": 64}]
    assert {each.latency_us for each in found} == {2.0}
    for reason in (Reason.LOST_SEARCH, Reason.HARNESS_FAILED):
        lost = finding(verdict(reason, status=Status.AMBIGUOUS))
        shown: tuple[Trace, ...] = traces_of(lost, [], environment=ENVIRONMENT, measured_at=when)
        assert shown == ()


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.json", "", "no-json"),
        ("a.json", "[1]", "no-object"),
        ("a.json", '{"a": 1, "a": 2}', "twice"),
        ("a.json", '{"a": NaN}', "no-json"),
        ("a.json", '{"a": ' + "[" * 3000 + "]" * 3000 + "}", "no-json"),
        ("a.json", '{"a": ' + "[" * 40 + "]" * 40 + "}", "too-deep"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "no-json"),
        ("a.jsonl", '{"workload": 1}\n{', "no-json"),
    ],
)
def test_what_is_no_json_of_ours_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, code: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UnreadableInput) as caught:
        read_documents(path)
    assert caught.value.code == code or (code == "no-json" and caught.value.code == "too-deep")
    assert caught.value.where.startswith(str(path))


def test_lines_are_documents_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"workload": 1}\n\n{"spec": 2}\n')
    found = read_documents(path)
    assert [where for where, _ in found] == [f"{path}:1", f"{path}:3"]
    assert [kind_of(body, where=where) for where, body in found] == [
        DocumentType.TRACE,
        DocumentType.SOLUTION,
    ]
    with raises_code(UnreadableInput, "unknown-document", "`reference`", "`spec`", "`workload`"):
        kind_of({"name": "x"}, where=HERE)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=150)
@given(
    st.sampled_from(["definition", "solution", "trace"]),
    st.sampled_from(
        ["name", "axes", "inputs", "outputs", "spec", "sources", "workload", "evaluation", "tags"]
    ),
    json_values,
)
def test_any_field_may_hold_anything_and_is_read_or_refused(
    kind: str, field: str, value: object
) -> None:
    change = {field: value}
    with suppress(UnreadableInput):
        if kind == "definition":
            import_definition(foreign(**change), where=HERE)
        elif kind == "solution":
            import_solution(foreign_solution(**change), where=HERE)
        else:
            import_trace(foreign_trace(**change), where=HERE)
