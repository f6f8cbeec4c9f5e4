"""The audit of what Triton compiles for GPUs that are not here, against Triton's own figures."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import pytest
from tests.expect import raises_code
from tests.hostile.triton_kernels import HEAD, LINEAR, SOFTMAX, changed, linear, softmax

from retuned import catalog
from retuned.errors import CandidateError
from retuned.lab.audit import AuditCode, AuditLimits, AuditReport, audit_object, refusal
from retuned.lab.languages import triton as language
from retuned.lab.languages import triton_contract
from retuned.lab.languages.triton_audit import report_of

pytest.importorskip("triton", reason="Triton is not installed")

ARCHES = ("gfx942", "gfx950", "sm_90")
BIG = linear(params={"BM": 128, "BN": 16, "BK": 256})
SPILLING = linear(params={"BM": 256, "BN": 128, "BK": 16, "num_warps": 1})


@cache
def compiled(arch: str, which: str) -> dict[str, Any]:
    """Return what the compiler's process answers; each is compiled once."""
    solution = {
        "softmax": softmax(),
        "linear": linear(),
        "big": BIG,
        "spilling": SPILLING,
        "root": softmax(changed("e = tl.exp(", "e = tl.sqrt(")),
    }[which]
    definition = catalog.get(solution.definition).definition
    binding = triton_contract.check_contract(solution, definition)
    lengths = language._specialisations(binding, definition, [])
    task = language.task_of(solution, definition, lengths, arch)
    (found,) = language.run_compiler(task, language.LIMITS)
    return found


def report(arch: str, which: str, limits: AuditLimits | None = None) -> AuditReport:
    return report_of(compiled(arch, which), arch=arch, limits=limits)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("which", ["softmax", "linear"])
def test_a_real_kernel_passes_with_figures_that_can_be(arch: str, which: str) -> None:
    found = report(arch, which)
    assert found.problems == (), found.problems
    assert found.arch == arch
    assert found.kernel == "kernel"
    assert found.threads == 4 * (32 if arch == "sm_90" else 64)
    assert 0 < found.registers <= 512
    assert found.shared_bytes >= compiled(arch, which)["shared_bytes"]
    assert found.kernarg_bytes >= 8 * 2 + 4
    assert found.occupancy is not None
    assert 0 < found.occupancy.waves <= found.occupancy.of
    assert (found.scalar_registers is None) == (arch == "sm_90")


def test_what_a_square_root_leaves_in_a_cubin_is_no_state() -> None:
    assert report("sm_90", "root").problems == ()


def test_the_figures_are_those_of_the_assembler() -> None:
    """What LLVM prints into its assembly is what the note and the descriptor say."""
    binary = base64.b64decode(compiled("gfx942", "linear")["object"])
    (found,) = audit_object(binary)
    assert found.arch == "gfx942"
    assert found.scratch_bytes == 0
    assert found.spilled_registers == 0
    assert found.accumulator_registers is not None


@pytest.mark.parametrize(("arch", "refused"), [("gfx942", True), ("gfx950", False)])
def test_what_one_gpu_has_room_for_another_has_not(arch: str, refused: bool) -> None:
    found = report(arch, "big")
    assert found.shared_limit_bytes == {"gfx942": 65_536, "gfx950": 163_840}[arch]
    codes = {problem.code for problem in found.problems}
    assert codes == ({AuditCode.OVER_LIMIT_SHARED} if refused else set())
    if refused:
        error = refusal([found])
        assert error is not None
        assert error.reason == "over-limit"


def test_spills_are_told_and_refused_where_a_policy_says_so() -> None:
    arch = "gfx942"
    found = report(arch, "spilling")
    assert found.problems == ()
    assert found.scratch_bytes > 0
    assert any("scratch" in note for note in found.notes)
    strict = report(arch, "spilling", AuditLimits(max_scratch_bytes=0))
    assert {problem.code for problem in strict.problems} == {AuditCode.OVER_LIMIT_SCRATCH}


def test_an_object_that_cannot_be_read_is_refused() -> None:
    broken = {**compiled("gfx942", "softmax"), "object": base64.b64encode(b"\x7fELF").decode()}
    with pytest.raises(CandidateError) as refused:
        report_of(broken, arch="gfx942")
    assert refused.value.reason == "binary-audit-failed"
    odd = {**compiled("gfx942", "softmax"), "odd": ["calls vprintf"]}
    with raises_code(CandidateError, "binary-audit-failed", "vprintf"):
        report_of(odd, arch="gfx942")


def test_an_object_for_another_gpu_is_refused() -> None:
    found = report_of(compiled("gfx950", "softmax"), arch="gfx942")
    assert AuditCode.WRONG_ARCH in {problem.code for problem in found.problems}


def test_the_evidence_names_figures_and_occupancy(tmp_path: Any) -> None:
    solution = softmax()
    definition = catalog.get(solution.definition).definition
    built = language.build(solution, definition, cache_dir=tmp_path, arch="gfx942")
    assert built.reports[0].arch == "gfx942"
    assert "of 32 waves" in built.note
    again = language.build(solution, definition, cache_dir=tmp_path, arch="gfx942")
    assert again.reports == built.reports
    with pytest.raises(CandidateError) as refused:
        language.build(BIG, catalog.get(LINEAR).definition, cache_dir=tmp_path, arch="gfx942")
    assert refused.value.reason == "over-limit"


def test_mathematics_with_tables_is_no_state(tmp_path: Any) -> None:
    """sin of a large number needs a table, which the vendor's compiler puts beside variables."""
    source = changed("    out = e", "    e = e * (2.0 + tl.sin(v * 1e6))\n    out = e")
    assert HEAD in source
    definition = catalog.get(SOFTMAX).definition
    for arch in ("sm_90", "gfx942"):
        reports = language.audit_solution(softmax(source), definition, arch=arch)
        assert [found.problems for found in reports] == [()], reports
