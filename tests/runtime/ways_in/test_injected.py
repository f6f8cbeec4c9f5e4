"""An injected sitecustomize: whom it reaches, what it costs, and whom it leaves alone."""

from __future__ import annotations

import ast
import glob
import json
import os
import shutil
import sys
import zipapp
from pathlib import Path
from typing import Any

import pytest

import retuned.runtime

RUNTIME = Path(retuned.runtime.__file__).parent
SITECUSTOMIZE = RUNTIME / "site" / "sitecustomize.py"

WATCHING = """
import sys
print([type(finder).__name__ for finder in sys.meta_path].count("ImportWatch"))
"""
JOINED = """
import sys
def joined():
    module = sys.modules.get("retuned.runtime.plugins.join")
    return module is not None and module.joined() is not None
"""
NEXT = """
import sys
print("next", __name__, __file__.endswith("theirs/sitecustomize.py"), flush=True)
mark = 7
"""


def test_a_process_that_never_imports_pytorch_only_waits(machine: Any) -> None:
    assert machine.said(WATCHING) == "1"


@pytest.mark.parametrize(
    "variables",
    [{"RETUNED_RUNTIME": "off"}, {"RETUNED_RUNTIME": " OFF "}, {"RETUNED_SOCKET_DIR": None}],
)
def test_switched_off_or_told_no_folder_nothing_waits(machine: Any, variables: Any) -> None:
    program = WATCHING + JOINED + "import torch\nprint(joined())"
    assert machine.said(program, variables=variables).split() == ["0", "False"]


def test_the_start_loads_nothing_that_costs(machine: Any) -> None:
    program = "import sys; print(*sorted(sys.modules))"
    flags = ("-X", "frozen_modules=on")
    before = set(machine.said(program, *flags, variables={"RETUNED_RUNTIME": "off"}).split())
    bare = set(machine.run(program, *flags, inject=False).stdout.split())
    after = set(machine.said(program, *flags).split())
    allowed = {"sitecustomize", "_retuned_startup", "__future__"}
    allowed |= {name for name in after if name.split(".")[0] in ("importlib", "warnings")}
    allowed |= {"_warnings", "importlib._abc"}
    assert after - bare <= allowed
    assert after - before <= allowed


@pytest.mark.parametrize(("operators", "watching"), [("off", "0"), ("on", "1")])
def test_importing_pytorch_joins_and_leaves_its_loader_as_it_was(
    machine: Any, operators: str, watching: str
) -> None:
    """Imports are watched on only while a part waits for a module, as for a server's operators."""
    program = JOINED + (
        "import importlib.util\n"
        "probe = importlib.util.find_spec('torch')\n"
        "print(joined())\n"
        "import torch\n"
        "print(joined(), torch.answer, type(torch.__loader__).__name__,\n"
        "      'exec_module' in vars(torch.__loader__))\n"
    )
    variables = {"RETUNED_TRITON": "off", "RETUNED_OPERATORS": operators}
    variables["RETUNED_TUNED"] = operators
    lines = machine.said(program + WATCHING, variables=variables).splitlines()
    assert lines == ["False", "True 42 SourceFileLoader False", watching]


def test_what_was_joined_listens_only_once_there_is_something_to_swap(machine: Any) -> None:
    program = JOINED + (
        "import torch, threading\n"
        "from retuned.runtime.plugins.join import joined as runtime\n"
        "print(runtime().socket, threading.active_count())\n"
        "definition = {'name': 'k', 'op_type': 'k', 'axes': {'N': {'type': 'var'}},\n"
        "    'inputs': {'x': {'shape': ['N'], 'dtype': 'float32'}},\n"
        "    'outputs': {'y': {'shape': ['N'], 'dtype': 'float32'}}}\n"
        "slot = runtime().slot(definition, original=lambda x: x)\n"
        "print(runtime().socket.exists(), slot(3))\n"
    )
    assert machine.said(program).splitlines() == ["None 1", "True 3"]
    assert list((machine.folder / "s").iterdir()) == [], "gone with the process"


