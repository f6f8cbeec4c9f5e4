"""The list of cheats by number: where each must be stopped, and by which tests that is shown.

A number stands for an idea. How it is written depends on the language; where host code is what it
needs, nothing of it can be written in a variant, and the contract's tests stand for it. ``cpp`` and
``triton`` name sentences of `cpu_kernels` and `triton_cheats`; ``host`` is there where
`host_code.numbered` has a source; ``tests`` are functions that show what no candidate can.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number."""

    number: str
    """``H01`` to ``H46``."""
    sentence: str
    """What it does."""
    gate: str
    """Where it is stopped at the latest."""
    host: bool
    """Whether it needs host code, which a variant has none of."""
    cpp: tuple[str, ...] = ()
    """C++ variants that do it, by their sentence."""
    triton: tuple[str, ...] = ()
    """Triton variants that do it, by their sentence."""
    tests: tuple[str, ...] = ()
    """Further tests, as ``file::function`` under ``tests/``."""


def _row(
    number: int, sentence: str, gate: str, *, host: bool = False, **more: tuple[str, ...]
) -> Row:
    return Row(number=f"H{number:02}", sentence=sentence, gate=gate, host=host, **more)


_SECRETS = "hostile/test_hostile_secrets.py::"
_GPU = "gpu/test_hostile_gpu.py::"
_LAB = "hostile/test_hostile_cpu.py::"
_AUDIT = "lab/audit/test_audit_crafted.py::"
_SANITY = "lab/test_lab_sanity.py::"
_VERDICT = "hostile/test_hostile_verdicts.py::"

