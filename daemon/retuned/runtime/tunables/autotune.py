"""Kernels under ``@triton.autotune``: choices that were made once are seen and can be changed.

``Autotuner.run`` is looked up on the class at each launch, so one assignment reaches kernels that
were imported long before. The key of an autotuner often lacks the size of the traffic: the choice
of the first launch, at a warm-up size, then serves all sizes. A table adds the size: the number of
elements of the launch's largest tensor, and of programs under the first declared configuration.
Neither alone is enough: weights can be the largest tensor at every batch size, and a persistent
kernel has as many programs as the device has processors.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retuned.runtime.schema import Refused
from retuned.runtime.tunables.checks import UNKNOWN, Sides
from retuned.runtime.tunables.records import Config, Table, digest_of_text
from retuned.runtime.tunables.state import (
    Pointer,
    Registry,
    SizeClass,
    Tunable,
    capturing,
    replace_among,
    replace_everywhere,
    spec_of,
    timed,
)
from retuned.runtime.tunables.written import written_by

MODULE = "triton.runtime.autotuner"
AXES = ("elements", "programs")
SECOND = "vllm.model_executor.layers.mamba.ops.triton_helpers"
_PAST = "launch_autotuned"
"""vLLM's launch past the autotuner (0.33), from a cache that lacks the sizes as well."""
_NEEDED = ("arg_names", "cache", "configs", "keys")
"""Names that ``Autotuner.run`` must use; another Triton is refused."""
_NUMBERS = ("num_warps", "num_stages", "num_ctas")
_ATTRIBUTE = "_retuned_tunables"
_MOST_MADE = 1024
_MOST_WRAPPERS = 8
_MOST_KEYS = 32
"""Keys of one kernel that are followed, so that it leaves room for others."""
_WARPS, _STAGES, _CTAS = (1, 2, 4, 8, 16, 32), range(1, 11), (1, 2, 4, 8, 16)
_LEGAL = {"num_warps": _WARPS, "num_stages": _STAGES, "num_ctas": _CTAS}
Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Call:
    """One launch through an autotuner."""

    tunable: Tunable
    sized: SizeClass
    axes: Mapping[str, int]
    config: Config | None
    """Of the table; None is the autotuner's own choice."""
    key: tuple[Any, ...]
    """The autotuner's."""
    in_capture: bool


def unwrapped(kernel: Any) -> Any:  # noqa: ANN401 - the server's
    """Return the autotuner of a kernel, which heuristics may wrap; None without one."""
    cls = getattr(sys.modules.get(MODULE), "Autotuner", None)
    for _ in range(_MOST_WRAPPERS):
        if cls is None or kernel is None or isinstance(kernel, cls):
            break
        kernel = getattr(kernel, "fn", None)
    return kernel if cls is not None and isinstance(kernel, cls) else None


