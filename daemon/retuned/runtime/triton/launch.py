"""Launch of a Triton variant; the lab and the server use this same code.

A variant has one or several launches, with shared scratch. Outputs are arguments; nothing is
returned.

Each parameter of the entry is bound by name. A tensor of the definition (inputs, then outputs).
``scratch``, a separate float32 workspace of the launch. An axis, as a compile-time constant if it
is annotated ``tl.constexpr``, otherwise as an int32. Anything else is a constexpr parameter of the
variant. ``num_warps``, ``num_stages`` and AMD's options are passed to the compiler.

Compiled code depends only on the lengths of constexpr axes: other lengths are not specialised on
their value, and every tensor is 16-byte aligned or refused. So it is known before a launch whether
its code exists, and a prepared launch never compiles.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retuned.runtime.schema import Refused, Tensor
from retuned.runtime.triton.bind import Binding, bind
from retuned.runtime.triton.contract import check_source
from retuned.runtime.triton.importer import import_source, needed, unspecialised
from retuned.runtime.triton.interpret import mend_interpreter
from retuned.runtime.triton.plan import Declared, plan_launches
from retuned.runtime.triton.precompiled import Shipped

Launch = Callable[[Sequence[Tensor]], None]
"""Launches once at fixed lengths; inputs then outputs."""

Compiled = tuple[int, tuple[int, ...]]
"""Device index and lengths of the constexpr axes."""

_TRITON_TYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "i1",
}
_ALIGN = 16
_MAX_INT32 = 2**31 - 1
_KEPT = 256
"""Lengths whose launch is cached; beyond it the cache is cleared."""


class TritonKernel:
    """One checked and imported source with its parameters.

    Parameters
    ----------
    source
        Text of the file; checked here again.
    tensors
        Names of inputs, then outputs, in the definition's order.
    shipped
        Compiled code delivered with the artifact; None where there is none, as in the lab.

    Raises
    ------
    Refused
        ``contract-violated``, ``grid-invalid``, or ``triton-missing``.
    """

    def __init__(
        self,
        source: str,
        *,
        entry: str,
        params: Mapping[str, int | str],
        grid: Sequence[str],
        tensors: Sequence[str],
        axes: Sequence[str],
        scratch_bytes: int = 0,
        shipped: Shipped | None = None,
    ) -> None:
        self._shipped = shipped
        signature = check_source(source, entry=entry)
        self.binding: Binding = bind(
            signature,
            params=params,
            grid=grid,
            tensors=tensors,
            axes=axes,
            scratch_bytes=scratch_bytes,
        )
        self._triton = needed("triton")
        self._torch = needed("torch")
        module, folder = import_source(source)
        self._jit = self._specialise_nothing(getattr(module, entry))
        self.interpreted = not isinstance(self._jit, self._triton.runtime.JITFunction)
        """True under ``TRITON_INTERPRET=1``: launches run in Python, also on CPU tensors."""
        if self.interpreted:
            mend_interpreter()
        self._compiled: dict[Compiled, Any] = {}
        self._ready: dict[tuple[int, ...], Launch] = {}
        # explicit, because the default differs between versions of Triton
        self._options = {"enable_fp_fusion": True, **self.binding.options}
        self.scratch_floats = -(-scratch_bytes // 4)
        """Workspace of one launch, in float32 elements."""
        self._limited = getattr(self._torch.version, "hip", None) is not None
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Run once on the current stream; compiles if `prepare` has not.

        Parameters
        ----------
        tensors
            Inputs then outputs: contiguous, 16-byte aligned, all on one device.

        Raises
        ------
        Refused
            As `prepare`, or ``tensor-unaligned``.
        """
        ready = self._ready.get(tuple(lengths))
        if ready is None:
            device = tensors[0].device
            dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
            self.prepare(lengths, dtypes=dtypes, device=device)
            ready = self.at(lengths, device=device)
            if len(self._ready) >= _KEPT:
                self._ready.clear()
            self._ready[tuple(lengths)] = ready
        ready(tensors)

    def is_prepared(self, lengths: Sequence[int], *, device: Any) -> bool:  # noqa: ANN401 - torch.device
        """Whether a launch at these lengths would run without compiling."""
        return self.interpreted or self._key(lengths, device) in self._compiled

    def compiled_at(self, lengths: Sequence[int], *, device: Any) -> Any | None:  # noqa: ANN401 - torch.device
        """Return Triton's own compiled kernel for these lengths; None if it was not prepared."""
        return self._compiled.get(self._key(lengths, device))

    def prepare(self, lengths: Sequence[int], *, dtypes: Sequence[str], device: Any) -> None:  # noqa: ANN401 - torch.device
        """Compile and load what a launch at these lengths needs, without a launch.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``grid-invalid``, ``lengths-too-large``, or as
            `Shipped.compiled`.
        """
        self.binding.grid_at(lengths)
        if self.interpreted:
            return
        key = self._key(lengths, device)
        if key in self._compiled:
            return
        with self._torch.cuda.device(key[0]):
            self._compiled[key] = self.compile_at(lengths, dtypes=dtypes, load=True)

    def compile_at(
        self, lengths: Sequence[int], *, dtypes: Sequence[str], load: bool = False
    ) -> Any:  # noqa: ANN401 - triton.CompiledKernel
        """Compile for the device of Triton's driver, as for every launch.

        Parameters
        ----------
        load
            Whether to load the binary too, so that too much shared memory is detected now.

        Raises
        ------
        Refused
            ``compile-failed``, ``out-of-resources``, ``lengths-too-large``, or as
            `Shipped.compiled`.
        """
        values = [getattr(self._torch, name) for name in dtypes]
        args = self.binding.arguments(lengths, tensors=values, scratch=self._torch.float32)
        return self._compile(args, load=load)

    def cross_compile(
        self,
        target: Any,  # noqa: ANN401
        lengths: Sequence[int],
        *,
        dtypes: Sequence[str],
    ) -> Any:  # noqa: ANN401 - triton.CompiledKernel
        """Compile for a device that need not be in this machine, as `prepare` would there.

        Parameters
        ----------
        target
            A ``triton.backends.compiler.GPUTarget``.
        dtypes
            Element types of inputs, then outputs.

        Raises
        ------
        Refused
            ``compile-failed``, or ``interpreted`` under ``TRITON_INTERPRET=1``.
        """
        if self.interpreted:
            raise Refused("interpreted", detail="unset TRITON_INTERPRET to compile")
        pointers = ["*" + _TRITON_TYPES[name] for name in dtypes]
        binding = self.binding
        args = binding.arguments(lengths, tensors=pointers, scratch="*fp32")
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        aligned: dict[tuple[int, ...], Any] = {}
        for place, (parameter, value) in enumerate(zip(binding.parameters, args, strict=True)):
            if parameter.constexpr:
                signature[parameter.name] = "constexpr"
                constants[(place,)] = value
            elif isinstance(value, str):
                signature[parameter.name] = value
                aligned[(place,)] = [["tt.divisibility", _ALIGN]]
            else:
                signature[parameter.name] = "i32"
        compiler = self._triton.compiler
        try:
            source = compiler.ASTSource(self._jit, signature, constants, aligned)
            return compiler.compile(source, target=target, options=self._options)
        except Exception as error:  # as in _compile
            detail = f"{type(error).__name__}: {str(error)[-1500:]}"
            raise Refused("compile-failed", detail=detail) from error

    def at(self, lengths: Sequence[int], *, device: Any) -> Launch:  # noqa: ANN401 - torch.device
        """Return a function that launches at these lengths on a device; they must be prepared.

        Raises
        ------
        Refused
            ``not-prepared``.
        """
        grid = self.binding.grid_at(lengths)
        if self.interpreted:
            runner = self._jit[grid]
        else:
            compiled = self._compiled.get(self._key(lengths, device))
            if compiled is None:
                raise Refused("not-prepared", detail=f"nothing is compiled for {tuple(lengths)}")
            runner = compiled[grid]
        template, places = self.binding.template(lengths)
        scratch_at, align, limited = self.binding.scratch_at, _ALIGN, self._limited
        floats, empty, f32 = self.scratch_floats, self._torch.empty, self._torch.float32

        def launch(tensors: Sequence[Tensor]) -> None:
            args = template.copy()
            for place, index in places:
                tensor = tensors[index]
                if tensor.data_ptr() % align or (limited and _too_large(tensor)):
                    raise Refused("tensor-unaligned", detail=f"tensor {index} or its size")
                args[place] = tensor
            if scratch_at is not None:
                args[scratch_at] = empty(floats, dtype=f32, device=tensors[0].device)
            runner(*args)

        if self.interpreted or self._torch.cuda.device_count() == 1:
            return launch
        return self._on_device(launch, device)

    def _on_device(self, launch: Launch, device: Any) -> Launch:  # noqa: ANN401 - torch.device
        cuda = self._torch.cuda

        def guarded(tensors: Sequence[Tensor]) -> None:
            if cuda.current_device() == device.index:
                launch(tensors)
                return
            with cuda.device(device):
                launch(tensors)

        return guarded

    def _compile(self, args: Sequence[object], *, load: bool) -> Any:  # noqa: ANN401
        def compile_it() -> Any:  # noqa: ANN401 - triton.CompiledKernel
            return self._jit.warmup(*args, grid=(1,), **self._options)

        try:
            shipped = self._shipped
            compiled = compile_it() if shipped is None else shipped.compiled(compile_it)
            if load:
                compiled._init_handles()
        except Refused:
            raise
        except Exception as error:  # a compiler on untrusted source may raise anything
            reason = "out-of-resources" if "OutOfResources" in repr(type(error)) else ""
            detail = f"{type(error).__name__}: {str(error)[-1500:]}"
            raise Refused(reason or "compile-failed", detail=detail) from error
        return compiled

    def _specialise_nothing(self, function: Any) -> Any:  # noqa: ANN401 - JITFunction
        """Rebuild the entry so that run-time lengths 1 and 16 compile to the code of all others."""
        return unspecialised(function, self.binding.runtime_axes)

    def _key(self, lengths: Sequence[int], device: Any) -> Compiled:  # noqa: ANN401 - torch.device
        return device.index or 0, self.binding.specialisation(lengths)


