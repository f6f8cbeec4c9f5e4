"""Users' own kernels in a cluster: from a folder to an experiment's task, and what is refused."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.controllers.cluster import Cluster
from tests.operators.controllers.test_swaps import OPEN
from tests.operators.program import test_a_whole_experiment as whole
from tests.operators.program.whole_operator import running

from retuned import catalog
from retuned.catalog.user import load_definition
from retuned.contract import Language
from retuned.experiment.__main__ import Task
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned_operator.kube.resources import CONFIG_MAPS
from retuned_operator.metrics import ClusterMetrics
from retuned_operator.schema import TuningTarget, read
from retuned_operator.settings import Settings
from retuned_operator.store import kernels as definitions
from retuned_operator.store.kernels import MAX_FILES, CatalogKernels, learn

fake, settings = whole.fake, whole.settings
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "scale_bias"
NAME = "scale_bias_h1024"
OP = "retuned::scale_bias"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    catalog.forget()
    yield
    catalog.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as the kubelet mounts a ConfigMap: files are links into a hidden one."""
    made = tmp_path / "definitions"
    data = made / "..2026_01_01"
    shutil.copytree(EXAMPLE, data)
    (made / "..data").symlink_to(data.name)
    for each in data.iterdir():
        (made / each.name).symlink_to(f"..data/{each.name}")
    return made


def signature(rows: int) -> Signature:
    dims = ((rows, 1024), (rows, 1024), (1024,), (1024,))
    return Signature(kernel=OP, dims=dims, dtypes=("float32",) * 4)


def target(vendor: str = "cpu") -> TuningTarget:
    body = examples.a_target()
    body["spec"]["gpu"] = {"vendor": vendor, "model": "epyc"}
    return read(TuningTarget, body)


def test_a_mounted_definition_is_known_to_every_target_in_the_language_of_its_servers(
    folder: Path,
) -> None:
    assert learn(folder).names == (NAME,)
    kernels = CatalogKernels()
    launch = signature(64)
    for vendor, language in (("cpu", Language.CPU_CPP), ("amd", Language.TRITON)):
        there = target(vendor)
        named = kernels.recognise(OP, launch.dims, launch.dtypes, target=there)
        assert named == (NAME, {"M": 64})
        assert kernels.incumbent(NAME, target=there) == (
            catalog.get(NAME, language=language).incumbent
        )
        assert not kernels.is_live(NAME, target=there), "its slot is there from the start"
    assert kernels.structures(NAME, target=target("amd")) == ("flat", "rows")


