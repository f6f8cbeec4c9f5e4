"""The entry points, as the servers' own loaders of the day read and call them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.ways_in.real_servers import sources

ROOT = Path(__file__).resolve().parents[3]
POINT = "retuned.runtime.plugins:register"
GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}

LOADERS = {
    "vllm": """
import sys, types
root = sys.argv[1] + "/vllm"
for name in ("vllm",):  # the package without what its __init__ imports
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [root]
from vllm import plugins
load = plugins.load_general_plugins
""",
    "sglang": """
import sys, types
root = sys.argv[1] + "/sglang"
for name, path in (("sglang", root), ("sglang.srt", root + "/srt")):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [path]
from sglang.srt import plugins
load = plugins.load_plugins
""",
}
"""Import the real loader, and nothing of what the server is."""
CALL = """
import json
load()
load()
plugins.plugins_loaded = plugins._plugins_loaded = False
load()
from retuned.runtime.core.attach import attached
from retuned.runtime.plugins import join
runtime = join.joined()
print(json.dumps({
    "joined": runtime is not None,
    "server": runtime._host.server if runtime else "",
    "attached": len(attached()),
    "socket": bool(runtime and runtime.socket),
    "torch": "torch" in sys.modules,
    "triton": "triton" in sys.modules,
}))
"""


def _declared() -> dict[str, dict[str, str]]:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found: dict[str, dict[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return found


def _installed(folder: Path) -> Path:
    """Install nothing but what the entry points of this checkout say."""
    info = folder / "retuned_here-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: retuned-here\nVersion: 1.0\n")
    lines = []
    for group, points in _declared().items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_both_groups_lead_to_one_function_that_is_there() -> None:
    assert _declared() == {group: {"retuned": POINT} for group in GROUPS.values()}
    from retuned.runtime.plugins import register

    assert callable(register)


def test_importing_the_plugin_loads_neither_pytorch_nor_the_runtime(machine: Any) -> None:
    program = (
        "import sys, retuned.runtime.plugins\n"
        "print([name for name in ('torch', 'triton', 'retuned.runtime.core.attach')"
        " if name in sys.modules])"
    )
    assert machine.said(program, variables={"RETUNED_RUNTIME": "off"}) == "[]"


@pytest.mark.index
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_the_servers_own_loader_calls_us_once_and_loads_nothing_heavy(
    server: str, machine: Any, tmp_path: Path
) -> None:
    real = sources(server)
    machine.path[:] = [str(_installed(tmp_path / "installed"))]
    program = machine.module("loading", LOADERS[server] + CALL, where="app") / "loading.py"
    done = machine.run("", str(program), str(real), inject=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "joined": True,
        "server": server,
        "attached": 1,
        "socket": False,
        "torch": False,
        "triton": False,
    }


@pytest.mark.index
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_what_we_do_cannot_end_the_servers_loader(
    server: str, machine: Any, tmp_path: Path
) -> None:
    """vLLM calls plugins without a net."""
    real = sources(server)
    machine.path[:] = [str(_installed(tmp_path / "installed"))]
    broken = "import retuned.runtime.core.attach as a\ndel a.attach\n"
    text = LOADERS[server] + broken + "load()\nprint('served')\n"
    program = machine.module("loading", text, where="app") / "loading.py"
    done = machine.run("", str(program), str(real), inject=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "served"), done.stderr


# --- where the servers call it, and what we ask of them -------------------------------------------


def _functions(path: Path) -> dict[str, Any]:
    """Functions and methods of a source file, by qualified name."""
    found: dict[str, Any] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                found[name] = child
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(path.read_text("utf-8")), "")
    return found


def _calls(node: ast.AST) -> set[str]:
    return {
        call.func.id
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }


PLACES: dict[str, dict[str, list[tuple[str, str | None]]]] = {
    "vllm": {
        "load_general_plugins": [
            ("vllm/v1/engine/core.py", "EngineCore.__init__"),
            ("vllm/v1/worker/worker_base.py", "WorkerWrapperBase.init_worker"),
        ],
    },
    "sglang": {
        "load_plugins": [
            ("sglang/srt/managers/scheduler.py", "run_scheduler_process"),
            ("sglang/srt/managers/data_parallel_controller.py", None),
        ],
    },
}
"""Processes of the servers that load plugins; one that stops would not be reached any more."""


@pytest.mark.index
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_the_processes_that_launch_kernels_load_plugins(server: str) -> None:
    real = sources(server)
    for function, places in PLACES[server].items():
        for file, where in places:
            functions = _functions(real / file)
            calling = {name for name, node in functions.items() if function in _calls(node)}
            assert calling, f"{file} does not call {function}"
            assert where is None or where in calling, (file, sorted(calling))


@pytest.mark.index
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_ranks_are_read_from_functions_that_exist_and_need_no_argument(server: str) -> None:
    part = {"vllm": "vllm/distributed", "sglang": "sglang/srt/distributed"}[server]
    file = sources(server) / part / "parallel_state.py"
    functions = _functions(file)
    for name in ("get_tp_group", "get_pp_group"):
        arguments = functions[name].args
        needed = len(arguments.args) - len(arguments.defaults)
        assert (needed, arguments.kwonlyargs) == (0, []), name
    attributes = {
        node.attr
        for node in ast.walk(functions["GroupCoordinator.__init__"])
        if isinstance(node, ast.Attribute)
    }
    assert {"rank_in_group", "world_size"} <= attributes


def test_the_wheel_is_built_with_the_site_folder(tmp_path: Path) -> None:
    """What is not a package of ours on the path is easily left out of a wheel."""
    import retuned.runtime.site

    assert (Path(retuned.runtime.site.__file__).parent / "sitecustomize.py").is_file()
    done = subprocess.run(
        [sys.executable, "-c", "import retuned.runtime.site.sitecustomize as s; print(s.__name__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "retuned.runtime.site.sitecustomize", (
        "imported so, it does nothing"
    )
