"""Seccomp programs, built as data: the system calls that a child keeps, per architecture.

Pure, standard library only. A program is a list of steps of the kernel's classic packet filter. It
sees the number of a call and its arguments, but not the memory that they point to. Numbers are
those of the kernel's headers: a column per architecture, ``None`` where it never had the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Step = tuple[int, int, int, int]
"""Operation, jump where true, jump where false, operand."""

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
"""Results of a filter program."""
LOAD, EQUAL, SET, RETURN = 0x20, 0x15, 0x45, 0x06
"""Operations: load a word of the call, compare, test bits, return."""
ARCHITECTURES: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Supported machines as `platform.machine` names them, with the kernel's code."""
_COLUMN = {"x86_64": 0, "aarch64": 1}
_X32 = 0x40000000
_EPERM, _ENOSYS = 1, 38
_AF_UNIX, _PROT_EXEC, _CLONE_THREAD = 1, 4, 0x00010000
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000  # write, read and write, create, truncate
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4

Numbers = tuple[int | None, int | None]

COMPUTING: dict[str, Numbers] = {
    "read": (0, 63), "write": (1, 64), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "munmap": (11, 215), "brk": (12, 214), "sched_yield": (24, 124),
    "mremap": (25, 216), "madvise": (28, 233), "getpid": (39, 172), "exit": (60, 93),
    "gettid": (186, 178), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128), "clock_gettime": (228, 113), "exit_group": (231, 94),
    "set_robust_list": (273, 99), "membarrier": (324, 283), "rseq": (334, 293),
    "sigaltstack": (131, 132),
}  # fmt: skip
"""Calls that an interpreter needs to compute, wait and communicate over two pipes."""

DENIED: dict[str, Numbers] = {
    # Other processes: signals, memory, descriptors.
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    # Name spaces, mounts and files by other ways than their paths.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "setns": (308, 268), "unshare": (272, 97), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "mknod": (133, None),
    "mknodat": (259, 33), "fanotify_init": (300, 262),
    # Kernel internals.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "uselib": (134, None), "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42), "personality": (135, 92),
    # The machine, its clock and names, and rights that come back.
    "syslog": (103, 116), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58),
    "capset": (126, 91), "setrlimit": (160, 164),
    # No programs from memory: allowed programs are given by path.
    "execveat": (322, 281), "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
"""Calls that a process driving a device does not need."""

PARTLY: dict[str, Numbers] = {
    "prctl": (157, 167), "tgkill": (234, 131), "prlimit64": (302, 261), "socket": (41, 198),
    "mmap": (9, 222), "mprotect": (10, 226), "clone": (56, 220), "clone3": (435, 435),
    "execve": (59, 221), "open": (2, None), "openat": (257, 56),
}  # fmt: skip

FURTHER: dict[str, Numbers] = {
    "shmget": (29, 194), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "setpgid": (109, 154), "setsid": (112, 157), "setuid": (105, 146), "setgid": (106, 144),
    "sched_setscheduler": (144, 119), "setpriority": (141, 140), "fork": (57, None),
    "vfork": (58, None), "creat": (85, None), "truncate": (76, 45), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "link": (86, None), "linkat": (265, 37), "unlink": (87, None),
    "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "openat2": (437, 437),
}  # fmt: skip

INTERPRETING = (
    "shmget", "connect", "bind", "listen", "socket", "kill", "ptrace", "setpgid", "setsid",
    "tkill", "setuid", "setgid", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "unshare", "setns",
    "sched_setscheduler", "setpriority", "mount", "umount2", "chroot",
)  # fmt: skip
"""Calls that untrusted Python code does not need: network, other processes, rights."""

CHANGING = (
    "fork", "vfork", "execve", "execveat", "creat", "truncate", "rename", "renameat",
    "renameat2", "mkdir", "mkdirat", "rmdir", "link", "linkat", "unlink", "unlinkat", "symlink",
    "symlinkat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown",
    "fchownat", "mknod", "mknodat", "utime", "utimes", "futimesat", "utimensat", "setxattr",
    "lsetxattr", "fsetxattr", "memfd_create",
)  # fmt: skip
"""Calls needed only for compiling: new processes and programs, and every change of a file."""

UNSEEN = ("clone3", "openat2")
"""Calls whose flags a filter cannot see; the C library falls back to others."""

PRCTL: Mapping[str, int] = {
    "PR_GET_PDEATHSIG": 2, "PR_GET_DUMPABLE": 3, "PR_SET_NAME": 15, "PR_GET_NAME": 16,
    "PR_GET_SECCOMP": 21, "PR_GET_NO_NEW_PRIVS": 39, "PR_SET_VMA": 0x53564D41,
}  # fmt: skip
"""Allowed `prctl` options: names of threads and memory, and state queries. Becoming dumpable,
outliving the parent and allowing ptrace are forbidden.
"""


