"""A definition file is read whole, or refused with the line of each mistake and what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.expect import raises_code

from retuned.catalog.user import DefinitionInvalid, Distribution, load_definition, load_definitions
from retuned.contract import AxisConst, Language
from retuned.errors import UnreadableInput

Changed = Callable[[str, str], Path]


def test_the_example_says_what_it_computes_and_what_may_run(file: Path) -> None:
    own = load_definition(file)
    assert own.name == "scale_bias_h1024"
    assert own.definition.variable_axes == ("M",)
    assert own.definition.axes["H"] == AxisConst(value=1024)
    assert own.definition.inputs["scale"].constant
    assert own.made["x"].like is Distribution.NORMAL
    assert own.made["scale"].high == 1.5
    assert own.languages == (Language.CPU_CPP, Language.TRITON)
    assert own.traces.op == "retuned::scale_bias"
    assert own.traces.shapes == (("M", "H"), ("M", "H"), ("H",), ("H",))
    assert own.traces.dtypes == ("float32",) * 4
    plain, rows, *_ = own.variants
    assert plain.incumbent == {"THREADS": 1}
    assert rows.incumbent is None
    assert "scale_bias_rows" in rows.sources[0].content


def test_the_record_crosses_a_process_by_content(file: Path) -> None:
    own = load_definition(file)
    assert type(own).model_validate_json(own.model_dump_json()) == own


def test_source_and_reference_may_stand_in_the_file_or_beside_it(changed: Changed) -> None:
    file = changed(
        "files: scale_bias_flat.py", "source: |\n      " + _indented("scale_bias_flat.py")
    )
    own = load_definition(file)
    assert own.variants[2].sources[0].path == "kernel.py"
    text = file.read_text()
    begin, end = text.index("reference: |"), text.index("flops:")
    (file.parent / "formula.py").write_text(
        "def run(x, residual, scale, bias):\n    return x + residual * scale + bias\n"
    )
    file.write_text(f"{text[:begin]}reference_file: formula.py\n{text[end:]}")
    assert "residual * scale" in load_definition(file).definition.reference


def _indented(name: str) -> str:
    from tests.catalog.user.conftest import EXAMPLE

    return (EXAMPLE / name).read_text().replace("\n", "\n      ")


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("op_type: scale_bias", "op_typ: scale_bias", 4, "did you mean op_type"),
        ("name: scale_bias_h1024", "name: scale bias", 3, "name"),
        ("  H: 1024 # a", "  H: 10.5 # a", 9, "axes.H"),
        ("  H: 1024 # a", "  H: 1099511627776 # a", 9, "a length from 1 to"),
        ("  H: 1024 # a", "  H: 0 # a", 9, "a length from 1 to"),
        ("{shape: [M, H], dtype: float32}\n  res", "{shape: [M, K], dtype: float32}\n  res", 12,
         "names the axis 'K'"),
        ("  y: {shape: [M, H]", "  x: {shape: [M, H]", 17, "is an input too"),
        ("{shape: [M, H], dtype: float32}\n  res", "{shape: [M, H], dtype: float31}\n  res", 12,
         "inputs.x.dtype"),
        ("{like: normal, scale: 0.5}", "{like: normal, low: 0.5}", 13, "takes mean, scale"),
        ("{like: normal, scale: 0.5}", "gaussian", 13, "made"),
        ("low: 0.5, high: 1.5", "low: 2.5, high: 1.5", 14, "above high"),
        ("def run(x, residual", "def walk(x, residual", 20, "no `def run"),
        ("def run(x, residual, scale, bias)", "def run(x, residual, scale)", 20, "takes no bias"),
        ("def run(x, residual, scale, bias)", "def run(x, residual, scale, bias, z)", 20,
         "takes z, which are not inputs"),
        ("  def run(x", "  import os\n  def run(x", 20, "imports 'os'"),
        ("flops: 3 * M * H", "flops: 3 * M * N", 24, "names 'N'"),
        ("flops: 3 * M * H", "flops: __import__('os')", 24, "may call"),
        ("op: retuned::scale_bias", "shapes: [[M, H]]", 27, "1 shapes and 4 dtypes"),
        ("language: cpu_cpp\n    files: scale_bias_pl", "language: rust\n    files: scale_bias_pl",
         32, "variants.0.language"),
        ("files: scale_bias_plain.cpp", "files: nowhere.cpp", 33, "cannot be read"),
        ("files: scale_bias_plain.cpp", "files: ../scale_bias_plain.cpp", 33, "variants.0.files"),
        ("files: scale_bias_plain.cpp", "files: /etc/passwd", 33, "variants.0.files"),
        ("    files: scale_bias_plain.cpp\n", "", 31, "either `files`"),
        ("entry: scale_bias_plain", "entry: another_name", None, ""),
        ("incumbent: {THREADS: 1}", "incumbent: {THREADS: 3}", 36, "not one of the choices 1"),
        ("incumbent: {THREADS: 1}", "incumbent: {}", 36, "a point has THREADS"),
        ("    incumbent: {THREADS: 1} # what", "    # what", 30, "0 variants in cpu_cpp have"),
        ("ROWS: [2, 4, 8]\n      THREADS", "ROWS: [2, 2, 8]\n      THREADS", 43, "written twice"),
        ("ROWS: [2, 4, 8]\n      THREADS", "rows: [2, 4, 8]\n      THREADS", 43, "capitals"),
        ("ROWS: [2, 4, 8]\n      THREADS", "H: [2, 4, 8]\n      THREADS", 43, "an axis already"),
        ("valid: BLOCK >= 32 * num_warps", "valid: BLOCK >= M", 54, "names 'M'"),
        ("valid: BLOCK >= 32 * num_warps", "valid: BLOCK < 32 * num_warps", 55, "ruled out"),
        ("grid: cdiv(M * H, BLOCK)\n", "grid: cdiv(M * Q, BLOCK)\n", 46, "'Q'"),
        ("    grid: cdiv(M * H, BLOCK)\n", "", 46, "needs a `grid`"),
        ("entry: scale_bias_flat", "entry: scale_bias_round", 46, "no @triton.jit function"),
        ("- {ROWS: 1, BLOCK: 1024, num_warps: 4}", "- {ROWS: 1, BLOCK: 512, num_warps: 4}", 68,
         "ruled out"),
        ("structure: rows\n    language: triton", "structure: flat\n    language: triton", 30,
         "2 variants in triton are called 'flat'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_what_to_write(
    changed: Changed, old: str, new: str, line: int | None, says: str
) -> None:
    file = changed(old, new)
    if not says:  # C++ is only read as text here: the compiler tells what its symbols are
        load_definition(file)
        return
    with pytest.raises(DefinitionInvalid) as caught:
        load_definition(file)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.exit_code == 3
    assert line is None or line in [problem.line for problem in caught.value.problems]


def test_several_mistakes_are_told_at_once_in_the_order_of_the_file(changed: Changed) -> None:
    changed("dtype: float32}\n  residual", "dtype: float31}\n  residual")
    file = changed("flops: 3 * M * H", "flop: 3 * M * H")
    with pytest.raises(DefinitionInvalid) as caught:
        load_definition(file)
    lines = [problem.line for problem in caught.value.problems]
    assert len(lines) == 2
    assert lines == sorted(lines, key=lambda line: line or 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "definition-invalid"),
        ("[1, 2]", "definition-invalid"),
        ("a: &x 1\nb: *x", "yaml-alias"),
        ("a: !!python/object:os.system 1", "yaml-tag"),
        ("a: 1\na: 2", "yaml-duplicate-key"),
        ("a: " + "[" * 100, "yaml-too-deep"),
        ("a: [", "yaml-syntax"),
    ],
)
def test_what_is_no_definition_is_refused(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UnreadableInput) as caught:
        load_definition(path)
    assert caught.value.code == code


def test_whole_numbers_want_whole_numbers(changed: Changed) -> None:
    file = changed(
        "{shape: [H], dtype: float32, constant: true, made: {like: normal, scale: 0.1}}",
        "{shape: [H], dtype: int8, constant: true}",
    )
    with raises_code(
        DefinitionInvalid, "definition-invalid", "line 15: inputs.bias.made", "{like: integers"
    ):
        load_definition(file)


def test_bounds_that_a_server_follows_are_expressions_over_axes(changed: Changed) -> None:
    old = "residual: {shape: [M, H], dtype: float32, made: {like: normal, scale: 0.5}}"
    rule = "{like: integers, low: 0, high: M * H - 1}"
    file = changed(
        old,
        f"residual: {{shape: [M, H], dtype: int32, values: {rule}, made: "
        "{like: integers, low: 0, high: 4}}",
    )
    values = load_definition(file).definition.inputs["residual"].values
    assert values is not None
    assert values.high == "M * H - 1"
    with raises_code(
        DefinitionInvalid, "definition-invalid", "line 13: inputs.residual.values", "'Q'"
    ):
        load_definition(changed("M * H - 1", "Q - 1"))


def test_a_space_that_no_search_looks_at_whole_is_refused(changed: Changed) -> None:
    many = ", ".join(map(str, range(250)))
    file = changed(
        "ROWS: [2, 4, 8]\n      THREADS: [1, 2, 4]", f"ROWS: [{many}]\n      A: [{many}]"
    )
    with raises_code(DefinitionInvalid, "definition-invalid", "variants.1.params", "62500"):
        load_definition(file)


def test_a_folder_means_its_yaml_files(folder: Path, file: Path) -> None:
    (folder / "notes.txt").write_text("no definition")
    assert [own.name for own in load_definitions([folder])] == ["scale_bias_h1024"]
    assert len(load_definitions([file, folder])) == 2
    with pytest.raises(UnreadableInput):
        load_definitions([folder / "absent.yaml"])
