"""No honest variant is called wrong: two hundred of them, by the gates before timing.

A seeded draw of hand-written orders of adding up; all of them, and the points of the catalog's
spaces in every language, are gone through by ``benchmarks/honest.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.hostile.conftest import QUICK
from tests.hostile.honest_variants import LINEAR, RMSNORM, SOFTMAX, written

from retuned import catalog
from retuned.contract import Workload
from retuned.lab.examiner import Examiner
from retuned.lab.resources import LabResources

PARTS = 10
COUNT = 200
WRITTEN = list(written())
DRAWN = random.Random(20_250_611).sample(WRITTEN, COUNT)


@pytest.fixture(scope="module")
def examiners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Examiner]]:
    folder = tmp_path_factory.mktemp("honest")
    bays = {}
    for name in (LINEAR, SOFTMAX, RMSNORM):
        entry = catalog.get(name)
        bays[name] = LabResources(
            entry,
            [Workload(definition=name, axes={"M": 4})],
            incumbent=entry.incumbent,
            folder=folder,
            settings=QUICK,
        )
    yield {name: Examiner(bay) for name, bay in bays.items()}
    for bay in bays.values():
        bay.close()


def test_every_one_is_another_source() -> None:
    assert len({solution.digest for solution in WRITTEN}) == len(WRITTEN) >= COUNT


@pytest.mark.parametrize("part", range(PARTS))
def test_an_honest_order_of_adding_up_is_never_called_wrong(
    part: int, examiners: dict[str, Examiner]
) -> None:
    refused = []
    for solution in DRAWN[part::PARTS]:
        examiner = examiners[solution.definition]
        variant, checks = examiner.admit(solution)
        assert variant is not None, (solution.author, checks)
        checks = (*checks, *examiner.correct(variant))
        assert {check.gate for check in checks} == {"G1", "G2", "G3", "G4"}
        refused += [(solution.author, check) for check in checks if check.reason is not None]
    assert refused == []
