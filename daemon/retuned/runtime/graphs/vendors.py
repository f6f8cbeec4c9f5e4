"""Vendors' names of the graph calls in their drivers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    prefix: str
    params: str
    set_params: str
    set_exec: str
    capture: str
    layout: tuple[str, str]


NAMES = {
    "nvidia": Names(
        prefix="cu",
        params="cuGraphKernelNodeGetParams_v2",
        set_params="cuGraphKernelNodeSetParams_v2",
        set_exec="cuGraphExecKernelNodeSetParams_v2",
        capture="cuStreamGetCaptureInfo_v2",
        layout=("cuFuncGetParamInfo", "cuKernelGetParamInfo"),
    ),
    "amd": Names(
        prefix="hip",
        params="hipGraphKernelNodeGetParams",
        set_params="hipGraphKernelNodeSetParams",
        set_exec="hipGraphExecKernelNodeSetParams",
        capture="hipStreamGetCaptureInfo_v2",
        layout=("", ""),
    ),
}


def required_calls(vendor: str) -> tuple[str, ...]:
    names = NAMES[vendor]
    common = ("GraphGetNodes", "GraphNodeGetType", "GraphNodeGetDependencies")
    return (
        *(names.prefix + call for call in common),
        *(names.params, names.set_params, names.set_exec, names.capture),
    )
