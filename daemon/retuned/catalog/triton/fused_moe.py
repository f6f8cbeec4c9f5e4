"""Fused mixture of experts in Triton: in stages, with fused activation, or a token per program.

All need several launches: the second product needs all of the first.
"""

from __future__ import annotations

from collections.abc import Mapping

from retuned.catalog.entry import Params, Space, constant
from retuned.catalog.triton.space import fits, fitting, next_pow2, space, warps
from retuned.contract import Definition, DType, Scratch, Step

FEW_TOKENS = 8
"""Up to so many tokens, experts mostly get one route each."""
_SOURCE = "triton_fused_moe.py"
_LIGHT: dict[str, int | str] = {"num_warps": 4, "num_stages": 2}


def _few(axes: Mapping[str, int]) -> bool:
    return axes["M"] <= FEW_TOKENS


def _tile_fits(params: Params, definition: Definition, *, products: int) -> bool:
    rows, columns, depth = (int(params[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    return (
        warps(params, rows * columns * products, least=4, most=128)
        and 2 * (rows + columns) * depth * int(params["num_stages"]) <= 160 << 10
        and fits(definition, "F", columns, least=32)
        and fits(definition, "K", columns, least=32)
        and fits(definition, "F", depth, least=32)
        and fits(definition, "K", depth, least=32)
    )


def _tiles(columns: str) -> tuple[str, ...]:
    # Never more tiles than routes, nor more than full ones and one remainder per expert.
    return (f"min(M * T, cdiv(M * T, BLOCK_M) + E) * cdiv({columns}, BLOCK_N)",)


_SORT = Step(entry="fused_moe_sort", grid=("E",), params={"BLOCK_R": 1024, **_LIGHT})
_ACTIVATE = Step(
    entry="fused_moe_activate",
    grid=("cdiv(M * T * F, BLOCK_A)",),
    params={"BLOCK_A": 1024, **_LIGHT},
)
_DOWN = Step(entry="fused_moe_down", grid=_tiles("K"))
_COMBINE = Step(
    entry="fused_moe_combine", grid=("M * cdiv(K, BLOCK_C)",), params={"BLOCK_C": 512, **_LIGHT}
)
_ROUTES = (
    Scratch(name="order", dtype=DType.INT32, shape=("M", "T")),
    Scratch(name="ends", dtype=DType.INT32, shape=("E",)),
)
_BOTH = Scratch(name="both", dtype=DType.BFLOAT16, shape=("M", "T", "W"))
_HIDDEN = Scratch(name="hidden", dtype=DType.BFLOAT16, shape=("M", "T", "F"))
_PARTS = Scratch(name="parts", dtype=DType.BFLOAT16, shape=("M", "T", "K"))


def _grouped(
    name: str, experts: int, *, steps: tuple[Step, ...], scratch: tuple[Scratch, ...], products: int
) -> Space:
    def starts(axes: Mapping[str, int]) -> tuple[Params, ...]:
        rows = 16 if axes["M"] <= 64 else 64
        return tuple(
            {
                "BLOCK_E": experts,
                "BLOCK_M": rows,
                "BLOCK_N": columns,
                "BLOCK_K": depth,
                "num_warps": 4,
                "num_stages": 3 if rows == 16 else 2,
            }
            for columns, depth in ((64, 64), (128, 64), (32, 64), (32, 32))
        )

    return space(
        name,
        _SOURCE,
        steps=steps,
        scratch=scratch,
        params={
            "BLOCK_E": (experts,),
            "BLOCK_M": (16, 32, 64, 128),
            "BLOCK_N": (32, 64, 128),
            "BLOCK_K": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        starts=starts,
        rank=lambda axes: (1 if _few(axes) else 0) + (name == "stages"),
        valid=lambda params, definition: _tile_fits(params, definition, products=products),
    )


def _stages(experts: int) -> Space:
    return _grouped(
        "stages",
        experts,
        steps=(_SORT, Step(entry="fused_moe_up", grid=_tiles("W")), _ACTIVATE, _DOWN, _COMBINE),
        scratch=(*_ROUTES, _BOTH, _HIDDEN, _PARTS),
        products=1,
    )


def _gated(experts: int) -> Space:
    """Return the activation at the end of the first product, where its numbers are in registers."""
    return _grouped(
        "gated",
        experts,
        steps=(_SORT, Step(entry="fused_moe_gated", grid=_tiles("F")), _DOWN, _COMBINE),
        scratch=(*_ROUTES, _HIDDEN, _PARTS),
        products=2,
    )


_TOKENS = space(
    "tokens",
    "triton_fused_moe_tokens.py",
    steps=(
        Step(entry="fused_moe_tokens", grid=("M * T * cdiv(F, BLOCK_N)",)),
        Step(entry="fused_moe_tokens_down", grid=("M * cdiv(K, BLOCK_N)",)),
    ),
    scratch=(Scratch(name="hidden", dtype=DType.FLOAT32, shape=("M", "T", "F")),),
    params={
        "BLOCK_N": (8, 16, 32),
        "BLOCK_K": (64, 128, 256),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3),
    },
    starts=lambda _axes: (
        {"BLOCK_N": 8, "BLOCK_K": 256, "num_warps": 4, "num_stages": 2},
        {"BLOCK_N": 16, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    ),
    rank=lambda axes: 0 if _few(axes) else 2,
    valid=lambda params, definition: (
        warps(params, 2 * int(params["BLOCK_N"]) * int(params["BLOCK_K"]), least=4, most=128)
        and fits(definition, "F", int(params["BLOCK_K"]), least=64)
        and fits(definition, "K", int(params["BLOCK_K"]), least=64)
    ),
)


def fused_moe(definition: Definition) -> tuple[tuple[Space, ...], Params]:
    """Return the spaces, and the first's point that servers use for few tokens."""
    experts = next_pow2(constant(definition, "E"))
    stages = _stages(experts)
    usual: Params = {
        "BLOCK_E": experts,
        "BLOCK_M": 16,
        "BLOCK_N": 32,
        "BLOCK_K": 64,
        "num_warps": 4,
        "num_stages": 3,
    }
    if not stages.constraints(usual, definition):
        usual = fitting(stages, definition).starts({"M": 1})[0]
    return (stages, _gated(experts), _TOKENS), usual