def test_what_needs_pytorch_and_triton_is_installed_as_they_come(machine: Any) -> None:
    machine.module("triton.__init__", "import triton.runtime.jit\n")
    machine.module("triton.runtime.__init__")
    machine.module("triton.runtime.jit", "class JITFunction:\n    def run(self): ...\n")
    program = (
        "import torch\n"
        "from retuned.runtime.plugins.join import _JOINING\n"
        "print(sorted(_JOINING._done))\n"
        "import triton\n"
        "print(sorted(_JOINING._done))\n"
        "from retuned.runtime import intercept\n"
        "print(intercept.current().states['jit'])\n"
    )
    variables = {"TRITON_INTERPRET": None, "RETUNED_OPERATORS": "off"}
    lines = machine.said(program + WATCHING, variables=variables).splitlines()
    assert lines == [
        "['graphs', 'tuned-files']",
        "['graphs', 'triton', 'tuned-files']",
        "run-signature-unknown",
        "1",  # modules with tunables may still come
    ]


def test_an_import_that_fails_fails_as_without_us_and_a_later_one_joins(machine: Any) -> None:
    machine.module("torch", "import os\nif os.environ.get('BAD'): raise OSError('no libcuda')\n")
    program = JOINED + (
        "import os\n"
        "os.environ['BAD'] = '1'\n"
        "try: import torch\n"
        "except OSError as error: print(error, joined(), 'torch' in sys.modules)\n"
        "del os.environ['BAD']\n"
        "import torch\n"
        "print(joined())\n"
    )
    assert machine.said(program).splitlines() == ["no libcuda False False", "True"]


def test_a_lazily_loaded_pytorch_joins_when_it_is_loaded(machine: Any) -> None:
    program = JOINED + (
        "import importlib.util\n"
        "spec = importlib.util.find_spec('torch')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['torch'] = module\n"
        "spec.loader.exec_module(module)\n"
        "print(joined())\n"
        "print(module.answer, joined())\n"
    )
    assert machine.said(program).splitlines() == ["False", "42 True"]