class AutotunerHook:
    """Hook on ``Autotuner.run``.

    Parameters
    ----------
    registry
        Where found tunables go.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._stock: Run | None = None
        self._ours: Run | None = None
        self._past: Run | None = None
        self._holders: list[Any] = []
        """Modules that hold the function past it."""
        self.state = "triton-missing"

    def install(self) -> str:
        """Follow autotuners from now on; return ``on`` or a reason code. Idempotent."""
        if self._stock is not None:
            self._follow_second()
            return self.state
        cls = getattr(sys.modules.get(MODULE), "Autotuner", None)
        stock = cls.__dict__.get("run") if cls is not None else None
        if cls is None or stock is None:
            return self.state
        code = getattr(stock, "__code__", None)
        names = set(code.co_names) if code is not None else set()
        kinds = [each.kind for each in inspect.signature(stock).parameters.values()]
        usual = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
        if kinds[1:] != usual or not names.issuperset(_NEEDED):
            self.state = "autotuner-unknown"
            return self.state
        self._stock, self._ours = stock, self._wrapper(stock)
        self._follow_second()
        self.resume()
        self.state = "on"
        return self.state

    def resume(self) -> None:
        """Follow autotuners again; see `core.own_overhead.Wrapper`."""
        cls = getattr(sys.modules.get(MODULE), "Autotuner", None)
        if cls is not None and self._stock is not None and cls.__dict__.get("run") is self._stock:
            cls.run = self._ours
        replace_among(self._holders, _PAST, self._past, _through_the_autotuner)

    def suspend(self) -> None:
        """Restore the method for a while, unless other code has wrapped it since."""
        replace_among(self._holders, _PAST, _through_the_autotuner, self._past)
        cls = getattr(sys.modules.get(MODULE), "Autotuner", None)
        if cls is not None and self._ours is not None and cls.__dict__.get("run") is self._ours:
            cls.run = self._stock

    def _follow_second(self) -> None:
        """Send launches past the autotuner through it, in every module that holds the function."""
        past = getattr(sys.modules.get(SECOND), _PAST, None)
        if past is not None and self._past is None:
            self._past = past
        if self._past is not None:
            self._holders = replace_everywhere(_PAST, self._past, _through_the_autotuner)

    def in_place(self) -> bool:
        """Whether launches still pass through the hook."""
        cls = getattr(sys.modules.get(MODULE), "Autotuner", None)
        return cls is not None and cls.__dict__.get("run") is self._ours

    def uninstall(self) -> None:
        """Restore the method, unless other code has wrapped it since."""
        self._follow_second()  # also modules that have taken ours since
        self.suspend()
        self._stock = self._ours = self._past = None
        self._holders.clear()
        self.state = "uninstalled"

    def _wrapper(self, stock: Run) -> Run:
        registry = self._registry

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Triton's
            try:
                found = _seen(self, args, kwargs, registry)
            except Exception:
                registry.failed("autotune")
                found = None
            if found is None:
                return stock(self, *args, **kwargs)
            if found.config is not None:
                try:
                    return _under_table(self, stock, found, args, kwargs)
                except Exception:  # too many resources at this very shape: nothing was launched
                    registry.failed("autotune")
                    found.tunable.leave_out(found.config)
            launch = functools.partial(stock, self, *args, **kwargs)
            return timed(found.sized, launch, in_capture=found.in_capture)

        run.__wrapped__ = stock  # type: ignore[attr-defined]
        return run


def _through_the_autotuner(kernel: Any, grid: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's
    kernel[grid](**kwargs)


def _seen(
    tuner: Any,  # noqa: ANN401 - an Autotuner
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    registry: Registry,
) -> _Call | None:
    """Count a launch, and return what is known of it; None if it is not followed."""
    if len(tuner.configs) < 2:
        return None
    named = dict(zip(tuner.arg_names, args, strict=False))
    named.update(kwargs)
    key = _key(tuner, named)
    known: dict[Any, Tunable | None] | None = tuner.__dict__.get(_ATTRIBUTE)
    if known is None:
        known = tuner.__dict__.setdefault(_ATTRIBUTE, {})
    try:
        tunable = known[key]
    except KeyError:
        if len(known) >= _MOST_KEYS:
            return None
        tunable = known[key] = registry.add(_made(tuner, key))
    if tunable is None:
        return None
    elements = max((each.numel() for each in named.values() if hasattr(each, "numel")), default=0)
    axes = {"elements": elements, "programs": _programs(tuner, named)}
    sized = tunable.sized(axes)
    config = tunable.choose(axes, sized)
    in_capture = capturing()
    if config is None:
        _resolved(tuner, key, tunable, sized)
    if not in_capture and tunable.wants_recipe(sized):
        tunable.record(sized, _recipe(tuner, tunable, named, axes))
    elif not in_capture and (end := tunable.edge(sized, axes)):
        tunable.record_edge(sized, _recipe(tuner, tunable, named, axes), end)
    return _Call(tunable, sized, axes, config, key, in_capture)


def _under_table(
    tuner: Any,  # noqa: ANN401 - an Autotuner
    stock: Run,
    call: _Call,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:  # noqa: ANN401 - as Triton's
    """Launch under a table, checked if it is due."""
    words, checks = call.config, call.tunable.checks
    assert words is not None, "asked before"

    def run(config: Config | None, outputs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        if config is not None and not outputs:
            return _launch(tuner, config_of(config, declared=tuner.configs), args, kwargs)
        names = tuner.arg_names
        given = tuple(outputs.get(n, v) for n, v in zip(names, args, strict=False))
        named = {**kwargs, **{n: v for n, v in outputs.items() if n in kwargs}}
        if config is None:
            return stock(tuner, *given, *args[len(given) :], **named)
        return _launch(tuner, config_of(config, declared=tuner.configs), given, named)

    at = checks.due(call.axes) if checks is not None and not call.in_capture else None
    if checks is None or at is None:
        return timed(call.sized, lambda: run(words, {}), in_capture=call.in_capture)
    return checks.launch(at, words, _sides(tuner, call, args, kwargs, run))


def _sides(
    tuner: Any,  # noqa: ANN401 - an Autotuner
    call: _Call,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    run: Callable[[Config | None, Mapping[str, Any]], Any],
) -> Sides:
    written = call.tunable.written
    if written is None:
        return Sides({}, (), run, unfit=UNKNOWN)
    if call.key not in tuner.cache:  # it would choose now, by launches on the server's tensors
        return Sides({}, (), run, unfit="incumbent-unknown")
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    tensors = {n: v for n, v in named.items() if hasattr(v, "data_ptr")}
    own = {n: v for n, v in named.items() if n in tuner.arg_names and n not in tensors}
    if any(map(_hides_tensor, own.values())) or any(map(_may_hold_addresses, tensors.values())):
        return Sides({}, (), run, unfit=UNKNOWN)
    outputs = {n: v for n, v in tensors.items() if n in written}
    return Sides(outputs, tuple(v for n, v in tensors.items() if n not in written), run)


def _hides_tensor(value: object) -> bool:
    """Whether an argument that is not a tensor may refer to one, as a tensor descriptor does."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return not plain and type(value).__name__ not in ("dtype", "constexpr")


