"""Which language the loop tunes, and what its roofline is."""

from __future__ import annotations

from pathlib import Path

import pytest

from retuned.contract import Language
from retuned.errors import MissingDependency
from retuned.lab.languages.gpu import Gpu
from retuned.lab.physics import GPU_PEAKS, gpu_floor_us
from retuned.settings import Settings
from retuned.standalone import assembly
from retuned.standalone.experiments import open_experiment
from retuned.standalone.kernels import KnownKernels

SOFTMAX = "softmax_n1024"
H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    arch="sm_90",
    driver="580.65",
    runtime="cuda 13.0",
    memory_bytes=80 * 2**30,
    cache_bytes=50 * 2**20,
    units=132,
    shared_bytes=227 * 2**10,
)


def broken() -> Gpu | None:
    raise MissingDependency("no torch")


@pytest.mark.parametrize(
    ("set_to", "found", "language"),
    [
        ("auto", lambda: None, Language.CPU_CPP),
        ("auto", lambda: H100, Language.TRITON),
        ("auto", broken, Language.CPU_CPP),
        ("cpu_cpp", lambda: H100, Language.CPU_CPP),
        ("triton", lambda: None, Language.TRITON),
    ],
)
def test_the_language_is_what_is_set_or_what_the_machine_has(
    set_to: str, found: object, language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "find_gpu", found)
    assert assembly.language_of(Settings.model_validate({"lab_language": set_to})) is language


def test_without_a_gpu_triton_is_observed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "find_gpu", lambda: None)
    loop, _ = assembly.build(Settings(state_dir=tmp_path, lab_language="triton"))
    assert loop.ctx.settings.observes_only
    assert any("observes only" in record.getMessage() for record in caplog.records)
    assert open_experiment(loop.ctx) is None
    timed, _ = assembly.build(Settings(state_dir=tmp_path / "cpu", lab_language="cpu_cpp"))
    assert not timed.ctx.settings.observes_only


def test_each_language_has_its_own_incumbent_and_structures() -> None:
    cpu, gpu = KnownKernels(), KnownKernels(language=Language.TRITON)
    assert cpu.incumbent(SOFTMAX).language is Language.CPU_CPP
    assert gpu.incumbent(SOFTMAX).language is Language.TRITON
    assert set(gpu.audited(SOFTMAX)) <= set(gpu.structures(SOFTMAX))
    assert set(gpu.structures(SOFTMAX)) != set(cpu.structures(SOFTMAX))
    assert gpu.family(SOFTMAX) == cpu.family(SOFTMAX)


def test_the_roofline_is_the_devices_and_unknown_devices_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembly, "find_gpu", lambda: H100)
    assert assembly._peak(Language.TRITON) is GPU_PEAKS["sm_90"]
    monkeypatch.setattr(assembly, "find_gpu", lambda: None)
    assert assembly._peak(Language.TRITON).gbytes_per_s == 0.0
    peak = GPU_PEAKS["sm_90"]
    known = KnownKernels(
        language=Language.TRITON, gflops=peak.gflops, gbytes_per_s=peak.gbytes_per_s
    )
    rows, moved_bytes = 65_536, 65_536 * 1024 * 4 * 2
    assert known.floor_ns(SOFTMAX, {"M": rows}) >= int(moved_bytes / 3_350.0)


def test_what_any_launch_takes_is_the_gpus_where_kernels_run_on_one(tmp_path: Path) -> None:
    """Else nobody would believe that a kernel of 5 us can be better, of which servers are full."""
    settings = Settings(state_dir=tmp_path, lab_language="triton")
    on_gpu = assembly.loop_settings(settings).hypothesis
    on_cpu = assembly.loop_settings(
        settings.model_copy(update={"lab_language": "cpu_cpp"})
    ).hypothesis
    assert on_gpu.launch_ns < on_cpu.launch_ns
    assert on_gpu.max_shapes == on_cpu.max_shapes == settings.max_shapes


def test_no_launch_beats_the_physics_of_a_device() -> None:
    from retuned import catalog

    definition = catalog.get(SOFTMAX).definition
    moved_bytes = 65_536 * 1024 * 4 * 2
    floor = gpu_floor_us(definition, {"M": 65_536}, arch="sm_90", cache=50 * 2**20)
    # Below what the best kernel on the fastest device of this architecture (4.8 TB/s) reaches.
    assert 0.5 * moved_bytes / 4.8e6 < floor < moved_bytes / 4.8e6
    assert gpu_floor_us(definition, {"M": 65_536}, arch="gfx1", cache=0) == 0.0
