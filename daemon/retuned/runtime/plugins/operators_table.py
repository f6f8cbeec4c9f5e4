"""Operators of vLLM and SGLang for which the catalog has definitions.

Read from vllm 0.33.0, sglang 0.5.23 and sglang-kernel 0.4.10. A schema must match exactly: an
operator of another version, whose arguments may have another meaning, is not changed. Definitions
that the catalog has for one epsilon only are bound for that epsilon.
"""

from __future__ import annotations

from retuned.runtime.torch_ops.binding import Binding, InputBinding, OutputBinding, View

_EPSILON = 1e-6
_ROWS, _HEADS = View.ROWS, View.HEADS


def _norm(operator: str, schema: str, *, written: str, epsilon: str) -> Binding:
    return Binding(
        operator=operator,
        schema=operator + schema,
        op_type="rmsnorm",
        template="rmsnorm{form}_h{H}",
        axes=("M", "H"),
        variable=("M",),
        inputs=(
            InputBinding(name="x", argument="input", shape=("M", "H"), view=_ROWS),
            InputBinding(name="weight", argument="weight", shape=("H",), constant=True),
        ),
        outputs=(OutputBinding(name="y", argument=written, shape=("M", "H"), view=_ROWS),),
        equal=((epsilon, _EPSILON),),
    )


def _added_norm(operator: str, schema: str, *, epsilon: str) -> Binding:
    return Binding(
        operator=operator,
        schema=operator + schema,
        op_type="add_rmsnorm",
        template="add_rmsnorm{form}_h{H}",
        axes=("M", "H"),
        variable=("M",),
        inputs=(
            InputBinding(name="x", argument="input", shape=("M", "H"), view=_ROWS),
            InputBinding(name="residual", argument="residual", shape=("M", "H"), view=_ROWS),
            InputBinding(name="weight", argument="weight", shape=("H",), constant=True),
        ),
        outputs=(
            OutputBinding(name="y", argument="input", shape=("M", "H"), view=_ROWS),
            OutputBinding(name="summed", argument="residual", shape=("M", "H"), view=_ROWS),
        ),
        equal=((epsilon, _EPSILON),),
    )


def _gated(
    operator: str,
    schema: str,
    *,
    op_type: str,
    written: str,
    equal: tuple[tuple[str, object], ...] = (),
) -> Binding:
    return Binding(
        operator=operator,
        schema=operator + schema,
        op_type=op_type,
        template=op_type + "{form}_i{I}",
        axes=("M", "I", "G"),
        variable=("M",),
        inputs=(InputBinding(name="x", argument="input", shape=("M", "G"), view=_ROWS),),
        outputs=(OutputBinding(name="y", argument=written, shape=("M", "I"), view=_ROWS),),
        equal=equal,
    )


def _rope(operator: str, schema: str, *, equal: tuple[tuple[str, object], ...]) -> Binding:
    return Binding(
        operator=operator,
        schema=operator + schema,
        op_type="rope",
        template="rope{form}_q{Q}_k{K}_d{D}",
        axes=("M", "P", "Q", "K", "D"),
        variable=("M", "P"),
        inputs=(
            InputBinding(name="positions", argument="positions", shape=("M",), dtype="int64"),
            InputBinding(name="q", argument="query", shape=("M", "Q", "D"), view=_HEADS),
            InputBinding(name="k", argument="key", shape=("M", "K", "D"), view=_HEADS),
            InputBinding(name="cache", argument="cos_sin_cache", shape=("P", "D"), constant=True),
        ),
        outputs=(
            OutputBinding(name="q_out", argument="query", shape=("M", "Q", "D"), view=_HEADS),
            OutputBinding(name="k_out", argument="key", shape=("M", "K", "D"), view=_HEADS),
        ),
        sized=(("D", "head_size"),),
        equal=(("is_neox", True), *equal),
    )


VLLM = (
    _norm(
        "_C::rms_norm",
        "(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()",
        written="result",
        epsilon="epsilon",
    ),
    _added_norm(
        "_C::fused_add_rms_norm",
        "(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
        epsilon="epsilon",
    ),
    _gated(
        "_C::silu_and_mul",
        "(Tensor! result, Tensor input) -> ()",
        op_type="silu_mul",
        written="result",
    ),
    _gated(
        "_C::gelu_tanh_and_mul",
        "(Tensor! out, Tensor input) -> ()",
        op_type="gelu_mul",
        written="out",
    ),
    _rope(
        "_C::rotary_embedding",
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
        equal=(("rope_dim_offset", 0), ("inverse", False)),
    ),
)
"""Of vLLM's own library.

Its ``gelu_and_mul`` is the exact form, which the catalog does not have.
"""

SGL_KERNEL = (
    _norm(
        "sgl_kernel::rmsnorm",
        "(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()",
        written="output",
        epsilon="eps",
    ),
    _added_norm(
        "sgl_kernel::fused_add_rmsnorm",
        "(Tensor! input, Tensor! residual, Tensor weight, float eps, bool enable_pdl) -> ()",
        epsilon="eps",
    ),
    _gated(
        "sgl_kernel::silu_and_mul",
        "(Tensor! out, Tensor input) -> ()",
        op_type="silu_mul",
        written="out",
    ),
    _gated(
        "sgl_kernel::gelu_tanh_and_mul",
        "(Tensor! out, Tensor input) -> ()",
        op_type="gelu_mul",
        written="out",
    ),
    _rope(
        "sgl_kernel::rotary_embedding",
        "(Tensor positions, Tensor! query, Tensor!? key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox) -> ()",
        equal=(),
    ),
)

SGLANG = (
    _gated(
        "sglang::_run_activation_inplace",
        "(str op_name, Tensor input, Tensor(a2!) out) -> ()",
        op_type="silu_mul",
        written="out",
        equal=(("op_name", "silu"),),
    ),
)
"""Of SGLang itself: launches in compiled code; eager ones call the function behind the operator."""
