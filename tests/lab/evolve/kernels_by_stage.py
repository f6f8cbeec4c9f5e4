"""One kernel at three stages of its life, and a model that knows them: it reads its prompt."""

from __future__ import annotations

import json
import re

from tests.lab.evolve.scripted_endpoint import Received

from retuned.contract import Language, Solution, SourceFile

DEFINITION = "rmsnorm_h512"
_HEAD = """#include <cmath>
#include <cstdint>
#include <cstring>
// stage {stage}
extern "C" void kernel(void* const* tensors, const int64_t* axes, void*, int64_t part,
                       int64_t parts) {{
  const float* x = static_cast<const float*>(tensors[0]);
  const float* weight = static_cast<const float*>(tensors[1]);
  float* y = static_cast<float*>(tensors[2]);
  const int64_t M = axes[0], H = axes[1];
  for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m) {{
    const float* row = x + m * H;
    float* out = y + m * H;
"""
_SCALE = """    const float scale = 1.0f / std::sqrt(total / static_cast<float>(H) + 1e-6f);
"""
_SCALAR = "    for (int64_t i = 0; i < H; ++i) out[i] = row[i] * scale * weight[i];\n"
_NAIVE = "    float total = 0.0f;\n    for (int64_t i = 0; i < H; ++i) total += row[i] * row[i];\n"
_CHAINS = """    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    int64_t i = 0;
    for (; i + 4 <= H; i += 4) {
      a += row[i] * row[i];
      b += row[i + 1] * row[i + 1];
      c += row[i + 2] * row[i + 2];
      d += row[i + 3] * row[i + 3];
    }
    for (; i < H; ++i) a += row[i] * row[i];
    const float total = (a + b) + (c + d);
"""
_VECTORS = """    typedef float vf __attribute__((vector_size(32)));
    vf sums[4] = {};
    int64_t i = 0;
    for (; i + 32 <= H; i += 32)
      for (int k = 0; k < 4; ++k) {
        vf v;
        std::memcpy(&v, row + i + 8 * k, sizeof v);
        sums[k] += v * v;
      }
    float total = 0.0f;
    for (; i < H; ++i) total += row[i] * row[i];
    const vf all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (int k = 0; k < 8; ++k) total += all[k];
"""
_BODIES = {0: _NAIVE, 1: _CHAINS, 2: _VECTORS}


def source(stage: int) -> str:
    """Return the kernel at a stage: one chain, four chains, vectors."""
    return _HEAD.format(stage=stage) + _BODIES[stage] + _SCALE + _SCALAR + "  }\n}\n"


def naive() -> Solution:
    """Return the incumbent: right, and as slow as a first draft is."""
    return Solution(
        name="rmsnorm.naive",
        definition=DEFINITION,
        language=Language.CPU_CPP,
        entry="kernel",
        sources=(SourceFile(path="kernel.cpp", content=source(0)),),
        structure="naive",
    )


def blocks(text: str, word: str, **launch: object) -> str:
    """Return an answer."""
    return f"An idea.\n```json\n{json.dumps(launch)}\n```\n```{word}\n{text.rstrip()}\n```\n"


def good_model(received: Received) -> str:
    """Answer as a good model does: a typo at first, repaired, then one stage after the other."""
    system = str(received.body["messages"][0]["content"])
    prompt = received.user
    if "You review" in system:
        return '```json\n{"cause": "a semicolon is missing", "fix": "write it"}\n```'
    if "You advise" in system:
        return '```json\n{"ideas": ["several accumulators", "explicit vectors"]}\n```'
    base = re.search(r"# Base, id ([0-9a-f]{12})", prompt)
    stage = re.search(r"// stage (\d)", prompt.partition("# Base")[2])
    assert base is not None
    assert stage is not None
    if "# What went wrong" in prompt:  # the typo, mended by an edit of the broken source
        edit = "<<<<<<< SEARCH\n    int64_t i = 0\n=======\n    int64_t i = 0;\n>>>>>>> REPLACE"
        return blocks(edit, "edit", base=base[1], idea="the semicolon")
    mark = f"// tried on {base[1]}, {len(prompt)}\n"
    if stage[1] == "0":
        text = source(1)
        if "# Failed before" not in prompt:
            text = text.replace(
                "int64_t i = 0;\n    for (; i + 4", "int64_t i = 0\n    for (; i + 4"
            )
        return blocks(text + mark, "cpp", base=base[1], entry="kernel")
    if stage[1] == "1":
        return blocks(source(2) + mark, "cpp")
    edit = f"<<<<<<< SEARCH\n// stage 2\n=======\n// stage 2\n{mark}>>>>>>> REPLACE"
    return blocks(edit, "edit", base=base[1], idea="nothing is left to do")


def stage_edit(old: int, new: int, *, mark: str) -> str:
    """Return an edit that leads one stage to another, without fences, as other packages want it."""
    pairs = (
        (_BODIES[old].rstrip(), f"{_BODIES[new].rstrip()}\n    // tried {mark}"),
        (f"// stage {old}", f"// stage {new}"),
    )
    edits = [f"<<<<<<< SEARCH\n{a}\n=======\n{b}\n>>>>>>> REPLACE\n" for a, b in pairs]
    return "An idea.\n" + "".join(edits)
