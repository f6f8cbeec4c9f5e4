"""Winners from elsewhere become first guesses here, translated and never trusted."""

from __future__ import annotations

import pytest

from retuned import catalog
from retuned.contract import Guard, Language, Solution, TrustClass, Workload
from retuned.lab.generators import Earlier, PortingGenerator
from retuned.lab.generators.devices import GPUS, DeviceFacts, cpu_facts
from retuned.lab.generators.spaces import Grid
from retuned.lab.generators.transfer import nearest, translate
from retuned.ports import Finding
from retuned.stages.verdict import Interval, Reason, Status, Verdict

NAME = "linear_w8_n512_k512"
GPU = catalog.get(NAME, language=Language.TRITON)
CPU = catalog.get(NAME)
ELSEWHERE = "sha256:" + "e" * 64


def earlier(solution: Solution, *, arch: str, lower: float = 1.4) -> Earlier:
    verdict = Verdict(
        status=Status.REJECT,
        reason=Reason.LOST_SEARCH,
        gate="G5",
        candidate=solution.digest,
        incumbent=GPU.incumbent.digest,
        speedup=Interval(lower=lower, point=lower, upper=lower, confidence=0.95),
    )
    found = Finding(solution=solution, verdict=verdict, seconds=1.0)
    return Earlier(finding=found, environment=ELSEWHERE, arch=arch)


def ported(
    *given: Earlier, device: DeviceFacts, entry: catalog.KernelEntry = GPU
) -> list[Solution]:
    generator = PortingGenerator(entry, cores=2, device=device, earlier=given)
    workloads = [Workload(definition=entry.definition.name, axes={"M": 64})]
    return list(generator.propose(entry.definition, workloads, history=[], count=8))


@pytest.mark.parametrize("there", ["sm_80", "sm_90", "gfx942", "gfx950"])
@pytest.mark.parametrize("here", ["sm_80", "sm_90", "gfx942", "gfx950"])
def test_a_program_has_as_many_threads_as_before_and_fits_the_device(there: str, here: str) -> None:
    params = {"BLOCK_M": 64, "num_warps": 4, "num_stages": 4}
    found = translate(params, source=GPUS[there], target=GPUS[here])
    threads = 4 * GPUS[there].lanes
    assert int(found["num_warps"]) * GPUS[here].lanes == threads
    assert 1 <= int(found["num_stages"]) <= 4
    assert found["BLOCK_M"] == 64
    if GPUS[here].shared_bytes >= GPUS[there].shared_bytes:
        assert found["num_stages"] == 4


def test_a_processor_with_wider_vectors_gets_wider_ones_and_no_more_threads_than_cores() -> None:
    narrow = cpu_facts(arch="cpu:a", vector_bytes=32, cores=8)
    wide = cpu_facts(arch="cpu:b", vector_bytes=64, cores=2)
    assert translate({"VEC": 32, "THREADS": 8}, source=narrow, target=wide) == {
        "VEC": 64,
        "THREADS": 2,
    }
    assert translate({"VEC": 64, "THREADS": 1}, source=None, target=narrow)["VEC"] == 32


def test_a_winner_of_an_nvidia_gpu_seeds_an_amd_one_at_the_nearest_point() -> None:
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    winner = GPU.solution("tiles", params)
    (found,) = ported(earlier(winner, arch="sm_90"), device=GPUS["gfx942"])
    assert found.structure == "tiles"
    assert found.params["num_warps"] == 4
    assert found.params["num_stages"] == 2
    assert found.params["BLOCK_M"] == 64
    assert found.digest == GPU.solution("tiles", found.params).digest


def test_a_winner_of_another_size_is_moved_to_a_point_that_can_be_built_here() -> None:
    large = catalog.get("linear_w8_n1024_k1024")
    params = {"P": 64, "TILE": 4, "CHUNK": 64, "STAGE": 0, "VEC": 64, "THREADS": 1}
    winner = large.solution("packed-panels", params)
    small = catalog.get("linear_w8_n48_k64")
    (found,) = ported(
        earlier(winner, arch=""),
        device=cpu_facts(arch="cpu", vector_bytes=64, cores=2),
        entry=small,
    )
    assert found.definition == "linear_w8_n48_k64"
    assert found.params["P"] == 16  # 48 outputs are no whole panels of 64


def test_the_best_winner_comes_first_and_losers_are_no_seeds() -> None:
    grid = Grid(GPU, cores=1)
    points = [point for point in sorted(grid.points) if point.structure == "tiles"]
    good, better, bad = (grid.solution(points[n]) for n in (0, len(points) // 2, -1))
    found = ported(
        earlier(good, arch="sm_90", lower=1.1),
        earlier(better, arch="sm_90", lower=1.9),
        earlier(bad, arch="sm_90", lower=0.9),
        device=GPUS["sm_90"],
    )
    assert [each.digest for each in found] == [better.digest, good.digest]


def test_a_source_that_the_catalog_does_not_have_comes_whole_and_without_its_guard() -> None:
    own = GPU.incumbent.model_copy(
        update={
            "structure": "mine",
            "guard": Guard(bounds={"M": (1, 4)}),
            "params": {**GPU.incumbent.params, "num_warps": 4},
            "trust": TrustClass.PARAMETERS,
        }
    )
    (found,) = ported(earlier(own, arch="sm_90"), device=GPUS["gfx942"])
    assert found.sources == own.sources
    assert found.params["num_warps"] == 2
    assert found.guard == Guard()
    assert found.trust is TrustClass.GENERATED
    assert found.author == "ported from sm_90"


def test_another_language_is_nothing_to_port() -> None:
    assert ported(earlier(CPU.incumbent, arch="cpu:x"), device=GPUS["sm_90"]) == []


def test_what_was_handed_on_is_not_handed_on_again() -> None:
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    given = earlier(GPU.solution("tiles", params), arch="sm_90")
    device = GPUS["sm_90"]
    generator = PortingGenerator(GPU, cores=1, device=device, earlier=[given])
    workloads = [Workload(definition=NAME, axes={"M": 64})]
    first = list(generator.propose(GPU.definition, workloads, history=[], count=4))
    history = [earlier(each, arch="").finding for each in first]
    assert len(first) == 1
    assert list(generator.propose(GPU.definition, workloads, history=history, count=4)) == []


def test_a_structure_that_is_not_known_has_no_nearest_point() -> None:
    assert nearest(Grid(GPU, cores=1), "unheard-of", {"BLOCK_M": 16}) is None
