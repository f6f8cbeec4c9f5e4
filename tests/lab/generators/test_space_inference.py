"""A space for a source whose author gave none."""

from __future__ import annotations

from tests.expect import raises_naming

from retuned import catalog
from retuned.contract import Language, Solution, SourceFile
from retuned.errors import UsageError
from retuned.lab.generators import SearchGenerator
from retuned.lab.generators.devices import GPUS, cpu_facts
from retuned.lab.generators.space_inference import Widened, infer_space, widen
from retuned.lab.generators.spaces import Grid

NAME = "linear_w8_n512_k512"
GPU = catalog.get(NAME, language=Language.TRITON)
CPU = catalog.get(NAME)
TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
CORE = cpu_facts(arch="cpu", vector_bytes=64, cores=4)


def renamed(solution: Solution, structure: str) -> Solution:
    """The same source under a name that the catalog does not have."""
    return solution.model_copy(update={"structure": structure})


def test_sizes_of_the_grid_and_of_loops_are_varied_and_the_own_point_is_in_it() -> None:
    tiles = GPU.solution("tiles", TILES)
    space = infer_space(tiles, GPU.definition, device=GPUS["sm_90"])
    assert space.params["BLOCK_M"] == (16, 32, 64, 128, 256)
    assert space.params["BLOCK_K"] == (16, 32, 64, 128)
    assert space.params["num_stages"] == (1, 2, 3, 4)
    assert space.constraints(tiles.params, GPU.definition)
    assert space.starts({"M": 1}) == (dict(tiles.params),)


def test_a_block_that_covers_a_whole_row_stays_as_it_is() -> None:
    entry = catalog.get("rmsnorm_h512", language=Language.TRITON)
    space = infer_space(entry.incumbent, entry.definition, device=GPUS["sm_90"])
    assert entry.incumbent.structure == "rows"
    assert space.params["BLOCK"] == (512,)
    assert len(space.params["ROWS"]) > 1


def test_points_that_no_program_can_hold_are_pruned_before_anybody_compiles_them() -> None:
    tiles = GPU.solution("tiles", TILES)
    large = {**TILES, "BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 4}
    for arch in ("sm_90", "gfx942"):
        space = infer_space(tiles, GPU.definition, device=GPUS[arch])
        assert not space.constraints({**large, "num_warps": 2}, GPU.definition)
    middle = {**TILES, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 3}
    roomy = infer_space(tiles, GPU.definition, device=GPUS["sm_90"])
    tight = infer_space(tiles, GPU.definition, device=GPUS["gfx942"])
    assert roomy.constraints({**middle, "num_warps": 8}, GPU.definition)
    assert not tight.constraints({**middle, "num_warps": 8}, GPU.definition)


def test_a_wavefront_of_sixty_four_lanes_allows_half_as_many_warps() -> None:
    tiles = GPU.solution("tiles", TILES)
    for arch, most in (("sm_90", 16), ("gfx942", 16)):
        space = infer_space(tiles, GPU.definition, device=GPUS[arch])
        assert max(int(n) for n in space.params["num_warps"]) == most
        assert most * GPUS[arch].lanes <= 1024


def test_amd_s_options_are_varied_on_amd_only() -> None:
    params = {**TILES, "waves_per_eu": 0, "matrix_instr_nonkdim": 16}
    tiles = GPU.solution("tiles", TILES).model_copy(update={"params": params})
    assert infer_space(tiles, GPU.definition, device=GPUS["sm_90"]).params["waves_per_eu"] == (0,)
    amd = infer_space(tiles, GPU.definition, device=GPUS["gfx942"]).params
    assert amd["waves_per_eu"] == (0, 1, 2, 4)
    assert amd["matrix_instr_nonkdim"] == (0, 16, 32)


def test_vectors_and_threads_of_a_processor_follow_its_facts() -> None:
    space = infer_space(CPU.incumbent, CPU.definition, device=CORE)
    assert space.params["VEC"] == (16, 32, 64)
    assert space.params["THREADS"] == (1, 2, 4)
    narrow = cpu_facts(arch="cpu", vector_bytes=32, cores=1)
    small = infer_space(CPU.incumbent, CPU.definition, device=narrow)
    assert small.params["VEC"] == (16, 32, 64)  # its own point stays
    assert small.params["THREADS"] == (1,)


def test_what_a_layout_or_a_workspace_was_sized_for_does_not_grow() -> None:
    panels = CPU.solution("panels", {"P": 32, "TILE": 4, "CHUNK": 64, "VEC": 64, "THREADS": 1})
    assert panels.scratch_bytes > 0
    space = infer_space(panels, CPU.definition, device=CORE)
    assert max(int(n) for n in space.params["P"]) == 32
    packed = CPU.solution(
        "packed-panels",
        {"P": 32, "TILE": 4, "CHUNK": 64, "STAGE": 0, "VEC": 64, "THREADS": 1},
    )
    assert infer_space(packed, CPU.definition, device=CORE).params["P"] == (32,)


def test_a_source_that_cannot_be_read_has_its_own_point_and_launch_options_only() -> None:
    broken = GPU.incumbent.model_copy(
        update={"sources": (SourceFile(path="k.py", content="def ("),), "structure": "own"}
    )
    space = infer_space(broken, GPU.definition, device=GPUS["sm_90"])
    sizes = {name: choices for name, choices in space.params.items() if "BLOCK" in name}
    assert all(len(choices) == 1 for choices in sizes.values())


def test_an_incumbent_that_nobody_gave_a_space_is_searched_around() -> None:
    own = renamed(GPU.solution("tiles", TILES), "mine")
    wide = widen(GPU, own, device=GPUS["sm_90"])
    assert wide.incumbent.digest == own.digest
    grid = Grid(wide, cores=1, structures=("mine",))
    assert len(grid.points) > 50
    other = grid.solution(sorted(grid.points)[0])
    assert other.sources == own.sources
    assert other.structure == "mine"
    generator = SearchGenerator(wide, cores=1, seed=0)
    assert "mine" in {space.name for space in wide.spaces}
    assert generator.name == "search"


def test_a_winner_of_the_catalog_is_the_incumbent_without_another_space() -> None:
    winner = GPU.solution("tiles", TILES)
    wide = widen(GPU, winner, device=GPUS["sm_90"])
    assert [space.name for space in wide.spaces] == [space.name for space in GPU.spaces]
    assert wide.incumbent.digest == winner.digest
    assert widen(GPU, GPU.incumbent, device=GPUS["sm_90"]) is GPU


def test_another_source_under_a_known_name_gets_a_name_of_its_own() -> None:
    tiles = GPU.solution("tiles", TILES)
    source = tiles.sources[0]
    changed = tiles.model_copy(
        update={"sources": (source.model_copy(update={"content": source.content + "\n"}),)}
    )
    wide = widen(GPU, changed, device=GPUS["sm_90"])
    assert isinstance(wide, Widened)
    assert [space.name for space in wide.spaces][-1] == "tiles.own"
    with raises_naming(UsageError, "tiles.own", "{'BLOCK_M': 1}"):
        wide.solution("tiles.own", {"BLOCK_M": 1})