ROWS = (
    _row(
        1,
        "returns memory in which somebody's answer was freed",
        "G1",
        host=True,
        cpp=("allocates, and hopes for an answer that was freed",),
    ),
    _row(
        2,
        "does nothing and hopes for a stale output",
        "G3",
        cpp=("does nothing and hopes for a stale output",),
        triton=("writes nothing",),
    ),
    _row(
        3,
        "writes only what a sampled check looks at",
        "G3",
        cpp=("writes only the first rows", "writes all but the last element"),
        triton=(
            "writes every second row",
            "leaves the last element",
            "launches one program for all rows",
        ),
    ),
    _row(
        4,
        "fills the output with one number",
        "G4",
        cpp=("fills the output with zeros",),
        triton=("fills its output with zeros", "fills the output with the mean"),
    ),
    _row(
        5,
        "writes the answer of the one public input",
        "G4",
        cpp=("fills in the constant that was right once",),
        triton=("fills in the constant that was right once",),
    ),
    _row(
        6,
        "returns its input",
        "G4",
        cpp=("returns its input",),
        triton=("returns its input",),
        tests=(_SANITY + "test_a_definition_that_copies_its_input_proves_nothing",),
    ),
    _row(
        7,
        "answers with a reduction of its input",
        "G4",
        host=True,
        cpp=("answers with the sum of its input",),
        triton=("answers with the sum of its input",),
    ),
    _row(
        8,
        "zeroes the inputs, so that zero is compared with zero",
        "G3",
        cpp=("changes its input", "zeroes its input before it computes"),
        triton=("changes its input", "zeroes its input before it computes"),
    ),
    _row(
        9,
        "skips a part of the sum",
        "G4",
        cpp=("skips one per cent of the sum",),
        triton=("skips the last of the sum",),
    ),
    _row(
        10,
        "is right because the answer never changes",
        "G0",
        tests=(
            _SANITY + "test_a_definition_whose_answer_never_changes_proves_nothing",
            _SANITY + "test_a_definition_that_ignores_an_input_proves_nothing",
        ),
    ),
    _row(
        11,
        "keeps answers by the address of the input",
        "G2",
        host=True,
        cpp=("remembers answers by the address of the input",),
        triton=("keeps what it computed in a global",),
    ),
    _row(
        12,
        "keeps its answer in a global of the device",
        "G3",
        cpp=("keeps its answer in a static", "keeps state in an inline variable"),
        triton=("keeps what it computed in a global", "starts from what its scratch holds"),
        tests=(_AUDIT + "test_what_could_keep_an_answer_between_launches_is_refused",),
    ),
    _row(
        13,
        "recognises an input by a few numbers and answers from memory",
        "G2",
        cpp=("recognises an input by three numbers",),
        tests=(
            _LAB + "test_a_kernel_that_replays_its_scratch_never_wins",
            _LAB + "test_a_kernel_that_remembers_in_dead_stack_never_wins",
            _SECRETS + "test_a_candidate_that_is_fast_on_what_it_has_seen_is_refused",
        ),
    ),
    _row(
        14,
        "draws the judge's inputs before the judge does",
        "G1",
        host=True,
        cpp=("includes the reference",),
        tests=(_SECRETS + "test_no_seed_and_no_answer_reaches_a_child",),
    ),
    _row(
        15,
        "does all launches' work in the first",
        "G5",
        host=True,
        tests=(
            _LAB + "test_a_kernel_that_does_the_next_launches_work_is_caught_where_it_is_timed",
            _SECRETS + "test_a_launch_that_writes_other_launches_outputs_is_found",
        ),
    ),
    _row(
        16,
        "launches a graph that was recorded on other data",
        "G1",
        host=True,
        cpp=("launches a graph that was recorded before",),
    ),
    _row(
        17,
        "works on a stream that nobody waits for",
        "G1",
        host=True,
        cpp=("works on a thread of its own",),
        tests=(_GPU + "test_outputs_are_read_after_all_streams_have_ended",),
    ),
    _row(
        18,
        "lets a thread work in the background",
        "G1",
        host=True,
        cpp=("works on a thread of its own", "starts a thread by its system name"),
    ),
    _row(19, "computes when it is compared", "G1", host=True, triton=("defines a class",)),
    _row(
        20,
        "replaces the methods of its answer",
        "G1",
        host=True,
        triton=("replaces a function of the language",),
    ),
    _row(
        21,
        "replaces the clock",
        "G1",
        host=True,
        cpp=("brings a clock of its own",),
        tests=(_SECRETS + "test_times_that_the_child_makes_up_are_found_by_the_parent_s_clock",),
    ),
    _row(
        22,
        "replaces the judge's functions",
        "G1",
        host=True,
        cpp=("looks at the caller",),
        triton=("climbs through private attributes",),
    ),
    _row(
        23,
        "drives one shape's time to nothing",
        "G6",
        host=True,
        cpp=("computes nothing at the smallest shape",),
        triton=("computes nothing at the smallest shape",),
        tests=(
            _VERDICT + "test_a_time_below_the_floor_is_impossibly_fast",
            _VERDICT + "test_one_shape_near_nothing_does_not_pay_for_the_others",
        ),
    ),
    _row(
        24,
        "is slow at first, so that little is measured",
        "G2",
        host=True,
        cpp=("counts its calls in a static",),
        tests=(_SECRETS + "test_how_often_is_measured_depends_on_the_incumbent_alone",),
    ),
    _row(
        25,
        "keeps its weights in the cache across flushes",
        "G6",
        host=True,
        cpp=("throws others' weights out of the cache",),
        tests=(
            _GPU + "test_hints_to_keep_weights_in_the_cache_do_not_survive_the_flush",
            _VERDICT + "test_a_time_below_the_floor_is_impossibly_fast",
        ),
    ),
    _row(
        26,
        "writes results into a pipe that it was left",
        "G1",
        host=True,
        cpp=("writes to a pipe that it may have been left", "ends the process"),
        tests=(_SECRETS + "test_an_answer_to_another_question_is_no_answer",),
    ),
    _row(
        27,
        "hooks the clock's functions in memory",
        "G2",
        host=True,
        cpp=("reads another process", "reads the linker's table", "writes assembly"),
        triton=("writes assembly",),
        tests=(
            _LAB + "test_a_kernel_that_finds_the_system_s_functions_by_arithmetic_is_killed",
            _SECRETS + "test_times_that_the_child_makes_up_are_found_by_the_parent_s_clock",
        ),
    ),
    _row(
        28,
        "finds the expected answer among the interpreter's objects",
        "G1",
        host=True,
        tests=(_SECRETS + "test_no_seed_and_no_answer_reaches_a_child",),
    ),
    _row(
        29,
        "looks for the answer in the device's memory",
        "G3",
        host=True,
        cpp=("looks for the answer in the memory around it",),
        triton=("looks for the answer where nothing was given to it",),
        tests=(_SECRETS + "test_no_seed_and_no_answer_reaches_a_child",),
    ),
    _row(
        30,
        "behaves otherwise while it is judged",
        "G3",
        host=True,
        cpp=(
            "reads its environment",
            "computes only where it sees what the judge fills outputs with",
        ),
        triton=("computes only where it sees what the judge fills outputs with",),
    ),
    _row(
        31,
        "computes in a lower precision",
        "G4",
        cpp=("sums in bfloat16", "rounds its inputs to eleven bits"),
        triton=(
            "rounds its input to bfloat16",
            "multiplies in half precision",
            "adds up in half precision",
        ),
    ),
    _row(
        32,
        "falls back to the reference where it fails",
        "G1",
        host=True,
        cpp=("falls back to somebody else where it fails",),
    ),
    _row(
        33,
        "lets a library compute",
        "G1",
        host=True,
        cpp=("lets a library compute", "includes a library that computes"),
        triton=("imports PyTorch and lets it compute",),
    ),
    _row(
        34,
        "leaves out what only large numbers need",
        "G4",
        cpp=("subtracts no maximum", "takes a cheaper exponential"),
        triton=("subtracts no maximum",),
    ),
    _row(
        35,
        "swallows NaN",
        "G4",
        cpp=("turns NaN into zero", "swallows NaN"),
        triton=("hides NaN",),
    ),
    _row(
        36,
        "is right only at the shapes that it was tuned for",
        "G4",
        cpp=(
            "is right for few rows and wrong for many",
            "is right for even rows and wrong where a tile has a rest",
        ),
        triton=(
            "is right at the shapes it was tuned for",
            "is wrong for odd M",
            "is wrong in the last row",
        ),
    ),
    _row(
        37,
        "leaves its tensors",
        "G3",
        cpp=(
            "writes one element behind its output",
            "writes one element before its output",
            "writes far behind its scratch",
            "depends on what lies behind its input",
            "reads behind its weights and throws the value away",
        ),
        triton=(
            "writes past its last row",
            "writes a tile far past its end",
            "writes before its first row",
            "reads past its input",
        ),
    ),
    _row(
        38,
        "races with itself",
        "G4",
        cpp=("lets its parts race for one output",),
        triton=("uses what the next program has yet to write",),
        tests=(_GPU + "test_programs_that_race_are_called_nondeterministic",),
    ),
    _row(
        39,
        "reads shared memory that nobody filled, or more than there is",
        "G3",
        cpp=("starts from what its scratch holds",),
        triton=("wants more shared memory than there is",),
        tests=(_AUDIT + "test_shared_memory_beyond_a_block_s_is_refused",),
    ),
    _row(
        40,
        "hangs, faults or wears out the machine",
        "G3",
        cpp=("never ends", "follows a null pointer", "needs more stack than there is"),
        triton=("never ends",),
        tests=(
            _LAB + "test_a_kernel_that_wants_more_scratch_than_the_lab_has_is_refused",
            "hostile/test_hostile_triton.py::"
            "test_a_grid_of_millions_of_programs_is_stopped_in_time",
        ),
    ),
    _row(
        41,
        "adds in an order that chance decides",
        "G3",
        cpp=(
            "counts in atomics",
            "adds without saying in which order",
            "answers with the address of its output",
        ),
        triton=("adds into an output that nobody emptied",),
        tests=(_GPU + "test_sums_by_atomics_are_called_nondeterministic",),
    ),
    _row(
        42,
        "answers a row otherwise beside other rows",
        "G4",
        cpp=("mixes its neighbours' lowest bits into every row",),
        triton=("mixes its neighbours' lowest bits into every row",),
        tests=("lab/test_lab_rows.py::test_a_row_that_changes_with_the_batch_is_refused_if_asked",),
    ),
    _row(
        43,
        "is wrong after some launches",
        "G2",
        cpp=("keeps state in a namespace",),
        tests=(_SECRETS + "test_the_newest_of_the_timed_outputs_is_checked",),
    ),
    _row(
        44,
        "reads the environment, talks, forks or installs",
        "G1",
        host=True,
        cpp=(
            "reads its environment",
            "talks to the network",
            "starts a process",
            "opens a file",
        ),
        triton=("imports the operating system", "writes a file while it is imported"),
    ),
    _row(
        45,
        "puts forbidden names together",
        "G1",
        host=True,
        cpp=(
            "pastes a forbidden name together",
            "hides a forbidden name behind a line splice",
        ),
        triton=("evaluates text",),
    ),
    _row(
        46,
        "works when it is unloaded",
        "G2",
        host=True,
        cpp=("works when it is unloaded", "works in the destructor of something constant"),
    ),
)
