"""A kernel on the CPU that writes over its input: the child puts it back as a device's does."""

from __future__ import annotations

from pathlib import Path

from retuned.catalog.user import OwnDefinition, entry_of
from retuned.contract import Language, Workload
from retuned.lab.examiner import Examiner
from retuned.lab.harness.timing import units_for
from retuned.lab.resources import LabResources, LabSettings
from retuned.stages.verdict import Reason

SOURCE = """#include <cstdint>

extern "C" void grow(void* const* tensors, const int64_t* axes, void*, int64_t part,
                     int64_t parts) {
  float* x = (float*)tensors[1];
  const int64_t M = axes[0], last = M * (part + 1) / parts;
  for (int64_t m = M * part / parts; m < last; ++m) x[m] = x[m] * x[m] * 1e4f + 3.0f;
}
"""
OWN = OwnDefinition.model_validate(
    {
        "definition": {
            "name": "grow",
            "op_type": "grow",
            "axes": {"M": {"type": "var"}},
            "inputs": {"x": {"shape": ["M"], "dtype": "float32"}},
            "outputs": {"x_out": {"shape": ["M"], "dtype": "float32", "updates": "x"}},
            "reference": "def run(x):\n    return {'x_out': x * x * 1e4 + 3.0}\n",
        },
        "made": {"x": {"like": "normal"}},
        "families": ["randn"],
        "traces": {"op": "retuned::grow", "shapes": [["M"]], "dtypes": ["float32"]},
        "variants": [
            {
                "structure": "plain",
                "language": "cpu_cpp",
                "entry": "grow",
                "sources": [{"path": "grow.cpp", "content": SOURCE}],
                "params": {"THREADS": [1, 2]},
                "incumbent": {"THREADS": 1},
            }
        ],
    }
)


def test_launches_that_both_clocks_time_are_each_given_what_the_first_was(tmp_path: Path) -> None:
    entry = entry_of(OWN, Language.CPU_CPP)
    workload = Workload(definition="grow", axes={"M": 3000})
    settings = LabSettings(search_s=0.1, search_blocks=3)
    bay = LabResources(
        entry,
        [workload],
        incumbent=entry.incumbent,
        folder=tmp_path,
        settings=settings,
    )
    try:
        examiner = Examiner(bay)
        variant, checks = examiner.admit(entry.solution("plain", {"THREADS": 2}))
        assert variant is not None, checks
        checks = (*checks, *examiner.correct(variant))
        assert [check for check in checks if check.reason is not None] == []
        with bay.duel([bay.incumbent, variant]) as duel:
            own_us = duel.prepare({"M": 3000}, bay.sets(0, bay.seeds), seed=3)
            for _ in range(3):
                duel.block(units_for(4, 0))
                assert duel.check_outputs(gate="G5").reason is None
            slow = duel.check_clocks(candidate_us=own_us / 50, incumbent_us=own_us, gate="G6")
        assert slow.reason is Reason.CLOCKS_DISAGREE
    finally:
        bay.close()