def number(name: str, machine: str) -> int | None:
    return (COMPUTING | DENIED | PARTLY | FURTHER)[name][_COLUMN[machine]]


def computing_program(machine: str) -> list[Step]:
    """Build the filter of a child that only computes: calls not listed kill it."""
    steps = _beginning(machine)
    for name in COMPUTING:
        steps += _on(name, machine, *_answer(ALLOW))
    for name in ("mmap", "mprotect"):  # third argument: protection, must lack EXEC
        steps += _on(name, machine, _load(2), (SET, 0, 1, _PROT_EXEC), *_answer(KILL, ALLOW))
    # First argument: flags, must ask for a thread.
    steps += _on("clone", machine, _load(0), (SET, 0, 1, _CLONE_THREAD), *_answer(ALLOW, KILL))
    # The C library falls back to clone, whose flags can be seen.
    steps += _on("clone3", machine, *_answer(ERRNO | _ENOSYS))
    steps += _on("prctl", machine, *_one_of(PRCTL.values()), *_answer(KILL))
    return [*steps, *_answer(KILL)]


def device_program(machine: str, *, own: int, programs: bool) -> list[Step]:
    """Build the filter of a device's process: denied calls fail, the rest is allowed.

    The process `own` may not send signals or set limits to other processes. `programs` allows
    starting programs, as a compiler does that calls the vendor's assembler.
    """
    denied = ERRNO | _EPERM
    steps = _beginning_by_one_number(machine)
    for name in DENIED:
        steps += _on(name, machine, *_answer(denied))
    if not programs:
        steps += _on("execve", machine, *_answer(denied))
    # First argument: family; runtimes talk to their daemons by files.
    steps += _on("socket", machine, *_one_of([_AF_UNIX]), *_answer(denied))
    steps += _on("tgkill", machine, *_one_of([own]), *_answer(denied))
    steps += _on("prctl", machine, *_one_of(PRCTL.values()), *_answer(denied))
    # Limits are only read, and only its own: the third argument, a pointer, is nothing.
    own_only = [_load(0), (EQUAL, 2, 0, 0), (EQUAL, 1, 0, own), *_answer(denied)]
    unset = [*_absent(_load(2), denied), *_absent(_load(2, upper=True), denied)]
    steps += _on("prlimit64", machine, *own_only, *unset, *_answer(ALLOW))
    return [*steps, *_answer(ALLOW)]


def interpreting_program(machine: str, *, compiles: bool, on_device: bool) -> list[Step]:
    """Build the filter of untrusted Python code: denied calls fail, the rest is allowed.

    It is installed in addition to `device_program`, whose rules it does not repeat. With
    `compiles`, compilers may start and files be written; then only Landlock guards files.
    `on_device` allows opening a device's files for writing.
    """
    denied = ERRNO | _EPERM
    steps = _beginning_by_one_number(machine)
    for name in UNSEEN:
        steps += _on(name, machine, *_answer(ERRNO | _ENOSYS))
    for name in INTERPRETING if compiles else INTERPRETING + CHANGING:
        steps += _on(name, machine, *_answer(denied))
    if not compiles:
        # First argument: flags, must ask for a thread.
        steps += _on(
            "clone", machine, _load(0), (SET, 0, 1, _CLONE_THREAD), *_answer(ALLOW, denied)
        )
    if not compiles and not on_device:
        for name, flags in (("open", 1), ("openat", 2)):
            steps += _on(
                name, machine, _load(flags), (SET, 1, 0, _WRITING), *_answer(ALLOW, denied)
            )
    return [*steps, *_answer(ALLOW)]


def _beginning_by_one_number(machine: str) -> list[Step]:
    """Start the program, and kill calls by the second number range of x86-64 (x32)."""
    second = [(SET, 0, 1, _X32), *_answer(KILL)] if machine == "x86_64" else []
    return [*_beginning(machine), *second]


def _beginning(machine: str) -> list[Step]:
    """Kill calls of another architecture, then load the call's number."""
    return [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        *_answer(KILL),
        (LOAD, 0, 0, _NUMBER_AT),
    ]


def _on(name: str, machine: str, *body: Step) -> list[Step]:
    """Run the steps, of which the last returns a result, if the call matches."""
    found = number(name, machine)
    return [] if found is None else [(EQUAL, 0, len(body), found), *body]


def _one_of(values: Iterable[int]) -> list[Step]:
    steps = [_load(0)]
    for value in values:
        steps += [(EQUAL, 0, 1, value), *_answer(ALLOW)]
    return steps


def _absent(load: Step, denied: int) -> list[Step]:
    return [load, (EQUAL, 1, 0, 0), *_answer(denied)]


def _load(argument: int, *, upper: bool = False) -> Step:
    return (LOAD, 0, 0, 16 + 8 * argument + (4 if upper else 0))


def _answer(*codes: int) -> list[Step]:
    return [(RETURN, 0, 0, code) for code in codes]