def _may_hold_addresses(tensor: Any) -> bool:  # noqa: ANN401 - as Triton's
    """Whether elements are as wide as an address, which a kernel may write to."""
    return str(getattr(tensor, "dtype", "")).endswith("int64")


def _programs(tuner: Any, named: Mapping[str, Any]) -> int:  # noqa: ANN401
    """Return how many programs a launch has under the first configuration; 0 if unknown."""
    grid = named.get("grid")
    try:
        if callable(grid):
            own = {k: v for k, v in named.items() if k not in ("grid", "warmup")}
            grid = grid({**own, **tuner.configs[0].all_kwargs()})
        return math.prod(int(each) for each in grid or ())
    except Exception:  # the server's own code, which fails in its own launch too
        return 0


def _key(tuner: Any, named: Mapping[str, Any]) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the key as ``Autotuner.run`` computes it."""
    own = {name: value for name, value in named.items() if name in tuner.arg_names}
    key = [own[name] for name in tuner.keys if name in own]
    key += [str(value.dtype) for value in own.values() if hasattr(value, "dtype")]
    return tuple(key)


def _resolved(tuner: Any, key: Any, tunable: Tunable, sized: SizeClass) -> None:  # noqa: ANN401
    chosen = tuner.cache.get(key) if isinstance(tuner.cache, dict) else None
    sized.how = "frozen"
    if chosen is None:  # this launch makes the choice, unless another has a right to it
        tunable.first = sized.axes["elements"]
    else:
        sized.config = words_of(chosen)
    first = tunable.first
    sized.detail = f"asked once at elements<={first}" if first is not None else "asked before"


def words_of(config: Any) -> dict[str, Any]:  # noqa: ANN401 - a triton.Config
    """Return a configuration of Triton as JSON data."""
    found: dict[str, Any] = {"kwargs": dict(config.kwargs)}
    found |= {name: getattr(config, name, None) for name in _NUMBERS}
    found["maxnreg"] = getattr(config, "maxnreg", None)
    return found


_MADE: dict[int, tuple[Config, Any]] = {}
"""Triton's configurations by the identity of their words, which are kept alive with them."""


