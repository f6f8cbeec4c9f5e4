"""The grid of a solution is part of its digest, and CPU digests are what they were without one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from retuned import catalog
from retuned.contract import Language, Solution, digest_of


def test_a_solution_without_a_grid_has_the_digest_it_had_before_there_were_grids() -> None:
    solution = catalog.get("rmsnorm_h64").incumbent
    body = solution.model_dump(mode="json")
    fields = ("definition", "language", "entry", "sources", "params", "layouts", "scratch_bytes")
    assert solution.grid == ()
    assert solution.digest == digest_of({field: body[field] for field in fields})


def test_another_grid_is_another_solution() -> None:
    solution = catalog.get("rmsnorm_h64", language=Language.TRITON).incumbent
    assert solution.grid == ("cdiv(M, ROWS)",)
    other = solution.model_copy(update={"grid": ("M",)})
    assert other.digest != solution.digest
    assert Solution.model_validate(solution.model_dump(mode="json")).digest == solution.digest


@pytest.mark.parametrize("grid", [["1"] * 4, ["M" * 201], [1], "M"])
def test_a_grid_has_at_most_three_short_expressions(grid: object) -> None:
    body = catalog.get("rmsnorm_h64").incumbent.model_dump(mode="json")
    with pytest.raises(ValidationError):
        Solution.model_validate({**body, "grid": grid})
