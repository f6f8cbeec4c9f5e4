"""Whatever a model or its endpoint writes, evolution ends in variants or refusals."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.evolve.evolve_world import BLOCK, Actor, Evolution, whole

from retuned import catalog
from retuned.contract import Definition, Language, Solution, TrustClass
from retuned.lab.generators.evolve import EvolveRules
from retuned.lab.generators.evolve.dialects import dialect_of, solution_of
from retuned.lab.generators.evolve.lineage import Lineage
from retuned.lab.generators.evolve.responses import parse_answer
from retuned.lab.languages import cpu_cpp, triton_contract
from retuned.lab.llm import http
from retuned.lab.llm.client import WireFailed

ZERO = "sha256:" + "0" * 64
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
_PARTS = st.one_of(
    st.text(max_size=60),
    _JSON.map(lambda body: BLOCK.format("json", json.dumps(body))),
    st.text(max_size=60).map(lambda text: BLOCK.format("cpp", text)),
    st.text(max_size=60).map(lambda text: BLOCK.format("edit", text)),
    st.integers(0, 9).map(lambda n: whole(f"// speed {n}\n", entry="k")),
    st.just("<<<<<<< SEARCH\n"),
    st.just("```"),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(_PARTS, max_size=4).map("\n".join), min_size=1, max_size=12))
def test_any_answers_end_in_variants_or_refusals(answers: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = iter(range(10**6))
        world = Evolution(
            folder=Path(folder),
            actor=Actor(lambda _: answers[next(place) % len(answers)]),
            rules=EvolveRules(islands=2, generations=4, ideas_every=2),
        )
        rounds = 0
        while world.round():
            rounds += 1
        assert rounds <= 8
        assert len({f.solution.digest for f in world.history}) == len(world.history)
        for found in world.history:
            assert found.solution.trust is TrustClass.GENERATED
            assert found.solution.definition == world.start.definition
            assert [s.path for s in found.solution.sources] == ["kernel.cpp", "vec.h"]
        world.close()


@settings(deadline=None)
@given(_JSON | st.binary(max_size=50))
def test_any_body_is_an_answer_or_a_named_failure(body: object) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    _reads(data)
    choice = {"message": {"content": body}} if not isinstance(body, bytes) else {}
    _reads(json.dumps({"choices": [choice], "usage": None}).encode())


def _reads(data: bytes) -> None:
    headers = httpx.Headers({"content-type": "application/json; charset=utf-8"})
    with contextlib.suppress(WireFailed):  # nothing else may come out
        assert isinstance(http._read(headers, data).text, str)


def answered(base: Solution, definition: Definition, text: str) -> Solution:
    """Return what becomes of a whole-file answer."""
    dialect = dialect_of(base.language)
    answer = BLOCK.format("json", "{}") + BLOCK.format(dialect.fences[0], text.rstrip("\n"))
    draft = parse_answer(answer, finish="stop", fences=dialect.fences, base=None, base_id="")
    return solution_of(
        draft,
        definition,
        dialect=dialect,
        base=base,
        headers=base.sources[1:],
        lineage=Lineage(island=0, step=0, parent=base.digest, prompt=ZERO, model="m"),
    )


@pytest.mark.parametrize(
    "name", ["rmsnorm_h64", "softmax_n128", "silu_mul_i128", "linear_w8_n64_k128"]
)
def test_what_people_wrote_would_be_allowed_to_a_model_too(name: str) -> None:
    cpp, jit = (catalog.get(name, language=lang) for lang in (Language.CPU_CPP, Language.TRITON))
    for space in cpp.spaces:
        base = cpp.solution(space.name, {n: values[0] for n, values in space.params.items()})
        made = answered(base, cpp.definition, base.sources[0].content + "// by a model\n")
        cpu_cpp.check_contract(made)
        assert (made.params, made.layouts, made.entry) == (base.params, base.layouts, base.entry)
    base = jit.incumbent
    made = answered(base, jit.definition, base.sources[0].content + "\n# by a model\n")
    triton_contract.check_contract(made, jit.definition, shapes=[{"M": 3}])
    assert (made.grid, made.params) == (base.grid, base.params)
    assert made.digest != base.digest


def test_an_answer_to_several_launches_keeps_them() -> None:
    product = catalog.get("gemm_bf16_n64_k256")
    base = product.solution("split-k", product.space("split-k").starts({"M": 1})[0])
    made = answered(base, product.definition, base.sources[0].content + "\n# by a model\n")
    triton_contract.check_contract(made, product.definition, shapes=[{"M": 3}])
    assert (made.steps, made.scratch, made.grid) == (base.steps, base.scratch, ())
    assert made.digest != base.digest
