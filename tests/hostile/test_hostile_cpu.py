"""CPU kernels that cheat, each in one sentence, each refused with the reason that fits.

Gates G1 to G4 are asked in one bay, as `Examiner` does it; what only timing or the whole lab can
show goes through a lab of its own.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

import pytest
from tests.hostile.cheats import stopped
from tests.hostile.cpu_kernels import COMPILER, CPU_CHEATS, HONEST, LINEAR, linear, variant

from retuned.contract import Solution
from retuned.stages.verdict import Check, Reason, Status, Verdict

Make = Callable[..., Solution]
Judge = Callable[..., Verdict]
Examine = Callable[[Solution], tuple[Check, ...]]

THROUGH_THE_LAB = (
    "counts its calls in a static",
    "keeps state in a namespace",
    "changes its input",
)


def refused(verdict: Verdict, *reasons: Reason) -> None:
    assert verdict.status is Status.REJECT, verdict
    assert verdict.reason in reasons, (verdict.reason, verdict.detail)


@pytest.mark.parametrize("sentence", CPU_CHEATS)
def test_a_kernel_that_cheats_is_stopped_in_time(sentence: str, examined: Examine) -> None:
    cheat = CPU_CHEATS[sentence]
    stopped(examined(cheat.solution), cheat)


@pytest.mark.parametrize("sentence", THROUGH_THE_LAB)
def test_what_the_gates_stop_the_lab_rejects(sentence: str, judged: Judge) -> None:
    cheat = CPU_CHEATS[sentence]
    verdict = judged(cheat.solution)
    refused(verdict, *cheat.reasons)
    assert verdict.gate == cheat.gate


AHEAD = """
  auto room = [](int64_t bytes) { return (bytes + 4095) / 4096 * 4096 + 8192; };
  auto waits = [](const float* p) {
    const unsigned char* b = (const unsigned char*)p;
    bool same = true;
    for (int i = 1; i < 16; ++i) same &= b[i] == b[0];
    return same;
  };
  const int64_t step = room(M * K * 4) + room(N * K) + room(N * 4) + room(M * N * 4);
  for (int64_t turn = 0; turn < (M == 4 ? 2 : 1); ++turn) {
    if ((turn || SKIPS) && !waits(y)) break;
"""
"""Buffers of the next launch lie a known step away, where M is 4 and there are others behind."""


@pytest.mark.parametrize(
    ("skips", "reasons"),
    [
        ("false", (Reason.OUT_OF_BOUNDS,)),
        # inputs that changed since, as they do between some calls, make what was done ahead wrong
        ("true", (Reason.OUT_OF_BOUNDS, Reason.TIMED_OUTPUT_WRONG)),
    ],
)
def test_a_kernel_that_does_the_next_launches_work_is_caught_where_it_is_timed(
    skips: str, reasons: tuple[Reason, ...], judged: Judge
) -> None:
    ahead = (
        AHEAD.replace("SKIPS", skips)
        + HONEST
        + ("x = (const float*)((const char*)x + step); y = (float*)((char*)y + step); }")
    )
    verdict = judged(variant(linear(ahead)), incumbent=variant(linear(HONEST)))
    refused(verdict, *reasons)
    assert verdict.gate == "G5"
    assert verdict.reason is not Reason.OUT_OF_BOUNDS or "outputs of others" in verdict.detail


STACK = """
static inline __attribute__((noinline)) float* frame(float* own) { return own; }
"""


def test_a_kernel_that_remembers_in_dead_stack_never_wins(judged: Judge) -> None:
    """What lies below the stack outlives a launch; the content of the inputs does not."""
    body = (
        "float own[8192]; float* kept = frame(own); bool same = M * K + M * N <= 8000;"
        "for (int64_t i = 0; same && i < M * K; ++i) same = kept[i] == x[i];"
        "if (same) { std::memcpy(y, kept + M * K, M * N * 4); return; }"
        + HONEST
        + "if (M * K + M * N <= 8000) { std::memcpy(kept, x, M * K * 4);"
        " std::memcpy(kept + M * K, y, M * N * 4); }"
    )
    honest = variant(linear(HONEST))
    verdict = judged(variant(linear(body, before=STACK)), incumbent=honest, shapes=({"M": 1},))
    assert verdict.status is not Status.PROMOTE, verdict


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are filtered on x86-64")
def test_a_kernel_that_finds_the_system_s_functions_by_arithmetic_is_killed(
    examined: Examine,
) -> None:
    """No symbol is named, so no audit sees it: what stops it is the filter of system calls."""
    libc = ctypes.CDLL(None)
    near = ctypes.cast(libc.memset, ctypes.c_void_p).value or 0
    far = ctypes.cast(libc.getppid, ctypes.c_void_p).value or 0
    body = (
        f"std::memset(y, 1, 4); const char* near = (const char*)&memset;"
        f"typedef int (*Call)(); y[0] = (float)((Call)(near + ({far - near}ll)))();" + HONEST
    )
    found = [check for check in examined(variant(linear(body))) if check.reason is not None]
    assert found
    assert found[0].reason in {Reason.CRASHED, Reason.CONTRACT, Reason.BINARY_AUDIT}


@pytest.mark.parametrize("sentence", COMPILER)
def test_a_source_that_wears_out_the_compiler_is_refused(
    sentence: str, candidate: Make, judged: Judge
) -> None:
    verdict = judged(candidate(COMPILER[sentence], definition=LINEAR))
    refused(verdict, Reason.COMPILE_FAILED)


def test_a_compile_error_names_no_path_of_this_machine(candidate: Make, judged: Judge) -> None:
    verdict = judged(candidate(COMPILER["does not compile"], definition=LINEAR))
    assert "error" in verdict.detail
    assert "/" not in verdict.detail.replace("</", "")


def test_a_kernel_that_wants_more_scratch_than_the_lab_has_is_refused(
    candidate: Make, judged: Judge
) -> None:
    solution = candidate(
        linear(HONEST),
        definition=LINEAR,
        scratch_bytes=2**30,
        params={"THREADS": 64},
    )
    refused(judged(solution), Reason.OUT_OF_MEMORY, Reason.CONTRACT)


def test_a_kernel_that_asks_for_another_layout_of_an_input_is_refused(
    candidate: Make, judged: Judge
) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, layouts={"x": "transposed"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_layout_that_does_not_fit_the_weights_is_refused(candidate: Make, judged: Judge) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, layouts={"wq": "panels-7"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_parameter_that_smuggles_in_options_is_refused(candidate: Make, judged: Judge) -> None:
    solution = candidate(linear(HONEST), definition=LINEAR, params={"A": "1 -include /etc/passwd"})
    refused(judged(solution), Reason.CONTRACT)


def test_a_kernel_that_replays_its_scratch_never_wins(candidate: Make, judged: Judge) -> None:
    body = (
        "float* kept = (float*)scratch; bool same = true;"
        "for (int64_t k = 0; k < 8; ++k) same &= kept[k] == x[k];"
        "if (same) { std::memcpy(y, kept + 8, M * N * 4); return; }"
        + HONEST
        + "std::memcpy(kept, x, 32); std::memcpy(kept + 8, y, M * N * 4);"
    )
    solution = candidate(linear(body), definition=LINEAR, scratch_bytes=32 + 64 * 48 * 4)
    assert judged(solution).status is not Status.PROMOTE


def test_an_honest_but_slow_kernel_is_refused_as_slower(candidate: Make, judged: Judge) -> None:
    refused(judged(candidate(linear(HONEST), definition=LINEAR)), Reason.SLOWER)
