"""Triton sources that bring host code along; every piece leaves a file if it is ever executed."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.triton_kernels import HEAD, ROW, changed

KERNEL = ROW.removeprefix(HEAD)


def numbered(canary: Path) -> dict[str, str]:
    """Return the cheats of the list that need host code, by number; all act when imported."""
    mark = f"open({str(canary)!r}, 'w').close()"
    before = {
        "H01": "def run(x):\n    import torch\n    return torch.empty(x.shape)\n",
        "H07": "def run(x):\n    return x.any() + x.sum()\n",
        "H11": "ANSWERS = {}\ndef run(x):\n    return ANSWERS.setdefault(x.data_ptr(), x)\n",
        "H14": "from reference import generate_input\n",
        "H15": "def run(calls):\n    return [call() for call in calls]\n",
        "H16": "import torch\nGRAPH = torch.cuda.CUDAGraph()\n",
        "H17": "import torch\nSIDE = torch.cuda.Stream()\n",
        "H18": "import threading\nthreading.Thread(target=print).start()\n",
        "H19": "class Lazy:\n    def __eq__(self, other):\n        return True\n",
        "H20": "tl.tensor.__eq__ = lambda self, other: True\n",
        "H21": "import time\ntime.perf_counter = lambda: 0.0\n",
        "H22": "import sys\nsys.modules['__main__'].judge = print\n",
        "H24": "CALLS = [0]\ndef run():\n    CALLS[0] += 1\n",
        "H25": "import ctypes\nctypes.CDLL('libcudart.so').cudaDeviceSetLimit(6, 1 << 30)\n",
        "H26": "import os\nos.write(3, b'0.001')\n",
        "H27": "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\n",
        "H28": "import gc\nFOUND = [one for one in gc.get_objects()]\n",
        "H29": "import ctypes\nctypes.CDLL('libcuda.so').cuMemGetAddressRange(0, 0, 0)\n",
        "H30": "import os\nTIMED = 'BENCHMARK' in os.environ\n",
        "H32": "try:\n    import fast\nexcept ImportError:\n    import torch as fast\n",
        "H33": "import torch\ndef run(a, b):\n    return torch.matmul(a, b)\n",
        "H44": "import subprocess\nsubprocess.run(['pip', 'install', 'fast'])\n",
        "H45": "getattr(__builtins__, 'ev' + 'al')('1')\n",
        "H46": "import atexit\natexit.register(print)\n",
    }
    return {number: f"{HEAD}{mark}\n{text}{KERNEL}" for number, text in before.items()}


def carriers(canary: Path) -> dict[str, str]:
    """Return every other way for host code to come along, by a sentence."""
    mark = f"open({str(canary)!r}, 'w').close()"
    found = {
        "a statement of the module": f"{HEAD}{mark}\n{KERNEL}",
        "a statement behind a docstring": f'{HEAD}"""text"""\n{mark}\n{KERNEL}',
        "an assignment": f"{HEAD}X = {mark}\n{KERNEL}",
        "an annotated assignment": f"{HEAD}X: {mark} = 1\n{KERNEL}",
        "a constant": f"{HEAD}X = tl.constexpr({mark})\n{KERNEL}",
        "a formatted text": f'{HEAD}X = f"{{{mark}}}"\n{KERNEL}',
        "a condition": f"{HEAD}if {mark} is None:\n    X = 1\n{KERNEL}",
        "a list": f"{HEAD}X = [{mark} for _ in range(1)]\n{KERNEL}",
        "a class": f"{HEAD}class Kept:\n    {mark}\n{KERNEL}",
        "a base class": f"{HEAD}class Kept({mark} or object):\n    pass\n{KERNEL}",
        "a walrus": f"{HEAD}(X := {mark})\n{KERNEL}",
        "an assertion": f"{HEAD}assert {mark} is None\n{KERNEL}",
        "a with statement": f"{HEAD}with open({str(canary)!r}, 'w'):\n    X = 1\n{KERNEL}",
        "an import of a file beside it": f"{HEAD}{mark}\nimport variant\n{KERNEL}",
        "an import that is renamed": f"{HEAD}import builtins as triton\ntriton.{mark}\n{KERNEL}",
    }
    decorators = {
        "a decorator": f"@({mark} or triton.jit)",
        "a second decorator": f"@(lambda f: {mark} or f)\n@triton.jit",
        "autotuning": f"@triton.autotune(configs=[{mark}], key=[])\n@triton.jit",
        "autotuning with a hook": (
            f"@triton.autotune(configs=[triton.Config({{}}, pre_hook={mark})], key=[])\n@triton.jit"
        ),
        "heuristics": f"@triton.heuristics({{'B': {mark}}})\n@triton.jit",
        "options of the decorator": f"@triton.jit(launch_metadata={mark})",
        "a custom operator": f"@triton.jit\n@triton.library.custom_op('a::b', {mark})",
    }
    for sentence, text in decorators.items():
        found[sentence] = HEAD + KERNEL.replace("@triton.jit", text)
    signatures = {
        "a default": f"BLOCK: tl.constexpr = {mark})",
        "an annotation": f"BLOCK: {mark})",
        "an annotation of the result": f"BLOCK: tl.constexpr) -> {mark}",
        "a default of a keyword": f"BLOCK: tl.constexpr, *, n={mark})",
    }
    for sentence, text in signatures.items():
        found[sentence] = changed("BLOCK: tl.constexpr)", text)
    return found


def while_compiling(canary: Path) -> dict[str, str]:
    """Return code in a kernel that Triton, not Python, would execute on the host."""
    path = str(canary)
    lines = {
        "a chain of modules": f"tl.core.builtins.open({path!r}, 'w')",
        "the globals of a function": f"tl.exp.__globals__['open']({path!r}, 'w')",
        "the builtins": f"__builtins__['open']({path!r}, 'w')",
        "a name put together": f"getattr(tl, 'co' + 're').os.system({path!r})",
        "text that is evaluated": f"eval({path!r})",
        "a formatted text": f"tl.static_assert(True, f'{{open({path!r})}}')",
        "a constant expression": f"tl.constexpr(open({path!r}, 'w'))",
        "printing": f"tl.device_print({path!r})",
        "printing while it compiles": f"tl.static_print({path!r})",
        "an assertion on the device": f"tl.device_assert(False, {path!r})",
        "assembly": f"tl.inline_asm_elementwise({path!r}, '=r', [], tl.int32, True, 1)",
        "a library of the vendor's": "tl.extra.cuda.libdevice.exp(v)",
        "an external function": f"tl.extern_elementwise({path!r}, {path!r}, [v], {{}}, True)",
        "a library by its path": f"tl.math.extern_elementwise({path!r}, {path!r}, [], {{}}, True)",
        "an import": f"__import__('os').system({path!r})",
        "a lambda": f"(lambda: open({path!r}, 'w'))()",
        "a method of a text": f"{path!r}.format(v)",
        "a private attribute": "v._builtins",
        "a launch from a launch": "kernel[(1,)](x, y, M, N, BLOCK)",
    }
    return {
        sentence: changed("    out = e", f"    q = {line}\n    out = e")
        for sentence, line in lines.items()
    }
