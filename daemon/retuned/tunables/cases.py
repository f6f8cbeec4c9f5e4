"""Launches of a tunable on private tensors, in the server's environment.

A case is built from a recipe: the description of one launch in the server. It allocates all tensors
itself, surrounded by guard zones, and applies a configuration by the code that applies it in the
server. Standard library, PyTorch, Triton and the server's own modules only.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.autotune import config_of, unwrapped
from retuned.runtime.tunables.autotune import dtype_of as named_dtype
from retuned.runtime.tunables.records import Rule, Table
from retuned.runtime.tunables.state import Tunable
from retuned.tunables.references import Rows

GUARD_BYTES = 4096
"""Bytes of a fixed pattern on each side of a tensor."""
_PATTERN = 0xA5
MAX_POOL_BYTES = 2 << 30
"""Most bytes of a private pool of keys and values."""
Config = Mapping[str, Any]


class Case(Protocol):
    """One size class, ready to run."""

    def run(self, config: Config | None) -> None:
        """Launch once with a configuration; None is the server's own choice."""
        ...

    def outputs(self) -> list[Any]:
        """Return the tensors to compare."""
        ...

    def reset(self, seed: int) -> None:
        """Fill all inputs again, and clear the outputs."""
        ...

    def reference(self, seed: int) -> Rows | None:
        """Return rows of the first output in float64; None where the function is not known.

        It is of the last run, whose inputs are as they were.
        """
        ...

    def intact(self) -> bool:
        """Whether all guard zones have their pattern."""
        ...


