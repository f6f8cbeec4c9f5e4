"""Ranks of this process in a server, as far as known without waiting.

A server of several GPUs has one process per rank. The servers store their ranks in Python objects,
the launchers in environment variables; both are read if they exist. Nothing is imported, and no
called function communicates with other ranks.
"""

from __future__ import annotations

import sys
from typing import Any

from retuned.runtime.core.epochs import number_of_environment

_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
}
"""Variables that launchers set, the most specific first."""
_SERVERS = ("vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state")
_GROUPS = (("tp", "get_tp_group"), ("pp", "get_pp_group"))
_NOT_THERE = (
    AssertionError,  # groups that do not exist yet
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_MOST = 1 << 20


def ranks() -> dict[str, int]:
    """Return rank, local_rank, world_size, and tp/pp rank and size; unknown ones are left out.

    A process group of PyTorch takes precedence over the environment.
    """
    named = {name: number_of_environment(*given) for name, given in _VARIABLES.items()}
    found = {name: value for name, value in named.items() if value is not None}
    torch = sys.modules.get("torch.distributed")
    try:
        if torch is not None and torch.is_available() and torch.is_initialized():
            found |= _whole(rank=torch.get_rank(), world_size=torch.get_world_size())
    except _NOT_THERE:
        pass  # not a PyTorch with process groups
    for server in _SERVERS:
        module = sys.modules.get(server)
        if module is not None:
            for name, function in _GROUPS:
                found |= _group(module, function, name)
    return found


def _group(module: Any, function: str, name: str) -> dict[str, int]:  # noqa: ANN401 - a server's
    try:
        group = getattr(module, function)()
        return _whole(**{f"{name}_rank": group.rank_in_group, f"{name}_size": group.world_size})
    except _NOT_THERE:
        return {}


def _whole(**values: object) -> dict[str, int]:
    return {
        name: value for name, value in values.items() if type(value) is int and 0 <= value < _MOST
    }
