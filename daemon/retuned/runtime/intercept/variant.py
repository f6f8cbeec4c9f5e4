"""Variant that replaces launches of one of the server's kernels, in place.

It writes where the server's launch would have written. Nothing is compiled while serving: observed
launches are compiled when the variant is prepared, later ones by the control thread; until then the
server's code runs. The first launch of every shape bucket, and later sampled ones, are checked; in
those the server's own code serves.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from retuned.runtime.artifacts.artifact import Artifact
from retuned.runtime.artifacts.loaded import NOT_COMPILED
from retuned.runtime.core.active_order import Ineligible, Launch
from retuned.runtime.intercept.call import GridNumbers, LaunchCall, LaunchOutcome
from retuned.runtime.intercept.checked_launch import (
    DetachedLaunch,
    detached_launch,
    inputs_sum,
    stored_to,
)
from retuned.runtime.intercept.compiled import MAX_CODES, Code, Ready, Signature
from retuned.runtime.intercept.plan import Plan, raw_of
from retuned.runtime.intercept.registry import Kernel
from retuned.runtime.intercept.rules import LaunchRule
from retuned.runtime.schema import Key, Refused
from retuned.runtime.triton.contract import check_source
from retuned.runtime.triton.importer import import_source
from retuned.runtime.triton.precompiled import Shipped

log = logging.getLogger(__name__)

MAX_PENDING = 64
"""Codes queued for compiling; a later launch queues a code again that did not fit."""
MAX_FAILED = 1024
"""Codes remembered that could not be compiled; beyond it the record is cleared."""
MAX_PLANS = 64
"""Kernels of one identity and source that one variant follows; a server may recreate kernels."""
_Asked = tuple[Signature, tuple[Any, ...], dict[str, Any]]
_UNBOUND = Ineligible("arguments")
_OTHER = Ineligible("other-arguments")
_TOO_MANY = Ineligible("too-many-kernels")


class KernelVariant:
    """One artifact with an ``intercept`` block, ready for launches.

    Parameters
    ----------
    artifact
        Verified.
    kernels
        Returns the kernels that go through the slot now.

    Raises
    ------
    Refused
        ``language-unsupported``, ``contract-violated``, ``launch-mismatch``, ``grid-invalid``,
        ``kernel-unseen`` or ``compile-failed``.
    """

    def __init__(
        self, artifact: Artifact, rule: LaunchRule, *, kernels: Callable[[], list[Kernel]]
    ) -> None:
        if artifact.language != "triton" or artifact.steps or artifact.scratch:
            raise Refused("language-unsupported", detail="the variant must be one Triton launch")
        self._artifact = artifact
        self._rule = rule
        self._kernels = kernels
        self._shipped = Shipped(artifact.precompiled)
        self._source = ""
        self._module: ModuleType | None = None
        if not rule.live:
            self._load()
        self._plans: dict[Kernel, Plan] = {}
        self._pending: dict[tuple[Kernel, Code], _Asked] = {}
        self._met: dict[Kernel, None] = {}
        self._refused: dict[Kernel, Ineligible] = {}
        self._failed: set[tuple[Kernel, Code]] = set()
        self._torch = sys.modules.get("torch")
        self.elsewhere = _elsewhere(self._torch)
        """Whether the current device is not the variant's; None if there is only one device."""

    def _load(self) -> None:
        try:
            self._source = self._artifact.binary.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused("contract-violated", detail="the source is not UTF-8") from error
        check_source(self._source, entry=self._artifact.entry)
        self._module, _ = import_source(self._source)

    def counts(self) -> dict[str, int]:
        return self._shipped.tally.as_json()

    # --- off the request path ---------------------------------------------------------------------

    def prepare_seen(self) -> int:
        """Compile for all described launches; return for how many signatures.

        Raises
        ------
        Refused
            ``kernel-unseen`` if no such launch was observed.
        """
        made = sum(self._prepare_kernel(kernel) for kernel in self._kernels())
        if not any(plan.ready for plan in self._plans.values()):
            raise Refused(
                "kernel-unseen",
                detail=f"no launch of {self._rule.kernel[:120]} fits the variant; "
                "order again when there is traffic",
            )
        return made

    @property
    def pending(self) -> int:
        return len(self._met) + len(self._pending)

    def prepare_pending(self) -> int:
        """Compile one pending kernel or code; return how many were compiled."""
        kernel = next(iter(list(self._met)), None)
        if kernel is not None:
            return self._prepare_met(kernel)
        asked = next(iter(list(self._pending)), None)
        if asked is None:
            return 0
        signature, raw, options = self._pending[asked]
        kernel, made = asked[0], 0
        try:
            plan = self._plan(kernel)
            if plan.codes.count >= MAX_CODES:
                raise Refused("too-many-codes", detail=f"{MAX_CODES} are compiled")
            plan.codes.compile(signature, raw, options)
            made = 1
        except Refused as error:
            if len(self._failed) >= MAX_FAILED:
                self._failed.clear()
            self._failed.add(asked)
            log.warning("%s: a launch keeps the server's code: %s", kernel.name, error)
        self._pending.pop(asked, None)
        return made

    def _prepare_kernel(self, kernel: Kernel) -> int:
        plan, made = self._plan(kernel), 0
        for cell in kernel.cells():
            observation = cell.observation
            signature = plan.seen(observation) if observation is not None else None
            if observation is None or signature is None or signature in plan.ready:
                continue
            plan.codes.compile(signature, observation.raw, observation.given)
            made += 1
        return made

    def _prepare_met(self, kernel: Kernel) -> int:
        """Do the same for a kernel that was created after the swap."""
        try:
            return self._prepare_kernel(kernel)
        except Refused as error:
            self._refused[kernel] = Ineligible(error.reason)
            log.warning("%s: its launches keep the server's code: %s", kernel.name, error)
            return 0
        finally:
            self._met.pop(kernel, None)

    def launches(self) -> list[dict[str, Any]]:
        return [
            {
                "kernel": kernel.name,
                "signature": [str(part)[:80] for part in signature],
                "launches": ready.count,
            }
            for kernel, plan in list(self._plans.items())
            for signature, ready in list(plan.ready.items())
        ]

    def _plan(self, kernel: Kernel) -> Plan:
        plan = self._plans.get(kernel)
        if plan is None:
            plan = self._plans[kernel] = Plan(
                kernel,
                self._rule,
                spec=self._artifact.spec,
                params=self._artifact.params,
                grid=self._artifact.grid,
                entry=None if self._rule.live else self._artifact.entry,
                module=self._module,
                source=self._source,
                shipped=self._shipped,
            )
        return plan

    def ready_for(self, plan: Plan, call: LaunchCall, signature: Signature) -> Ready | None:
        """Return the code of a signature; if there is none, queue it for compiling.

        Raises
        ------
        TypeError
            If an option is not a plain value.
        """
        known = plan.ready.get(signature)
        if known is not None:
            return known
        raw, options = raw_of(call), call.options()
        code = plan.codes.code_of(signature, raw, options)
        ready = plan.codes.derived(signature, code)
        asked = (call.kernel, code)
        if ready is None and asked not in self._failed and len(self._pending) < MAX_PENDING:
            self._pending[asked] = (signature, raw, options)
        return ready

    # --- launches ---------------------------------------------------------------------------------

    def launcher(self, key: Key) -> Launch:
        """Return a function that launches in place of the server's code."""

        def launch(inputs: tuple[Any, ...]) -> Any:  # noqa: ANN401 - the launch, or Ineligible
            call: LaunchCall = inputs[0]
            try:
                values = call.values()
            except ValueError:
                return _UNBOUND
            if call.spare is not None:  # timed after its check: the server has its result already
                return self._run(call, call.spare, key=key, serve=False)
            return self._run(call, values, key=key, serve=True)

        return launch

    def checked_launcher(self, key: Key) -> Launch:
        """Return a function that launches into copies, and the server's code into other copies."""

        def launch(inputs: tuple[Any, ...]) -> Any:  # noqa: ANN401 - copies, or Ineligible
            call: LaunchCall = inputs[0]
            plan = self._plans.get(call.kernel)
            if plan is None:
                return self._unplanned(call.kernel)
            problem = plan.signature(call)
            if isinstance(problem, Ineligible):
                return problem
            copies = stored_to(call.values(), plan.stores)
            if isinstance(copies, Ineligible):
                return copies
            values, ours = copies.make()
            problem = self._run(call, values, key=key, serve=False)
            if isinstance(problem, Ineligible):
                return problem
            call.spare = values
            values, theirs = copies.make()
            call.run_on(values)
            call.reference[:] = theirs
            return ours

        return launch

    def detached(self, key: Key, inputs: tuple[Any, ...]) -> DetachedLaunch | None:
        call: LaunchCall = inputs[0]
        plan = self._plans.get(call.kernel)
        try:
            if plan is None or isinstance(plan.signature(call), Ineligible):
                return None
            run = partial(self._run, call, key=key, serve=False)
            return detached_launch(call, plan.stores, run=run)
        except ValueError:  # arguments that do not bind
            return None

    def refuses(self, key: Key, inputs: tuple[Any, ...]) -> Ineligible | None:
        """Return why the server's code must run a launch; None if the variant may."""
        call: LaunchCall = inputs[0]
        try:
            call.values()
        except ValueError:
            return _UNBOUND
        decided = self._decide(call, key)
        return decided if isinstance(decided, Ineligible) else None

    def fingerprint(self, inputs: tuple[Any, ...]) -> object:
        """Return a checksum of what the launch must not write to.

        0 if the variant does not take it.
        """
        call: LaunchCall = inputs[0]
        plan = self._plans.get(call.kernel)
        if plan is None or isinstance(stored_to(call.values(), plan.stores), Ineligible):
            return 0
        return inputs_sum(call.values(), plan.stores)

    def capturing(self) -> Callable[[], bool] | None:
        """Return a function that checks whether the current stream is captured.

        None without a GPU.
        """
        if self._torch is None or not self._torch.cuda.is_available():
            return None
        capturing: Callable[[], bool] = self._torch.cuda.is_current_stream_capturing
        return capturing

    def _unplanned(self, kernel: Kernel) -> Ineligible:
        """Queue a kernel without a plan: it was created after the swap."""
        refused = self._refused.get(kernel)
        if refused is not None:
            return refused
        if len(self._plans) >= MAX_PLANS:
            return _TOO_MANY
        if len(self._met) < MAX_PENDING:
            self._met[kernel] = None
        return NOT_COMPILED

    def _run(self, call: LaunchCall, values: Sequence[Any], *, key: Key, serve: bool) -> Any:  # noqa: ANN401
        decided = self._decide(call, key)
        if isinstance(decided, Ineligible):
            return decided
        plan, ready, grid = decided
        plan.launch(ready, call, values, grid)
        if serve:
            ready.count += 1
            call.result = ready.compiled
            call.ran = LaunchOutcome(self, plan, ready, key, grid)
        return call

    def _decide(self, call: LaunchCall, key: Key) -> tuple[Plan, Ready, GridNumbers] | Ineligible:
        plan = self._plans.get(call.kernel)
        if plan is None:
            return self._unplanned(call.kernel)
        if self.elsewhere is not None and self.elsewhere():
            return Ineligible("other-device")
        signature = plan.signature(call)
        if isinstance(signature, Ineligible):
            return signature
        try:
            ready = self.ready_for(plan, call, signature)
        except TypeError:  # an option that is not a plain value
            return _UNBOUND
        if ready is None:
            return NOT_COMPILED
        problem = plan.hindrance(call)
        if problem is None and not plan.geometry.fits(call, ready, key):
            problem = _OTHER
        grid = problem or plan.geometry.grid(call, ready, key)
        return grid if isinstance(grid, Ineligible) else (plan, ready, grid)


def _elsewhere(torch: Any) -> Callable[[], bool] | None:  # noqa: ANN401 - the module or None
    if torch is None or torch.cuda.device_count() <= 1:
        return None
    current = torch.cuda.current_device
    device = current()
    return lambda: bool(current() != device)
