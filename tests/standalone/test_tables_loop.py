"""The loop over products that tables of libraries' solutions configure: from traffic to a row.

The servers are real processes that look up and cache as AITER and TunableOp do; the lab that has
such a library is scripted. No AMD GPU has carried out a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.expect import raises_naming
from tests.standalone.file_server import PRODUCT
from tests.standalone.file_world import FileWorld, Server
from tests.standalone.test_configured_loop import ask_back

from retuned.contract import Language
from retuned.errors import UsageError
from retuned.lab.toolchain import toolchain_for
from retuned.standalone.context import RecordKind
from retuned.tuned_files.formats import variant_of
from retuned.tuned_files.records import Format

N, K = PRODUCT
DEFINITION = f"gemm_bf16_n{N}_k{K}"
SHAPE = f"{N},{K},False,torch.bfloat16,torch.bfloat16,False,False"
AITER = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName\n"
    f"gfx950,256,16,{SHAPE},hipblaslt,7,0,4.5,k_small\n"
    f"gfx950,256,128,{SHAPE},asm,9,2,6.25,k_large\n"
)
SMALL = {"libtype": "hipblaslt", "solidx": "7", "splitK": "0", "kernelName": "k_small"}
LARGE = {"libtype": "asm", "solidx": "9", "splitK": "2", "kernelName": "k_large"}


def results(small: str = "Gemm_Hipblaslt_12", large: str = "Gemm_Rocblas_3") -> str:
    rows = [
        f"GemmTunableOp_BFloat16_TN,tn_{N}_{m}_{K}_ld_{K}_{K}_{N},{small if m <= 16 else large},0.5"
        for m in (*range(1, 17), *range(113, 129))
    ]
    return "\n".join(["Validator,PT_VERSION,2.15.0", *rows]) + "\n"


class TableWorld(FileWorld):
    """A world whose server launches a library's products."""

    definition: ClassVar[str] = DEFINITION
    kernel: ClassVar[str] = "Cijk_Ailk_Bljk_BBS_BH_MT64x16x64"
    types: ClassVar[tuple[str, ...]] = ("bfloat16", "bfloat16")
    reads: ClassVar[Format]
    won: ClassVar[dict[str, str]]

    def dims(self, tokens: int) -> tuple[tuple[int, ...], ...]:
        return ((tokens, K), (K, N))

    def start(self, **environment: str) -> Server:
        said = {"RETUNED_TEST_READS": str(self.reads), "AITER_CONFIG_GEMM_BF16": str(self.file)}
        return super().start(**said, **environment)


class AiterWorld(TableWorld):
    name: ClassVar[str] = "bf16_tuned_gemm.csv"
    content: ClassVar[str] = AITER
    reads: ClassVar[Format] = "aiter"
    measured: ClassVar[frozenset[Format]] = frozenset({"aiter"})
    won: ClassVar[dict[str, str]] = LARGE


class TunableWorld(TableWorld):
    name: ClassVar[str] = "tunableop_results0.csv"
    content: ClassVar[str] = results()
    reads: ClassVar[Format] = "tunable-op"
    measured: ClassVar[frozenset[Format]] = frozenset({"tunable-op"})
    won: ClassVar[dict[str, str]] = {"solution": "Gemm_Rocblas_3"}


class UnmeasuredWorld(AiterWorld):
    measured: ClassVar[frozenset[Format]] = frozenset()


def world(kind: type[TableWorld], folder: Path) -> Any:
    return kind(folder, found=variant_of(DEFINITION, dict(kind.won)))


@pytest.fixture(params=[AiterWorld, TunableWorld], ids=["aiter", "tunable-op"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableWorld]:
    made = world(request.param, tmp_path)
    yield made
    made.close()


def named(table: TableWorld, row: str) -> str:
    names = {"small": ("k_small", "Gemm_Hipblaslt_12"), "large": ("k_large", "Gemm_Rocblas_3")}
    return names[row][table.reads == "tunable-op"]


def test_a_row_for_other_sizes_goes_from_traffic_to_the_server_and_back_byte_by_byte(
    table: TableWorld,
) -> None:
    server, other = table.start(), table.start()
    sizes = (*range(1, 20), 64, 113, 128, 4096)
    before: list[Any] = server.picks(*sizes)
    id = table.swap()
    assert table.phase(id) == "Analyzing", table.trail(id)
    large = named(table, "large")
    expected = [large if 9 <= m <= 16 else was for m, was in zip(sizes, before, strict=True)]
    for each in (server, other):
        assert list(each.picks(*sizes)) == expected
    assert table.file.read_bytes() != table.original
    table.look(3)
    assert table.phase(id) == "Promoted", table.trail(id)
    ask_back(table, id)
    table.look()
    assert table.phase(id) == "RolledBack", table.trail(id)
    assert table.file.read_bytes() == table.original
    assert list(server.picks(*sizes)) == before == list(other.picks(*sizes))


def test_a_table_that_somebody_changes_afterwards_is_theirs_and_the_swap_ends(
    table: TableWorld,
) -> None:
    server = table.start()
    id = table.swap()
    assert table.phase(id) == "Analyzing", table.trail(id)
    theirs = table.original.replace(b"k_small", b"k_theirs").replace(b"_12,", b"_13,")
    table.file.write_bytes(theirs)
    table.look(2)
    assert table.phase(id) == "RolledBack", table.trail(id)
    assert table.file.read_bytes() == theirs
    assert str(server.picks(16)[0]) in ("k_theirs", "Gemm_Hipblaslt_13")


def test_a_row_that_the_table_has_for_no_size_is_not_proposed(tmp_path: Path) -> None:
    table = AiterWorld(tmp_path, found=variant_of(DEFINITION, LARGE | {"solidx": "10"}))
    try:
        table.start()
        table.drift()
        assert table.world.store.list(RecordKind.PROPOSAL) == []
        (experiment,) = table.world.store.list(RecordKind.EXPERIMENT, phase="refused")
        assert ("not-proposed", "not-a-row") in table.trail(experiment.id)
    finally:
        table.close()


def test_where_no_lab_has_the_library_a_table_is_left_and_said(tmp_path: Path) -> None:
    table = world(UnmeasuredWorld, tmp_path)
    try:
        table.start()
        table.drift()
        (left,) = table.world.store.list(RecordKind.FILE, phase="left")
        assert (left.id, left.body["reason"]) == (DEFINITION, "not-measurable")
        assert table.world.store.list(RecordKind.EXPERIMENT) == []
    finally:
        table.close()


def test_no_toolchain_of_ours_takes_a_row_for_code() -> None:
    with raises_naming(UsageError, "library"):
        toolchain_for(Language.LIBRARY)