def test_a_runtime_that_is_broken_fails_nothing_and_says_at_most_a_line(
    machine: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "retuned"
    shutil.copytree(RUNTIME / "site", copy / "runtime" / "site")
    shutil.copytree(RUNTIME / "plugins", copy / "runtime" / "plugins")
    machine.site = copy / "runtime" / "site"
    machine.python = getattr(sys, "_base_executable", sys.executable)
    program = "import torch; print(torch.answer)"
    incomplete = machine.run(program)
    assert (incomplete.returncode, incomplete.stdout) == (0, "42\n")
    (line,) = incomplete.stderr.splitlines()
    assert "cannot join" in line
    assert "ImportError" in line
    (copy / "runtime" / "plugins" / "startup.py").write_text("raise SystemError('broken')")
    assert machine.said(program) == "42"
    (copy / "runtime" / "plugins" / "startup.py").unlink()
    assert machine.said(program) == "42"


# --- other people's sitecustomize -----------------------------------------------------------------


def test_a_shadowed_sitecustomize_runs_as_itself(machine: Any) -> None:
    machine.path.append(str(machine.module("sitecustomize", NEXT, where="theirs")))
    lines = machine.said("import sitecustomize\nprint(sitecustomize.mark)" + WATCHING).splitlines()
    assert lines == ["next sitecustomize True", "7", "1"]


def test_the_path_is_as_it_was_when_theirs_has_run(machine: Any) -> None:
    theirs = "import sys\nsys.path.append('/added')\n"
    machine.path.append(str(machine.module("sitecustomize", theirs, where="theirs")))
    (path,) = machine.said("import sys, json; print(json.dumps(sys.path))").splitlines()
    found = json.loads(path)
    assert found[1:4] == [str(machine.site), *machine.path]
    assert found[-1] == "/added"


@pytest.mark.parametrize(
    "theirs",
    [
        "raise ValueError('theirs is broken')",
        "import no_such_module",
        "raise ImportError('sitecustomize', name='sitecustomize')",
        "import sys; sys.exit(3)",
        "this is no python",
        "",
    ],
)
def test_whatever_theirs_does_is_seen_as_without_us(machine: Any, theirs: str) -> None:
    machine.path.append(str(machine.module("sitecustomize", theirs, where="theirs")))
    with_us = machine.run("print('served')")
    without = machine.run("print('served')", inject=False)
    assert (with_us.returncode, with_us.stdout) == (without.returncode, without.stdout)
    said, expected = with_us.stderr.splitlines(), without.stderr.splitlines()
    if "Fatal" in with_us.stderr:  # with its traceback, in which there is one frame more
        said, expected = said[-1:], expected[-1:]
    assert said == expected


RELOADING = """
import os, sys
here = os.path.dirname(__file__)
print("reloading", flush=True)
sys.path.remove(here)
del sys.modules["sitecustomize"]
try:
    import sitecustomize
finally:
    sys.path.insert(0, here)
"""
GREEDY = """
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
print("greedy", flush=True)
rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
if spec is not None:
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
"""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("style", ["reloading", "greedy"])
def test_others_that_chain_too_run_once_each_in_any_order(
    machine: Any, style: str, before: bool
) -> None:
    text = {"reloading": RELOADING, "greedy": GREEDY}[style]
    other = str(machine.module("sitecustomize", text, where="tracer"))
    machine.path.append(str(machine.module("sitecustomize", NEXT, where="theirs")))
    if before:
        machine.first.append(other)
    else:
        machine.path.insert(0, other)
    lines = machine.said(WATCHING).splitlines()
    assert lines == [style, "next sitecustomize True", "1"]


def test_two_copies_of_ours_wait_once(machine: Any, tmp_path: Path) -> None:
    shutil.copytree(RUNTIME, tmp_path / "copy" / "runtime")
    machine.path.insert(0, str(tmp_path / "copy" / "runtime" / "site"))
    machine.path.append(str(machine.module("sitecustomize", NEXT, where="theirs")))
    assert machine.said(WATCHING).splitlines() == ["next sitecustomize True", "1"]


# --- places and processes -------------------------------------------------------------------------


@pytest.mark.parametrize("beside", ["", "retuned/sockets"])
def test_a_copied_runtime_serves_an_environment_without_retuned(
    machine: Any, tmp_path: Path, beside: str
) -> None:
    """As an init container leaves it, on a volume that cannot be written.

    The working directory of the server may be the one that has the volumes of a pod, so that its
    folder `retuned` looks like a package without a file.
    """
    (machine.folder / beside).mkdir(parents=True, exist_ok=True)
    root = tmp_path / "volume"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(RUNTIME, root / "retuned" / "runtime", ignore=ignore)
    (root / "retuned" / "__init__.py").touch()
    (root / "secret_of_the_volume.py").touch()
    for folder in {path.parent for path in root.rglob("*.py")}:
        (folder / "__pycache__").touch()  # a file in the way: bytecode cannot be written
    machine.site = root / "retuned" / "runtime" / "site"
    machine.python = getattr(sys, "_base_executable", sys.executable)
    program = JOINED + (
        "import torch, importlib.util\n"
        "import retuned\n"
        "print(joined(), retuned.__file__)\n"
        "print(importlib.util.find_spec('secret_of_the_volume'), sys.path.count(sys.argv[1]))\n"
    ).replace("sys.argv[1]", repr(str(root)))
    lines = machine.said(program).splitlines()
    assert lines == [f"True {root / 'retuned' / '__init__.py'}", "None 0"]


CHILDREN = """
import multiprocessing, subprocess, sys

def look(queue):
    import torch
    from retuned.runtime.plugins.join import joined
    queue.put(joined() is not None and joined().socket is None)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=look, args=(queue,))
        process.start()
        print(method, queue.get(timeout=200))
        process.join()
    print("exec", subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
    for flag in ("-S", "-E", "-I"):
        print(flag, subprocess.run([sys.executable, flag, "-c", sys.argv[1]]).returncode)
"""


def test_workers_are_reached_however_they_are_made(machine: Any) -> None:
    program = machine.module("server", CHILDREN, where="app") / "server.py"
    look = "import sys; sys.exit('_retuned_startup' in sys.modules)"
    lines = machine.said("", str(program), look).splitlines()
    reached = ["fork True", "spawn True", "forkserver True", "exec 1"]
    assert lines == [*reached, "-S 0", "-E 0", "-I 0"]


def test_a_zip_application_is_reached(machine: Any, tmp_path: Path) -> None:
    source = machine.module("__main__", WATCHING, where="app")
    zipapp.create_archive(source, tmp_path / "app.pyz")
    assert machine.said("", str(tmp_path / "app.pyz")) == "1"


def test_a_zipped_pytorch_joins_too(machine: Any, tmp_path: Path) -> None:
    source = machine.module("torch", "import helper\nanswer = helper.answer\n", where="zipped")
    machine.module("helper", "answer = 43\n", where="zipped")
    shutil.make_archive(str(tmp_path / "lib"), "zip", source)
    machine.path[:] = [str(tmp_path / "lib.zip")]
    program = JOINED + (
        "import importlib.util\n"
        "importlib.util.find_spec('torch')\n"
        "import torch\n"
        "print(torch.answer, joined(), 'exec_module' in vars(torch.__loader__))\n"
    )
    assert machine.said(program) == "43 True False"


# --- other Pythons --------------------------------------------------------------------------------


def _others() -> list[str]:
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    found = glob.glob(f"{root}/versions/*/bin/python")
    found += [path for v in range(9, 16) if (path := shutil.which(f"python3.{v}"))]
    return sorted(path for path in set(found) if "shims" not in path)


@pytest.mark.parametrize("python", _others() or [""], ids=lambda path: Path(path).parts[-3:-2])
def test_another_python_runs_its_own_sitecustomize_and_is_not_disturbed(
    machine: Any, python: str
) -> None:
    if not python:
        pytest.skip("no other Python on this machine")
    machine.python = python
    theirs = "import sys\nsys.stdout.write('theirs ')\nmark = 7\n"
    machine.path.append(str(machine.module("sitecustomize", theirs, where="theirs")))
    program = "import sitecustomize, sys; sys.stdout.write(str(sitecustomize.mark))"
    assert machine.said(program) == "theirs 7"
    machine.path.pop()
    assert machine.said("import sys; sys.stdout.write('quiet')") == "quiet"


def test_sitecustomize_is_read_by_pythons_of_long_ago() -> None:
    """Nothing that Python 2.7 and 3.4 cannot parse: it runs in every child of a server."""
    tree = ast.parse(SITECUSTOMIZE.read_text(), feature_version=(3, 4))
    later: tuple[type[ast.AST], ...] = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Starred)
    later += (ast.FunctionDef, ast.AsyncFunctionDef, ast.Await, ast.YieldFrom, ast.MatMult)
    assert [node for node in ast.walk(tree) if isinstance(node, later)] == []
    assert SITECUSTOMIZE.read_text().isascii()


@pytest.mark.parametrize("name", ["startup.py", "__init__.py"])
def test_the_start_is_read_by_python_310(name: str) -> None:
    ast.parse((RUNTIME / "plugins" / name).read_text(), feature_version=(3, 10))


def test_every_module_of_the_runtime_is_read_by_the_least_python_it_supports() -> None:
    modules = list(RUNTIME.rglob("*.py"))
    assert len(modules) > 30
    for module in modules:
        ast.parse(module.read_text(), feature_version=(3, 11))
