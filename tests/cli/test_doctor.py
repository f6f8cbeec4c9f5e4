"""``retuned doctor`` on machines that are made up, and on this one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from retuned.cli.doctor import Fact, Level, Probe, doctor, examine
from retuned.errors import MissingDependency
from retuned.lab.languages.gpu import Gpu

STATE = Path("/state")
GFX942 = "cpu_cores_count 0\ngfx_target_version 90402\nsimd_count 1216\n"


def machine(
    *,
    programs: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | None = None,
    **changes: Any,
) -> Probe:
    """A machine with everything the CPU loop wants, and what is said beside."""
    outputs = {
        "g++": "g++ 13.2\nmore\n",
        "objdump": "",
        "bwrap": "",
        "unshare": "",
    } | dict(programs or {})
    contents = {
        "/proc/meminfo": "MemTotal: 32000000 kB\nMemAvailable:   16777216 kB\n",
        "/proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n",
    } | dict(files or {})
    versions = {"torch": "2.15.0", "triton": "3.9.0"} if packages is None else dict(packages)

    def run(command: Sequence[str]) -> str | None:
        return outputs.get(Path(command[0]).name)

    values: dict[str, Any] = {
        "python": (3, 12, 1),
        "system": "Linux",
        "cores": lambda: 8,
        "run": run,
        "which": lambda name: f"/usr/bin/{name}" if name in outputs else None,
        "read": contents.get,
        "version": versions.get,
        "landlock": lambda: 4,
        "writable": lambda _: True,
        "gpu": lambda: None,
        "environment": {},
    }
    return Probe(**(values | changes))


def facts(probe: Probe) -> dict[str, Fact]:
    return {fact.name: fact for fact in examine(probe, state_dir=STATE)}


def without(*names: str) -> Probe:
    whole = machine()
    return machine(which=lambda name: None if name in names else whole.which(name))


def test_on_a_good_machine_all_is_well() -> None:
    found = facts(machine())
    assert {fact.level for fact in found.values()} == {Level.OK}
    assert all(not fact.advice for fact in found.values())
    assert found["compiler"].value == "/usr/bin/g++: g++ 13.2"
    assert found["memory"].value == "16.0 GiB available"


@pytest.mark.parametrize(
    ("probe", "name", "level", "says"),
    [
        (machine(python=(3, 10, 9)), "python", Level.MISSING, "3.11"),
        (machine(system="Darwin"), "system", Level.MISSING, "Linux"),
        (without("g++"), "compiler", Level.MISSING, "install g++"),
        (machine(writable=lambda _: False), "state-folder", Level.MISSING, "RETUNED_STATE_DIR"),
        (machine(cores=lambda: 1), "cores", Level.LIMITED, "one core"),
        (machine(files={"/proc/meminfo": "MemAvailable: 1000 kB\n"}), "memory", Level.LIMITED, "2"),
        (machine(packages={}), "torch", Level.LIMITED, "retuned[experiment]"),
        (machine(packages={}), "triton", Level.LIMITED, "torch"),
        (without("objdump"), "binutils", Level.LIMITED, "binutils"),
        (without("bwrap"), "bubblewrap", Level.LIMITED, "bubblewrap"),
        (machine(landlock=lambda: 0), "landlock", Level.LIMITED, "5.13"),
        (machine(read=lambda _: None), "seccomp", Level.LIMITED, "seccomp"),
        (machine(run=lambda _: None), "user-namespaces", Level.LIMITED, "administrator"),
        (machine(environment={"RETUNED_RUNTIME": "off"}), "runtime-switch", Level.LIMITED, "unset"),
    ],
)
def test_what_is_lacking_comes_with_what_to_do(
    probe: Probe, name: str, level: Level, says: str
) -> None:
    fact = facts(probe)[name]
    assert fact.level is level
    assert says in fact.advice


def test_gpus_are_named_and_their_counters_offered() -> None:
    nvidia = {"nvidia-smi": "NVIDIA H200, 570.1\nNVIDIA H200, 570.1\n"}
    found = facts(machine(programs=nvidia))["gpu-nvidia"]
    assert found.value == "NVIDIA H200, 570.1; NVIDIA H200, 570.1"
    assert (found.level, "retuned[nvidia]" in found.advice) == (Level.LIMITED, True)
    node = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
    kfd = {node.format(0): "gfx_target_version 0\n", node.format(1): GFX942}
    amd = facts(machine(files=kfd, packages={"torch": "1", "triton": "1", "pyrsmi": "1.1"}))
    assert (amd["gpu-amd"].value, amd["gpu-amd"].level) == ("gfx942", Level.OK)
    older = facts(machine(files={node.format(1): "gfx_target_version 90010\n"}))
    assert older["gpu-amd"].value == "gfx90a"


def test_a_driver_that_does_not_answer_is_no_gpu() -> None:
    probe = machine(which=lambda name: f"/usr/bin/{name}")  # nvidia-smi is there and fails
    assert facts(probe)["gpu-nvidia"].value.startswith("none")


def test_only_the_compiler_that_the_lab_uses_counts() -> None:
    assert facts(machine())["compiler"].level is Level.OK
    assert facts(without("g++"))["compiler"].level is Level.MISSING


@pytest.mark.parametrize(("python", "code"), [((3, 12, 1), 0), ((3, 9, 0), 4)])
def test_the_exit_code_says_whether_the_loop_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: tuple[int, int, int], code: int
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.setattr("retuned.cli.doctor.Probe", lambda: machine(python=python))
    app = typer.Typer()
    app.command()(doctor)
    result = CliRunner().invoke(app, ["--json", "--state-dir", str(tmp_path)])
    body = json.loads(result.stdout)
    assert (result.exit_code, body["usable"]) == (code, code == 0)
    assert {"name", "level", "value", "advice"} == set(body["facts"][0])
    text = CliRunner().invoke(app, ["--state-dir", str(tmp_path)]).stdout
    assert ("cannot run" in text) == (code == 4)


def test_this_machine_answers_every_question(tmp_path: Path) -> None:
    found = {fact.name: fact for fact in examine(Probe(), state_dir=tmp_path / "new")}
    assert found["python"].level is Level.OK
    assert found["state-folder"].level is Level.OK
    assert not (tmp_path / "new").exists()  # asking changes nothing
    assert len(found) == 17


def gpu(arch: str) -> Gpu:
    return Gpu(
        name="A GPU",
        arch=arch,
        driver="1.2",
        runtime="cuda 13.0",
        memory_bytes=2**36,
        cache_bytes=2**25,
        units=100,
        shared_bytes=2**16,
    )


def broken() -> Gpu | None:
    raise MissingDependency("torch is built for another vendor")


@pytest.mark.parametrize(
    ("probe", "name", "level", "says"),
    [
        (machine(), "gpu-lab", Level.OK, "interpreted"),
        (machine(gpu=lambda: gpu("sm_90")), "gpu-lab", Level.OK, "cuda 13.0, driver 1.2"),
        (machine(gpu=lambda: gpu("gfx1100")), "gpu-lab", Level.LIMITED, "left to gain"),
        (machine(gpu=lambda: gpu("sm_90")), "gpu-launcher", Level.LIMITED, "gcc"),
        (machine(gpu=broken), "gpu-lab", Level.LIMITED, "another vendor"),
    ],
)
def test_it_says_whether_triton_variants_can_be_measured(
    probe: Probe, name: str, level: Level, says: str
) -> None:
    fact = facts(probe)[name]
    assert fact.level is level
    assert says in f"{fact.value} {fact.advice}"
