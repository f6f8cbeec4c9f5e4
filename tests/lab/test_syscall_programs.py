"""The filters of system calls, carried out step by step: on every architecture, on any machine."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retuned.lab.harness.syscalls import (
    ALLOW,
    ARCHITECTURES,
    CHANGING,
    COMPUTING,
    DENIED,
    EQUAL,
    ERRNO,
    FURTHER,
    INTERPRETING,
    KILL,
    LOAD,
    PARTLY,
    PRCTL,
    RETURN,
    SET,
    UNSEEN,
    Step,
    computing_program,
    device_program,
    interpreting_program,
    number,
)

OWN = 4242
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38
MACHINES = sorted(ARCHITECTURES)
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
word = st.integers(0, 2**64 - 1)


def carried_out(steps: list[Step], call: int, *arguments: int, architecture: int) -> int:
    """Do what the kernel does with a classic filter over one call."""
    given = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", call, architecture, 0, *given)
    place = accumulator = 0
    for _ in range(len(steps)):  # jumps only go forward
        operation, if_true, if_false, operand = steps[place]
        place += 1
        if operation == LOAD:
            assert operand % 4 == 0
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif operation == EQUAL:
            place += if_true if accumulator == operand else if_false
        elif operation == SET:
            place += if_true if accumulator & operand else if_false
        else:
            assert operation == RETURN
            return operand
    raise AssertionError("the program does not answer")


class Filter:
    """One program on one machine."""

    def __init__(self, machine: str, steps: list[Step]) -> None:
        self.machine = machine
        self.steps = steps

    def __call__(self, name: str, *arguments: int) -> int:
        call = number(name, self.machine)
        assert call is not None
        return carried_out(self.steps, call, *arguments, architecture=ARCHITECTURES[self.machine])


@pytest.fixture(params=MACHINES)
def computing(request: pytest.FixtureRequest) -> Filter:
    return Filter(request.param, computing_program(request.param))


@pytest.fixture(params=MACHINES)
def device(request: pytest.FixtureRequest) -> Filter:
    return Filter(request.param, device_program(request.param, own=OWN, programs=True))


def known(machine: str, names: object) -> list[str]:
    return [name for name in names if number(name, machine) is not None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no headers of the kernel here")
    found = re.findall(
        r"#define (?:__NR|__NR3264)_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.MULTILINE
    )
    names = {name: int(value) for name, value in found}
    for name in COMPUTING | DENIED | PARTLY | FURTHER:
        if name in names:  # headers may be older than a call
            assert number(name, machine) == names[name], name
        elif number(name, machine) is not None:
            assert number(name, machine) > 440, name  # type: ignore[operator]


def test_a_computing_child_keeps_its_list_and_dies_of_all_else(computing: Filter) -> None:
    for name in COMPUTING:
        assert computing(name) == ALLOW
    for name in [*known(computing.machine, DENIED), "socket", "execve", "tgkill", "prlimit64"]:
        assert computing(name) == KILL
    kept = {number(n, computing.machine) for n in COMPUTING | PARTLY}
    architecture = ARCHITECTURES[computing.machine]
    for call in range(600):
        if call not in kept:
            assert carried_out(computing.steps, call, architecture=architecture) == KILL


def test_memory_of_a_computing_child_is_never_executable(computing: Filter) -> None:
    for protection in range(8):
        wanted = KILL if protection & 4 else ALLOW
        assert computing("mmap", 0, 4096, protection) == wanted
        assert computing("mprotect", 0, 4096, protection) == wanted


def test_a_computing_child_may_have_threads_and_no_children(computing: Filter) -> None:
    assert computing("clone", 0x3D0F00) == ALLOW
    assert computing("clone", 17) == KILL
    assert computing("clone3", 0) == ENOSYS, "the C library falls back to clone"


@pytest.fixture(params=[(m, d) for m in MACHINES for d in (False, True)])
def interpreting(request: pytest.FixtureRequest) -> Filter:
    machine, on_device = request.param
    return Filter(machine, interpreting_program(machine, compiles=False, on_device=on_device))


@given(arguments=st.lists(word, min_size=6, max_size=6))
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_a_strangers_python_reaches_no_network_and_no_other_process(
    machine: str, compiles: bool, arguments: list[int]
) -> None:
    steps = interpreting_program(machine, compiles=compiles, on_device=False)
    for name in known(machine, INTERPRETING):
        assert Filter(machine, steps)(name, *arguments) == EPERM
    for name in known(machine, CHANGING):
        assert Filter(machine, steps)(name, *arguments) == (ALLOW if compiles else EPERM)
    for name in known(machine, UNSEEN):
        assert Filter(machine, steps)(name, *arguments) == ENOSYS


def test_a_strangers_python_may_have_threads_and_no_children(interpreting: Filter) -> None:
    assert interpreting("clone", 0x3D0F00) == ALLOW
    assert interpreting("clone", 17) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_files_are_opened_for_writing_only_for_a_device_or_a_compiler(machine: str) -> None:
    for compiles, on_device in ((False, False), (False, True), (True, False), (True, True)):
        steps = interpreting_program(machine, compiles=compiles, on_device=on_device)
        wanted = ALLOW if compiles or on_device else EPERM
        opened = Filter(machine, steps)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_RDWR | os.O_CLOEXEC):
            assert opened("openat", 0, 0, flags) == wanted
        assert opened("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
        if machine == "x86_64":
            assert opened("open", 0, os.O_WRONLY) == wanted
            assert opened("open", 0, os.O_RDONLY) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_are_the_end(machine: str) -> None:
    foreign = ARCHITECTURES[OTHER[machine]]
    for steps in (
        computing_program(machine),
        device_program(machine, own=OWN, programs=True),
        interpreting_program(machine, compiles=False, on_device=False),
    ):
        for call in (0, 1, 63, 64, 172):
            assert carried_out(steps, call, architecture=foreign) == KILL


def test_calls_by_their_second_numbers_are_the_end() -> None:
    architecture = ARCHITECTURES["x86_64"]
    for steps in (
        device_program("x86_64", own=OWN, programs=True),
        interpreting_program("x86_64", compiles=True, on_device=True),
    ):
        assert carried_out(steps, 0x40000000 | 101, architecture=architecture) == KILL


@given(arguments=st.lists(word, min_size=6, max_size=6))
@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_denied_is_denied_with_any_arguments(machine: str, arguments: list[int]) -> None:
    device = Filter(machine, device_program(machine, own=OWN, programs=False))
    for name in [*known(machine, DENIED), "execve"]:
        assert device(name, *arguments) == EPERM


def test_a_device_keeps_what_it_needs(device: Filter) -> None:
    for name in (*COMPUTING, "mmap", "mprotect", "clone", "clone3", "execve"):
        assert device(name, 2**64 - 1, 0, 7) == ALLOW


@given(low=st.integers(0, 2**32 - 1), high=st.integers(0, 2**32 - 1))
def test_the_first_argument_decides_and_only_its_lower_half_as_in_the_kernel(
    low: int, high: int
) -> None:
    device = Filter("aarch64", device_program("aarch64", own=OWN, programs=True))
    value = high << 32 | low
    assert device("tgkill", value, 1, 9) == (ALLOW if low == OWN else EPERM)
    assert device("socket", value) == (ALLOW if low == 1 else EPERM)
    assert device("prctl", value) == (ALLOW if low in PRCTL.values() else EPERM)
    assert device("prlimit64", value, 0, 0) == (ALLOW if low in (0, OWN) else EPERM)


def test_nobody_becomes_dumpable_again_or_outlives_its_parent(
    device: Filter, computing: Filter
) -> None:
    for option in (1, 4, 0x59616D61, 22, 35):  # death signal, dumpable, tracer, filter, memory
        assert device("prctl", option) == EPERM
        assert computing("prctl", option) == KILL
    for option in PRCTL.values():
        assert device("prctl", option) == ALLOW
        assert computing("prctl", option) == ALLOW


@given(pointer=st.integers(1, 2**64 - 1), who=st.sampled_from([0, OWN]))
@pytest.mark.parametrize("machine", MACHINES)
def test_limits_are_read_and_never_set(machine: str, pointer: int, who: int) -> None:
    device = Filter(machine, device_program(machine, own=OWN, programs=True))
    assert device("prlimit64", who, 7, pointer) == EPERM
    assert device("prlimit64", who, 7, 0, pointer) == ALLOW
    assert device("prlimit64", 1, 7, 0, pointer) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_programs_are_as_short_as_the_kernel_takes_and_jumps_stay_inside(machine: str) -> None:
    for steps in (
        computing_program(machine),
        device_program(machine, own=OWN, programs=False),
        interpreting_program(machine, compiles=False, on_device=False),
    ):
        assert len(steps) <= 4096
        for place, (operation, if_true, if_false, operand) in enumerate(steps):
            assert 0 <= operand < 2**32
            assert max(if_true, if_false) <= 255
            if operation != RETURN:
                assert place + 1 + max(if_true, if_false) < len(steps)
        assert steps[-1][0] == RETURN
