"""Triton variants that cheat, each in one sentence; sources are in `triton_kernels`."""

from __future__ import annotations

from tests.hostile.cheats import Cheat
from tests.hostile.triton_kernels import HEAD, ROW, TILE, changed, linear, softmax

from retuned.contract import Solution
from retuned.stages.verdict import Reason

WITHOUT_COMPUTING: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "returns its input": (softmax(changed("out, mask", "v, mask")), (Reason.WRONG_OUTPUT,)),
    "writes nothing": (
        softmax(changed("out, mask=mask", "out, mask=mask & (at + row < 0)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "writes every second row": (
        softmax(changed("out, mask=mask", "out, mask=mask & ((at * 0 + row) % 2 == 0)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "leaves the last element": (
        softmax(changed("out, mask=mask", "out, mask=mask & (row * N + at < M * N - 1)")),
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "launches one program for all rows": (softmax(grid=("1",)), (Reason.OUTPUT_NOT_WRITTEN,)),
    "fills the output with the mean": (
        softmax(changed("out, mask", "v * 0.0 + 1.0 / N, mask")),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "starts from what its scratch holds": (
        softmax(
            changed(
                "out, mask=mask",
                "out + tl.load(scratch) * 0.0, mask=mask",
                source=ROW.replace("(x, y, M,", "(x, y, scratch, M,"),
            ),
            scratch_bytes=64,
        ),
        (Reason.OUT_OF_BOUNDS,),
    ),
}
NUMBERS: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "is wrong for odd M": (
        softmax(changed("out, mask", "out * (1.0 + 0.001 * (M % 2)), mask")),
        (Reason.WRONG_OUTPUT,),
    ),
    "is right at the shapes it was tuned for": (
        softmax(
            changed("out, mask", "tl.where((M == 4) | (M == 12), out, out * 1.001), mask"),
        ),
        (Reason.WRONG_OUTPUT,),
    ),
    "is wrong in the last row": (
        softmax(changed("out, mask", "tl.where(row == M - 1, out * 1.001, out), mask")),
        (Reason.WRONG_OUTPUT,),
    ),
    "rounds its input to bfloat16": (
        softmax(
            changed("    e = tl.exp", "    v = v.to(tl.bfloat16).to(tl.float32)\n    e = tl.exp")
        ),
        (Reason.WRONG_OUTPUT,),
    ),
    "multiplies in half precision": (
        linear(changed("tl.dot(a, b,", "tl.dot(a.to(tl.float16), b.to(tl.float16),", source=TILE)),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "adds up in half precision": (
        linear(
            changed(
                "    s = tl.load",
                "    acc = acc.to(tl.float16).to(tl.float32)\n    s = tl.load",
                source=TILE,
            )
        ),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "skips the last of the sum": (
        linear(changed("(k[None, :] < K)", "(k[None, :] < K - 1)", source=TILE)),
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "hides NaN": (
        softmax(changed("out, mask", "tl.where(out != out, 0.0, out), mask")),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
    "subtracts no maximum": (
        softmax(changed("tl.exp(v - tl.max(v, axis=0))", "tl.exp(v)")),
        (Reason.NAN_MISMATCH, Reason.WRONG_OUTPUT),
    ),
}
MEMORY: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "writes past its last row": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y + M * N + row, 0.0)")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "writes a tile far past its end": (
        softmax(
            changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y + (M + 40) * N + at, e)")
        ),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "writes before its first row": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(y - 1 - row, 0.0)")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "reads past its input": (
        softmax(changed("out, mask", "out + 0.0 * tl.load(x + M * N + at), mask")),
        (Reason.OUT_OF_BOUNDS,),
    ),
    "changes its input": (
        softmax(changed("out, mask=mask)", "out, mask=mask)\n    tl.store(x + row * N + at, e)")),
        (Reason.INPUT_MODIFIED,),
    ),
    "answers with the address of its output": (
        softmax(changed("out, mask", "out * (1.0 + (y.to(tl.int64) // 64 % 64) * 1e-6), mask")),
        (Reason.NONDETERMINISTIC,),
    ),
    "never ends": (
        softmax(
            changed(
                "    tl.store(y",
                "    turn = M\n    while turn > 0:\n        turn += M - M\n"
                "        tl.atomic_add(y + at, 0.0, mask=mask)\n    tl.store(y",
            )
        ),
        (Reason.TIMED_OUT,),
    ),
}
COMPILED: dict[str, tuple[Solution, tuple[Reason, ...]]] = {
    "wants more shared memory than there is": (
        linear(params={"BM": 128, "BN": 16, "BK": 256}),
        (Reason.OVER_LIMIT,),
    ),
    "adds shapes that do not fit": (
        softmax(changed("out, mask", "out + tl.arange(0, 7 * 0 + 16), mask")),
        (Reason.COMPILE_FAILED,),
    ),
    "asks for more threads than a program has": (
        softmax(changed("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK * 3)")),
        (Reason.COMPILE_FAILED,),
    ),
}
NOT_THE_FORM: dict[str, Solution] = {
    "imports the operating system": softmax("import os\n" + ROW),
    "imports PyTorch and lets it compute": softmax("import torch\n" + ROW),
    "imports from triton's insides": softmax(
        "from triton.runtime import driver\n" + ROW,
    ),
    "acts while it is imported": softmax(ROW + '\nprint("here")\n'),
    "writes a file while it is imported": softmax(ROW + '\nopen("/tmp/x", "w")\n'),
    "keeps what it computed in a global": softmax(
        changed("    row =", "    global kept\n    row =", source=ROW)
    ),
    "calls the host in a default": softmax(
        changed("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr = exec('1'))")
    ),
    "decorates with something of its own": softmax(
        changed("@triton.jit", "@triton.autotune(configs=[], key=[])\n@triton.jit")
    ),
    "defines a class": softmax(ROW + "\nclass Kept:\n    value = 0\n"),
    "replaces a function of the language": softmax(ROW + "\ntl.exp = tl.abs\n"),
    "climbs through private attributes": softmax(
        changed("    out = e", "    q = tl.exp.__globals__\n    out = e")
    ),
    "evaluates text": softmax(changed("    out = e", "    q = eval('1')\n    out = e")),
    "writes assembly": softmax(
        changed(
            "    out = e",
            "    q = tl.inline_asm_elementwise('exit;', '=r,r', [at], dtype=tl.int32,"
            " is_pure=True, pack=1)\n    out = e",
        )
    ),
    "prints from the device": softmax(
        changed("    out = e", "    tl.device_print('x')\n    out = e")
    ),
    "looks like ASCII and is not": softmax(changed("    out = e", "    \u043eut = e\n    out = e")),
    "has no kernel": softmax(HEAD),
    "asks for a parameter nobody gives": softmax(changed("(x, y, M,", "(x, y, z, M,")),
    "is given a parameter it does not have": softmax(params={"BLOCK": 32, "OTHER": 1}),
    "asks for options that are none": softmax(params={"BLOCK": 32, "num_warps": 3}),
    "has no grid": softmax(grid=()),
    "computes its grid with a call": softmax(grid=("__import__('os').getpid()",)),
    "divides by zero in its grid": softmax(grid=("M // (M - 4)",)),
    "asks for scratch that it was not given": softmax(changed("(x, y, M,", "(x, y, scratch, M,")),
    "asks for another layout of an input": softmax(layouts={"x": "transposed"}),
    "launches wider than any device": softmax(grid=("M", "70000")),
    "is not Python": softmax("int main() { return 0; }"),
}


# What the numbers of the list ask for beyond the above.
MORE: dict[str, tuple[Solution, str, tuple[Reason, ...]]] = {
    "fills in the constant that was right once": (
        softmax(changed("out, mask", "at * 0.0 + 0.0321, mask")),
        "G4",
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "fills its output with zeros": (
        softmax(changed("out, mask", "at * 0.0, mask")),
        "G4",
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "answers with the sum of its input": (
        softmax(changed("out, mask", "at * 0.0 + tl.sum(tl.where(at < N, v, 0.0), axis=0), mask")),
        "G4",
        (Reason.WRONG_OUTPUT, Reason.NAN_MISMATCH),
    ),
    "computes nothing at the smallest shape": (
        softmax(changed("out, mask=mask", "out, mask=mask & (at * 0 + M != 4)")),
        "G3",
        (Reason.OUTPUT_NOT_WRITTEN,),
    ),
    "zeroes its input before it computes": (
        softmax(
            changed("    v = tl.load", "    tl.store(x + at, at * 0.0, mask=mask)\n    v = tl.load")
        ),
        "G3",
        (Reason.INPUT_MODIFIED,),
    ),
    "uses what the next program has yet to write": (
        softmax(
            changed(
                "out, mask",
                "out + 0.0 * tl.load(y + (row + 1) % M * N + at, mask=mask, other=0.0), mask",
            )
        ),
        "G3",
        (Reason.OUT_OF_BOUNDS, Reason.OUTPUT_NOT_WRITTEN, Reason.NONDETERMINISTIC),
    ),
    "computes only where it sees what the judge fills outputs with": (
        softmax(
            changed(
                "out, mask",
                "tl.where((tl.load(y + row * N).to(tl.int32, bitcast=True) == -1)"
                " | (tl.load(y + row * N).to(tl.int32, bitcast=True) == 0x5A5A5A5A), out, 0.0),"
                " mask",
            )
        ),
        "G3",
        (Reason.OUT_OF_BOUNDS,),
    ),
    "adds into an output that nobody emptied": (
        softmax(changed("tl.store(y + row * N + at, out,", "tl.atomic_add(y + row * N + at, out,")),
        "G3",
        (Reason.OUT_OF_BOUNDS, Reason.NONDETERMINISTIC, Reason.OUTPUT_NOT_WRITTEN),
    ),
    "mixes its neighbours' lowest bits into every row": (
        softmax(
            changed(
                "out, mask=mask",
                "out * (1.0 + (beside % 8) * 1.2e-7), mask=mask",
                source=changed(
                    "    out = e",
                    "    beside = tl.load(x + (row + 1) % M * N + at, mask=mask, other=0.0)\n"
                    "    beside = beside.to(tl.int32, bitcast=True) & 255\n    out = e",
                ),
            )
        ),
        "G4",
        (Reason.ROW_DEPENDENT, Reason.WRONG_OUTPUT),  # what it adds is at times too much as well
    ),
    "looks for the answer where nothing was given to it": (
        softmax(changed("out, mask", "out + 0.0 * tl.load(x + (at + 1) * 268435456), mask")),
        "G3",
        (Reason.CRASHED, Reason.OUT_OF_BOUNDS),
    ),
}


def _cheats() -> dict[str, Cheat]:
    found = {
        name: Cheat(solution=solution, gate="G1", reasons=(Reason.CONTRACT,))
        for name, solution in NOT_THE_FORM.items()
    }
    by_gate = (("G2", COMPILED), ("G3", MEMORY), ("G4", WITHOUT_COMPUTING), ("G4", NUMBERS))
    early = {Reason.OUTPUT_NOT_WRITTEN, Reason.OUT_OF_BOUNDS}
    for gate, group in by_gate:
        for name, (solution, reasons) in group.items():
            at = "G3" if gate == "G4" and set(reasons) <= early else gate
            found[name] = Cheat(solution=solution, gate=at, reasons=reasons)
    for name, (solution, gate, reasons) in MORE.items():
        found[name] = Cheat(solution=solution, gate=gate, reasons=reasons)
    return found


TRITON_CHEATS = _cheats()
"""Every one that the gates before timing stop, by its sentence."""