def _too_large(tensor: Tensor) -> bool:
    """Whether AMD's 32-bit buffer offsets, which compiled code assumes, do not reach its end."""
    return int(tensor.numel() * tensor.element_size()) > _MAX_INT32


class TritonSteps:
    """One checked and imported variant: all of its launches.

    Parameters are those of `plan_launches`, and the compiled code delivered with the artifact.

    Raises
    ------
    Refused
        As `plan_launches`, or ``triton-missing``.
    """

    def __init__(
        self,
        source: str,
        *,
        entry: str,
        params: Mapping[str, int | str],
        grid: Sequence[str],
        tensors: Sequence[str],
        axes: Sequence[str],
        scratch_bytes: int = 0,
        steps: Declared = (),
        scratch: Declared = (),
        shipped: Shipped | None = None,
    ) -> None:
        self.plan = plan_launches(
            source,
            entry=entry,
            params=params,
            grid=grid,
            tensors=tensors,
            axes=axes,
            scratch_bytes=scratch_bytes,
            steps=steps,
            scratch=scratch,
        )
        names = [*tensors, *(each.name for each in self.plan.scratch)]
        self.kernels = tuple(
            TritonKernel(
                source,
                entry=step.entry,
                params=step.params,
                grid=step.grid,
                tensors=names,
                axes=axes,
                scratch_bytes=scratch_bytes,
                shipped=shipped,
            )
            for step in self.plan.steps
        )
        self._tensors = len(tensors)
        self._torch = __import__("torch")  # TritonKernel has refused if it is missing
        self._ready: dict[tuple[int, ...], Launch] = {}

    @property
    def interpreted(self) -> bool:
        return self.kernels[0].interpreted

    def is_prepared(self, lengths: Sequence[int], *, device: Any) -> bool:  # noqa: ANN401 - torch.device
        return all(kernel.is_prepared(lengths, device=device) for kernel in self.kernels)

    def prepare(self, lengths: Sequence[int], *, dtypes: Sequence[str], device: Any) -> None:  # noqa: ANN401 - torch.device
        """Compile and load every step, without a launch.

        Parameters
        ----------
        dtypes
            Element types of inputs, then outputs.

        Raises
        ------
        Refused
            As `TritonKernel.prepare`, ``scratch-invalid`` or ``scratch-too-large``.
        """
        self.plan.check_at(lengths)
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        for kernel in self.kernels:
            kernel.prepare(lengths, dtypes=every, device=device)

    def compile_at(self, lengths: Sequence[int], *, dtypes: Sequence[str]) -> list[Any]:
        """Compile every step as `prepare` would, without loading; see `TritonKernel.compile_at`."""
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        return [kernel.compile_at(lengths, dtypes=every) for kernel in self.kernels]

    def cross_compile(
        self,
        target: Any,  # noqa: ANN401 - triton.backends.compiler.GPUTarget
        lengths: Sequence[int],
        *,
        dtypes: Sequence[str],
    ) -> list[Any]:
        """Compile every step for a device that need not be in this machine; see `TritonKernel`."""
        every = [*dtypes, *(each.dtype for each in self.plan.scratch)]
        return [kernel.cross_compile(target, lengths, dtypes=every) for kernel in self.kernels]

    def at(self, lengths: Sequence[int], *, device: Any) -> Launch:  # noqa: ANN401 - torch.device
        """Return a function that launches every step; tensors are inputs, outputs, then scratch.

        Raises
        ------
        Refused
            ``not-prepared``, or as `Plan.check_at`.
        """
        self.plan.check_at(lengths)
        launches = [kernel.at(lengths, device=device) for kernel in self.kernels]
        zeroed = [
            self._tensors + index for index, each in enumerate(self.plan.scratch) if each.zeroed
        ]
        if len(launches) == 1 and not zeroed:
            return launches[0]
        byte = self._torch.uint8  # not every PyTorch fills 8-bit floats

        def launch(tensors: Sequence[Tensor]) -> None:
            for index in zeroed:
                tensors[index].view(byte).zero_()
            for each in launches:
                each(tensors)

        return launch

    def launch(self, tensors: Sequence[Tensor], lengths: Sequence[int]) -> None:
        """Run all steps once.

        Compiles if `prepare` has not, and allocates scratch that is not passed.

        Raises
        ------
        Refused
            As `prepare`, or ``tensor-unaligned``.
        """
        device = tensors[0].device
        ready = self._ready.get(tuple(lengths))
        if ready is None:
            given = tensors[: self._tensors] if self.plan.scratch else tensors
            dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in given]
            self.prepare(lengths, dtypes=dtypes, device=device)
            ready = self.at(lengths, device=device)
            if len(self._ready) >= _KEPT:
                self._ready.clear()
            self._ready[tuple(lengths)] = ready
        if self.plan.scratch and len(tensors) == self._tensors:
            tensors = [*tensors, *self.spaces(lengths, device=device)]
        ready(tensors)

    def spaces(self, lengths: Sequence[int], *, device: Any) -> list[Tensor]:  # noqa: ANN401 - torch.device
        """Return new, uninitialised scratch."""
        torch = self._torch
        return [
            torch.empty(size // each.item_bytes, dtype=getattr(torch, each.dtype), device=device)
            for size, each in zip(self.plan.sizes_at(lengths), self.plan.scratch, strict=True)
        ]