def config_of(words: Config, *, declared: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - a triton.Config
    """Return Triton's configuration; the same object for the same words.

    `declared` are the kernel's own configurations: one with the same constants has the hook that
    must run before the launch, and the code that replaces the kernel's.
    """
    made = _MADE.get(id(words))
    if made is None:
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        made = _MADE[id(words)] = (words, _config(words))
        own = next((each for each in declared if each.kwargs == made[1].kwargs), None)
        for name in ("pre_hook", "ir_override"):
            if own is not None and getattr(own, name, None) is not None:
                setattr(made[1], name, getattr(own, name))
    return made[1]


def _config(words: Config) -> Any:  # noqa: ANN401 - a triton.Config
    module = sys.modules[MODULE]
    numbers = {name: words[name] for name in _NUMBERS if words.get(name) is not None}
    if words.get("maxnreg") is not None:
        numbers["maxnreg"] = words["maxnreg"]
    return module.Config(dict(words.get("kwargs", {})), **numbers)


def _launch(
    tuner: Any,  # noqa: ANN401 - an Autotuner
    config: Any,  # noqa: ANN401 - a triton.Config
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:  # noqa: ANN401 - as Triton's
    """Launch with a configuration as ``Autotuner.run`` does once it has chosen."""
    if config.pre_hook is not None:
        named = dict(zip(tuner.arg_names, args, strict=False))
        config.pre_hook({**named, **kwargs, **config.all_kwargs()})
    tuner.best_config = config  # as `Autotuner.run` sets it; servers read it
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def _source(tuner: Any, base: Any) -> str:  # noqa: ANN401
    """Return the kernel's source, also where Triton's interpreter keeps none."""
    jit = tuner.fn
    while jit is not None and not hasattr(jit, "src"):
        jit = getattr(jit, "fn", None)
    found = getattr(jit, "src", "")
    if found:
        return str(found)
    try:
        return inspect.getsource(base)
    except (OSError, TypeError):
        return str(getattr(base, "__qualname__", ""))


def _made(tuner: Any, key: tuple[Any, ...]) -> Tunable:  # noqa: ANN401
    base = tuner.base_fn
    configs = [words_of(each) for each in tuner.configs]
    source = _source(tuner, base)

    def check(config: Config) -> None:
        if not any(config.get("kwargs") == each["kwargs"] for each in configs):
            detail = "its constants are not those of a configuration that the kernel declares"
            raise Refused("config-unknown", detail=detail)
        numbers = ((config.get(name), fit) for name, fit in _LEGAL.items())
        if not all(type(value) is int and value in fit for value, fit in numbers):
            detail = "warps, stages or blocks of a cluster are not numbers that Triton takes"
            raise Refused("config-unknown", detail=detail)

    def warm(table: Table) -> None:
        tunable.written = written_by(source)
        recipes = list(tunable.recipes.values())
        for rule in table.rules:
            fitting = [each for each in recipes if rule.matches(each["axes"])]
            if not fitting:
                detail = "no launch that the rule matches was described, so none can be compiled"
                raise Refused("rule-not-described", detail=detail)
            for recipe in fitting:
                _compile(tuner, recipe, config_of(rule.config, declared=tuner.configs))

    tunable = Tunable(
        "autotune",
        kernel=base.__name__,
        module=base.__module__,
        source=digest_of_text(source + repr(configs)),
        geometry={"key": [str(each) for each in key]},
        axes=AXES,
        space={"configs": configs},
        check=check,
        warm=warm,
    )
    return tunable


def _recipe(
    tuner: Any,  # noqa: ANN401
    tunable: Tunable,
    named: Mapping[str, Any],
    axes: Mapping[str, int],
) -> dict[str, Any]:
    """Describe a launch so that an experiment can repeat it on private tensors."""
    budget = tunable.data_budget
    own = {k: v for k, v in named.items() if k not in ("grid", "warmup")}
    grid = named.get("grid")
    grids = []
    for config in tuner.configs:
        numbers = grid({**own, **config.all_kwargs()}) if callable(grid) else grid
        grids.append([int(each) for each in numbers or ()])
    chosen = tuner.cache.get(_key(tuner, named))
    return {
        "tunable": tunable.id,
        "family": "autotune",
        "module": tunable.module,
        "name": tunable.kernel,
        "axes": dict(axes),
        "call": {
            "arguments": [[name, spec_of(value, budget=budget)] for name, value in own.items()],
            "configs": [words_of(each) for each in tuner.configs],
            "grids": grids,
            "in_force": words_of(chosen) if chosen is not None else None,
            "reset_to_zero": list(tuner.reset_to_zero),
            "restore_value": list(tuner.restore_value),
        },
    }


def _compile(tuner: Any, recipe: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Compile a configuration for a recorded launch; nothing is launched."""
    torch = sys.modules["torch"]
    named: dict[str, Any] = {}
    for name, spec in recipe["call"]["arguments"]:
        if "tensor" in spec:
            dtype = getattr(torch, spec["tensor"]["dtype"])
            named[name] = Pointer(dtype)
        elif "value" in spec:
            named[name] = spec["value"]
        elif "number" in spec:
            named[name] = float(spec["number"])
        elif "dtype" in spec:
            named[name] = dtype_of(spec["dtype"])
        else:
            detail = f"argument {name} is a {spec.get('unsupported')}"
            raise Refused("inputs-unsupported", detail=detail)
    tuner.fn.run(**named, grid=(1,), warmup=True, **config.all_kwargs())


def dtype_of(name: str) -> Any:  # noqa: ANN401 - an element type
    """Return an element type of Triton, else of PyTorch, by the name that it prints."""
    spelled = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    for module in ("triton.language", "torch"):
        found = getattr(sys.modules.get(module), spelled.get(name, name), None)
        if type(found).__name__ == "dtype":
            return found
    raise Refused("inputs-unsupported", detail=f"no element type is called {name:.40}")
