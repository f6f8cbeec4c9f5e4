"""``retuned doctor`` on machines that are made up, and on this one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from retuned.cli.doctor import _print, doctor, examine
from retuned.cli.doctor_checks import Fact, Level, Probe, cautions
from retuned.errors import MissingDependency
from retuned.lab.harness.isolation import Isolation, isolation
from retuned.lab.languages.gpu import Gpu
from retuned.settings import Settings

STATE = Path("/state")
POLICIES = Path(__file__).resolve().parents[2] / "policies"
WALLS = Isolation(system_calls=True, network=True, files=4, bubblewrap=False)
BARE = Isolation(system_calls=False, network=False, files=0, bubblewrap=False)
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
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
        "unshare": "",
    } | dict(programs or {})
    contents = {
        "/proc/meminfo": "MemTotal: 32000000 kB\nMemAvailable:   16777216 kB\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
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
        "arch": "x86_64",
        "names": lambda _: ["trace.json"],
        "writable": lambda _: True,
        "gpu": lambda: None,
        "library": lambda _: None,
        "isolation": lambda: WALLS,
        "environment": {},
    }
    return Probe(**(values | changes))


def facts(probe: Probe) -> dict[str, Fact]:
    return {fact.name: fact for fact in examine(probe, Settings(state_dir=STATE))}


def without(*names: str) -> Probe:
    whole = machine()
    return machine(which=lambda name: None if name in names else whole.which(name))


def test_on_a_good_machine_all_is_well() -> None:
    settings = Settings(state_dir=STATE, watch_dirs=(STATE,), policy_files=(POLICIES,))
    found = {fact.name: fact for fact in examine(machine(), settings)}
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
        (machine(arch="riscv64", isolation=lambda: BARE), "seccomp", Level.LIMITED, "x86_64"),
        (machine(isolation=lambda: BARE), "seccomp", Level.LIMITED, "seccomp"),
        (machine(isolation=lambda: BARE), "own-references", Level.LIMITED, "allow_unconfined"),
        (machine(files={YAMA: "0\n"}), "debuggers", Level.LIMITED, "ptrace_scope"),
        (machine(read=lambda _: None), "debuggers", Level.LIMITED, "ptrace_scope"),
        (machine(run=lambda _: None), "user-namespaces", Level.LIMITED, "seccomp alone"),
        (machine(environment={"RETUNED_RUNTIME": "off"}), "runtime-switch", Level.LIMITED, "unset"),
        (machine(isolation=lambda: replace(WALLS, files=0)), "landlock", Level.LIMITED, "5.13"),
    ],
)
def test_what_is_lacking_comes_with_what_to_do(
    probe: Probe, name: str, level: Level, says: str
) -> None:
    fact = facts(probe)[name]
    assert fact.level is level
    assert says in fact.advice


def test_gpus_are_named() -> None:
    nvidia = {"nvidia-smi": "NVIDIA H200, 570.1\nNVIDIA H200, 570.1\n"}
    found = facts(machine(programs=nvidia))["gpu-nvidia"]
    assert found.value == "NVIDIA H200, 570.1; NVIDIA H200, 570.1"
    node = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
    kfd = {node.format(0): "gfx_target_version 0\n", node.format(1): GFX942}
    assert facts(machine(files=kfd))["gpu-amd"].value == "gfx942"
    older = facts(machine(files={node.format(1): "gfx_target_version 90010\n"}))
    assert older["gpu-amd"].value == "gfx90a"


def test_nothing_is_advised_that_nothing_uses() -> None:
    """Each program that is asked for is named in the code that runs it, not only here."""
    asked: set[str] = set()

    def which(name: str) -> str | None:
        asked.add(name)
        return None

    packages: set[str] = set()
    facts(machine(which=which, version=lambda name: packages.add(name)))
    facts(machine(which=which, gpu=lambda: gpu("sm_90")))
    root = Path(__file__).resolve().parents[2] / "daemon" / "retuned"
    source = "\n".join(p.read_text() for p in root.rglob("*.py") if p.parent.name != "cli")
    for name in (asked | packages) - {"nvidia-smi", "cc", "clang", "gcc"}:
        assert re.search(rf'\b(import|"){re.escape(name)}|\bimport {name}', source), name
    assert packages == {"torch", "triton"}


def test_every_place_that_the_settings_name_has_its_fact(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "sockets").mkdir()
    (tmp_path / "sockets" / "7.sock").touch()
    bad = tmp_path / "bad.yaml"
    bad.write_text("spec: [")
    settings = Settings(
        state_dir=tmp_path,
        watch_dirs=(tmp_path, tmp_path / "none", tmp_path / "file"),
        policy_files=(POLICIES, bad, tmp_path / "sockets"),
    )
    found = list(examine(machine(names=os.listdir), settings))
    folders = [fact for fact in found if fact.name == "watch-folder"]
    assert [fact.value for fact in folders] == [str(path) for path in settings.watch_dirs]
    assert [fact.level for fact in folders] == [Level.OK, Level.LIMITED, Level.LIMITED]
    assert "does not exist" in folders[1].advice
    assert "is not a folder" in folders[2].advice
    policies = [fact for fact in found if fact.name == "policy"]
    assert [fact.level for fact in policies] == [Level.OK, Level.MISSING, Level.LIMITED]
    assert "default/laptop-demo" in policies[0].value
    assert "does not start" in policies[1].advice
    assert "nothing is swapped" in policies[2].advice
    (sockets,) = [fact for fact in found if fact.name == "socket-folder"]
    assert sockets.value == f"{tmp_path / 'sockets'}: 1 sockets"


@pytest.mark.parametrize("setting", ["policy_files", "definition_files"])
def test_what_run_would_refuse_to_start_with_is_a_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.delenv("RETUNED_CONFIG", raising=False)
    monkeypatch.setattr("retuned.cli.doctor.Probe", machine)
    (tmp_path / "r.yaml").write_text(f"{setting}: [{tmp_path / 'gone.yaml'}]\n")
    app = typer.Typer()
    app.command()(doctor)
    flags = ["--config", str(tmp_path / "r.yaml"), "--state-dir", str(tmp_path)]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == 4
    name = {"policy_files": "policy", "definition_files": "definition"}[setting]
    assert f"cannot run on this machine's CPU before this is put right: {name}." in result.stdout
    assert json.loads(CliRunner().invoke(app, [*flags, "--json"]).stdout)["usable"] is False


def test_policies_that_are_good_alone_and_not_together_are_a_no(tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    twin.write_text((POLICIES / "laptop-demo.yaml").read_text())
    settings = Settings(state_dir=STATE, policy_files=(POLICIES / "laptop-demo.yaml", twin))
    found = [fact for fact in examine(machine(), settings) if fact.name == "policy"]
    assert [fact.level for fact in found] == [Level.OK, Level.OK, Level.MISSING]
    assert "is already in" in found[-1].value


@pytest.mark.parametrize(
    ("name", "says"), [("watch-folder", "sees no traces"), ("policy", "nothing is ever swapped")]
)
def test_what_is_not_set_limits_and_stops_nothing(name: str, says: str) -> None:
    found = facts(machine())
    assert (found[name].level, found[name].value) == (Level.LIMITED, "none set")
    assert says in found[name].advice
    assert all(fact.level is not Level.MISSING for fact in found.values())


def test_a_folder_that_may_not_be_read_is_told() -> None:
    def closed(_: Path) -> Sequence[str]:
        raise PermissionError(13, "Permission denied")

    settings = Settings(state_dir=STATE, watch_dirs=(Path("/closed"),))
    found = {fact.name: fact for fact in examine(machine(names=closed), settings)}
    for name in ("watch-folder", "socket-folder"):
        assert found[name].level is Level.LIMITED
        assert "cannot be read (Permission denied)" in found[name].advice


def test_the_daemon_says_once_what_it_cannot_read_and_what_it_leaves_aside(tmp_path: Path) -> None:
    settings = Settings(
        state_dir=STATE,
        watch_dirs=(tmp_path, tmp_path / "none"),
        policy_files=(POLICIES / "production-two-person.yaml", POLICIES / "laptop-demo.yaml"),
    )
    folder, policy = cautions(settings)
    assert str(tmp_path / "none") in folder
    assert "does not exist" in folder
    assert policy.startswith("policy default/production-two-person: acts in a cluster only: ")
    assert "spec.experiments.budget.trialDeadline, spec.experiments.pauseWhen" in policy
    (nothing,) = cautions(Settings(state_dir=STATE))
    assert "no folder is watched" in nothing


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
    everything = examine(Probe(), Settings(state_dir=tmp_path / "new"))
    found = {fact.name: fact for fact in everything}
    assert found["python"].level is Level.OK
    assert found["state-folder"].level is Level.OK
    assert not (tmp_path / "new").exists()  # asking changes nothing
    assert len(found.keys() - {"own-references"}) == 23


def test_the_walls_around_candidates_and_the_compilers_are_named() -> None:
    libraries = {"nvrtc": "libnvrtc.so.13"}
    found = facts(machine(library=libraries.get, isolation=lambda: replace(WALLS, bubblewrap=True)))
    assert found["landlock"].value == "version 4"
    assert found["bubblewrap"].value.startswith("present")
    assert found["nvrtc"].value == "libnvrtc.so.13"
    assert "not compiled for AMD" in found["hiprtc"].value


def test_a_filter_is_what_refused_a_child_a_call_and_not_what_a_file_says() -> None:
    assert facts(machine(read=lambda _: None))["seccomp"].level is Level.OK
    assert facts(machine(arch="aarch64"))["seccomp"].level is Level.OK
    lying = machine(
        files={"/proc/sys/kernel/seccomp/actions_avail": "kill_process errno allow\n"},
        isolation=lambda: BARE,
    )
    assert facts(lying)["seccomp"].value == "tried, and it does not hold"


def test_what_keeps_candidates_in_is_asked_of_this_kernel() -> None:
    found = isolation()
    assert found == isolation()
    everything = Isolation(system_calls=True, network=True, files=1, bubblewrap=False)
    assert everything.missing == ()
    nothing = Isolation(system_calls=False, network=False, files=0, bubblewrap=False)
    assert len(nothing.missing) == 3
    assert found.as_dict().keys() == {"system_calls", "network", "files", "bubblewrap"}


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
        (machine(gpu=lambda: gpu("gfx1100")), "gpu-lab", Level.LIMITED, "possible gain"),
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


def test_where_only_a_gpu_is_tuned_and_none_is_there_it_says_that_it_observes_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Settings(state_dir=STATE, lab_language="triton")
    found = examine(machine(), settings)
    (lab,) = [fact for fact in found if fact.name == "gpu-lab"]
    assert lab.level is Level.LIMITED
    assert "observed only" in lab.advice
    assert "begins no experiment" in lab.advice
    _print(found, usable=True)
    assert "observes only on this machine" in capsys.readouterr().out
    auto = facts(machine())["gpu-lab"]
    assert (auto.level, "none is tried" in auto.value) == (Level.OK, True)


def test_definitions_of_ones_own_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\n")
    settings = Settings(
        state_dir=STATE, definition_files=(EXAMPLES / "scale_bias", broken, tmp_path / "none.yaml")
    )
    found = [fact for fact in examine(machine(), settings) if fact.name == "definition"]
    assert [fact.level for fact in found] == [Level.OK, Level.MISSING, Level.MISSING]
    assert found[0].value.endswith("scale_bias_h1024")
    assert "does not start" in found[1].advice
    assert "is required" in found[1].advice