class Arena:
    """Allocates tensors between guard zones."""

    def __init__(self, torch: Any, device: str) -> None:  # noqa: ANN401 - the module
        self.torch, self.device = torch, device
        self._raw: list[tuple[Any, int]] = []

    def tensor(self, shape: Sequence[int], dtype: Any, *, stride: Sequence[int] = ()) -> Any:  # noqa: ANN401
        """Return a tensor in separate storage, with guard zones on both sides."""
        torch = self.torch
        strides = list(stride) or _dense(shape)
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if shape else 1
        if any(n == 0 for n in shape):
            count = 0
        item = torch.empty((), dtype=dtype).element_size()
        size = -(-max(count, 1) * item // GUARD_BYTES) * GUARD_BYTES
        raw = torch.full((size + 2 * GUARD_BYTES,), _PATTERN, dtype=torch.uint8, device=self.device)
        self._raw.append((raw, size))
        inside = raw[GUARD_BYTES : GUARD_BYTES + max(count, 1) * item].view(dtype)
        return torch.as_strided(inside, tuple(shape), tuple(strides))

    def intact(self) -> bool:
        """Whether nothing was written outside of the tensors; the pattern is restored."""
        whole = True
        for raw, size in self._raw:
            for end in (raw[:GUARD_BYTES], raw[GUARD_BYTES + size :]):
                if bool((end != _PATTERN).any()):
                    end.fill_(_PATTERN)
                    whole = False
        return whole


def _dense(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


def dtype_of(torch: Any, name: str) -> Any:  # noqa: ANN401 - a module; a dtype
    """Return a PyTorch dtype by its name.

    Raises
    ------
    Refused
        ``inputs-unsupported``.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused("inputs-unsupported", detail=f"PyTorch has no element type {name:.40}")
    return found


def fill(torch: Any, tensor: Any, *, generator: Any, scale: float = 1.0) -> None:  # noqa: ANN401
    """Fill a floating tensor with normal numbers, through float32 where the type needs it."""
    if tensor.numel() == 0:
        return
    if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        tensor.normal_(0.0, scale, generator=generator)
        return
    drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    tensor.copy_(drawn.normal_(0.0, scale, generator=generator).to(tensor.dtype))


class AutotuneCase:
    """A kernel under ``@triton.autotune``: its own autotuner, without its cache.

    Parameters
    ----------
    recipe
        As the server described the launch.
    """

    def __init__(self, recipe: Mapping[str, Any], *, torch: Any, device: str) -> None:  # noqa: ANN401
        call = recipe["call"]
        module = importlib.import_module(str(recipe["module"]))
        tuners = [unwrapped(each) for each in list(vars(module).values())]
        named = [t for t in tuners if t is not None and t.base_fn.__name__ == recipe["name"]]
        if not named:
            detail = f"{recipe['module']} has no autotuner {recipe['name']}"
            raise Refused("module-missing", detail=detail)
        self._tuner: Any = named[0]
        self._torch, self._device = torch, device
        self._arena = Arena(torch, device)
        self._configs = [dict(each) for each in call["configs"]]
        self._grids = [tuple(each) for each in call["grids"]]
        if not call["in_force"]:
            detail = f"the server has not chosen a configuration of {recipe['name']} yet"
            raise Refused("incumbent-unknown", detail=detail)
        self._in_force = call["in_force"]
        self._zeroed = [*call.get("reset_to_zero", ())]
        self._arguments: dict[str, Any] = {}
        self._floating: list[Any] = []
        self._whole: list[tuple[Any, Any]] = []
        for name, spec in call["arguments"]:
            self._arguments[name] = self._argument(name, spec)

    def _argument(self, name: str, spec: Mapping[str, Any]) -> Any:  # noqa: ANN401
        if "value" in spec:
            return spec["value"]
        if "number" in spec:
            return float(spec["number"])
        if "dtype" in spec:
            return named_dtype(str(spec["dtype"]))
        if "tensor" not in spec:
            detail = f"argument {name} is a {spec.get('unsupported')}"
            raise Refused("inputs-unsupported", detail=detail)
        found = spec["tensor"]
        dtype = dtype_of(self._torch, found["dtype"])
        tensor = self._arena.tensor(found["shape"], dtype, stride=found["stride"])
        if dtype.is_floating_point:
            self._floating.append(tensor)
        elif found["data"] is None and tensor.numel():
            detail = f"{name} holds whole numbers that were not recorded"
            raise Refused("inputs-not-recorded", detail=detail)
        else:
            data = self._torch.frombuffer(
                bytearray(base64.b64decode(found["data"] or "")) or bytearray(1),
                dtype=self._torch.uint8,
            )
            if tensor.numel():
                self._whole.append((tensor, data.view(dtype).reshape(found["shape"])))
        return tensor

    def run(self, config: Config | None) -> None:
        words = self._in_force if config is None else config
        grid = next(
            (
                grid
                for own, grid in zip(self._configs, self._grids, strict=True)
                if own["kwargs"] == words["kwargs"]
            ),
            None,
        )
        if grid is None:
            raise Refused("config-unknown", detail="its constants are not the kernel's")
        chosen = config_of(words, declared=self._tuner.configs)
        named = self._arguments
        for name in self._zeroed:
            if named.get(name) is not None:
                named[name].zero_()
        if chosen.pre_hook is not None:
            chosen.pre_hook({**named, **chosen.all_kwargs()})
        self._tuner.fn.run(**named, grid=grid, warmup=False, **chosen.all_kwargs())

    def outputs(self) -> list[Any]:
        return [*self._floating, *(tensor for tensor, _ in self._whole)]

    def reset(self, seed: int) -> None:
        generator = self._torch.Generator(self._device).manual_seed(seed)
        for tensor in self._floating:
            fill(self._torch, tensor, generator=generator, scale=0.1)
        for tensor, data in self._whole:
            tensor.copy_(data)

    def reference(self, seed: int) -> None:
        """Return None: what a kernel computes is not known."""

    def intact(self) -> bool:
        return self._arena.intact()


def table_of(tunable: Tunable, config: Config | None) -> Table | None:
    """Return a table that applies a configuration to every launch; None for the server's choice."""
    if config is None:
        return None
    return Table(
        tunable=tunable.id,
        family=tunable.family,
        source=tunable.source,
        rules=(Rule((), config),),
        captures=(),
        before=None,
        digest="",
    )


Build = Callable[..., Case]


def build(recipe: Mapping[str, Any], *, torch: Any, device: str) -> Case:  # noqa: ANN401
    """Build the case of a recipe.

    Raises
    ------
    Refused
        ``inputs-not-recorded``, ``inputs-unsupported``, ``incumbent-unknown``,
        ``module-missing`` or ``family-unknown``.
    """
    from retuned.tunables.attention import AttentionCase
    from retuned.tunables.moe import MoeCase

    families: dict[str, Build] = {
        "autotune": AutotuneCase,
        "attention": AttentionCase,
        "moe": MoeCase,
    }
    made = families.get(str(recipe.get("family")))
    if made is None:
        raise Refused("family-unknown", detail=f"no experiment for {recipe.get('family')}")
    return made(recipe, torch=torch, device=device)