def test_a_definition_without_kernels_for_the_servers_is_not_recognised_there(
    tmp_path: Path,
) -> None:
    text = (EXAMPLE / "scale_bias.yaml").read_text("utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "d")
    (tmp_path / "d" / "scale_bias.yaml").write_text(text[: text.index("  - structure: flat")])
    assert learn(tmp_path / "d").names == (NAME,)
    launch = signature(64)
    kernels = CatalogKernels()
    assert kernels.recognise(OP, launch.dims, launch.dtypes, target=target("amd")) is None
    assert kernels.incumbent(NAME, target=target("amd")) is None


def changed(old: str, new: str) -> str:
    text = (EXAMPLE / "scale_bias.yaml").read_text("utf-8")
    assert old in text
    return text.replace(old, new)


NAMED = f"name: {NAME}"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (changed(NAMED, "name: rmsnorm_h512"), "wrong-usage", "the catalog has this name"),
        (changed(NAMED, "name: lifted_scale_1024"), "name-reserved", "live kernels"),
        (changed(f"op: {OP}", "op: retuned::rmsnorm"), "wrong-usage", "choose another op_type"),
        (changed("flops: 3", "flop: 3"), "definition-invalid", "line "),
        (changed("[M, H], dtype: float32}\n  r", "[M, Q], dtype: float32}\n  r"),
         "definition-invalid", "names the axis 'Q'"),
        (changed("return {", "import os; return {"), "definition-invalid", "reference"),
        (changed("scale_bias_plain.cpp", "../../etc/passwd"), "definition-invalid", "files"),
        (changed("scale_bias_plain.cpp", "absent.cpp"), "definition-invalid", "absent.cpp"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "yaml-alias", "a_first.yaml:2"),
        ("[" * 5_000, None, ""),
        ("\x00", None, ""),
        ("name: " + "x" * 3_000_000, "too-large", "KiB"),
        ("", None, ""),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_said_and_takes_nothing_with_it(
    folder: Path, caplog: pytest.LogCaptureFixture, text: str, code: str | None, says: str
) -> None:
    bad = folder / "a_first.yaml"
    bad.write_text(text, "utf-8")
    with caplog.at_level(logging.WARNING):
        learnt = learn(folder)
    assert learnt.names == (NAME,)
    (left,) = learnt.left_out
    assert left.path == bad
    assert left.code == code or code is None
    assert says in f"{left.where}: {left.message}"
    (line,) = (each.getMessage() for each in caplog.records)
    assert str(bad) in line
    assert "retuned kernels show" in line
    assert line.isprintable()


def test_of_two_of_one_name_the_first_is_known(folder: Path) -> None:
    (folder / "z.yaml").write_text(changed("flops: 3", "flops: 4"), "utf-8")
    learnt = learn(folder)
    assert learnt.names == (NAME,)
    assert [each.path.name for each in learnt.left_out] == ["z.yaml"]
    assert "rename one" in learnt.left_out[0].message
    assert catalog.own_definition(NAME) == load_definition(EXAMPLE / "scale_bias.yaml")


def test_what_no_task_could_hold_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_CHARS", 2_000)
    (left,) = learn(folder).left_out
    assert left.code == "definition-too-large"


def test_a_folder_is_read_as_far_as_its_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_FILES >= 64
    monkeypatch.setattr(definitions, "MAX_FILES", 1)
    (folder / "z.yaml").write_text("never: read\n", "utf-8")
    learnt = learn(folder)
    assert learnt.names == (NAME,)
    assert [(each.path, each.code) for each in learnt.left_out] == [
        (folder, "too-many-definitions")
    ]


@pytest.mark.parametrize("name", ["absent", "scale_bias.yaml", "directory.yaml"])
def test_a_folder_that_is_none_is_said(folder: Path, name: str) -> None:
    (folder / "directory.yaml").mkdir()
    place = folder / name
    learnt = learn(folder if name == "directory.yaml" else place)
    assert [each.path for each in learnt.left_out] == [place]


def test_how_many_files_are_used_is_shown(folder: Path) -> None:
    (folder / "bad.yaml").write_text("name: 1\n", "utf-8")
    cluster = Cluster(OPEN)
    cluster.operator.sync()
    caches = cluster.operator.world.caches
    ClusterMetrics(caches, cluster.telemetry, clock=cluster.clock, learnt=learn(folder)).show()
    for state in ("known", "left-out"):
        assert cluster.telemetry.row("retuned_definition_files", state=state) == 1.0


def window(start_ns: int) -> WorkloadProfile:
    """Return a minute in which the user's kernel takes half of the time."""
    stat = SignatureStat(
        signature=signature(256), launches=15_000, gpu_time_ns=30 * 10**9, median_ns=2_000_000
    )
    return WorkloadProfile(
        window_start_ns=start_ns,
        window_ns=whole.MINUTE_NS,
        observed_ns=whole.MINUTE_NS,
        stats=(stat,),
    )


@pytest.mark.slow
def test_traffic_of_a_users_kernel_becomes_an_experiment_whose_pod_gets_the_definition(
    fake: FakeApi, settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bad.yaml").write_text("name: 1\n", "utf-8")
    monkeypatch.setattr(whole, "window", window)
    chosen = settings.model_copy(update={"definitions_dir": folder})
    with running(fake, chosen) as operator:
        whole.Server.started(fake).tells(operator)
        whole.until(fake, lambda status: status.get("jobRefs"))
        (name,) = (ref["name"] for ref in whole.status_of(fake)["jobRefs"])
        text = fake.api().get(CONFIG_MAPS, name, namespace="lab")["data"]["task.json"]
    catalog.forget()  # the pod knows what its task brings, and nothing else
    task = Task.model_validate(json.loads(text))
    assert [each.name for each in task.definitions] == [NAME]
    assert task.definitions[0] == load_definition(EXAMPLE / "scale_bias.yaml")
    assert task.plan.definition == NAME
    assert [dict(each.axes) for each in task.plan.workloads] == [{"M": 256}]
    catalog.learn(task.definitions)
    entry = catalog.get(NAME, language=Language.CPU_CPP)
    assert task.plan.incumbent == entry.incumbent.digest
