"""Lab child process, separate from the daemon so that the daemon stays responsive.

The child is ``python -m retuned.experiment``, the same program that a pod runs. It dies with the
daemon. A killed experiment resumes from the stored findings.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from retuned.contract import Digest, Record, Solution
from retuned.errors import HarnessError, TemporaryError
from retuned.experiment.messages import EarlierRecord, FindingRecord, LabTask, read_line
from retuned.lab.generators.evolve import EvolveConfig
from retuned.lab.generators.priors import Priors
from retuned.lab.generators.transfer import Earlier
from retuned.ports import Bench, Finding
from retuned.stages.experiment import ExperimentPlan, Turn

_LIBC = ctypes.CDLL(None)  # found before any fork: the loader's lock may be held at that moment
_PR_SET_PDEATHSIG = 1
_NICE = 10
"""The lab yields its core to other processes."""
_LONGEST_LINE_BYTES = 32 << 20
"""Of one finding; the lab runs untrusted code, so its output is untrusted."""


class LabProcess:
    """Runs each plan in a child process.

    `cores` returns, before each plan, the cores for experiments. `solution` and `definition` find
    incumbents and users' definitions outside the catalog. `earlier` returns findings of other
    experiments on the operator, `priors` the priors of its kernels. `builder` builds artifacts,
    which needs no isolation of time. `evolve` of None uses no language model.
    `unconfined_references` allows users' references behind the static check only.
    """

    def __init__(
        self,
        root: Path,
        *,
        cores: Callable[[], Sequence[int]],
        solution: Callable[[Digest], Solution | None],
        builder: Bench,
        definition: Callable[[str], Record | None] = lambda _name: None,
        earlier: Callable[[ExperimentPlan], Sequence[Earlier]] = lambda _plan: (),
        priors: Callable[[ExperimentPlan], Priors | None] = lambda _plan: None,
        evolve: EvolveConfig | None = None,
        unconfined_references: bool = False,
    ) -> None:
        self._root = root
        self._cores = cores
        self._solution = solution
        self._builder = builder
        self._definition = definition
        self._earlier = earlier
        self._priors = priors
        self._evolve = evolve
        self._unconfined = unconfined_references
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, plan: ExperimentPlan, *, known: Mapping[Digest, Finding]) -> Iterator[Finding]:
        incumbent = self._solution(plan.incumbent)
        own = self._definition(plan.definition)
        task = LabTask(
            plan=plan,
            root=str(self._root),
            cores=tuple(self._cores()),
            known=tuple(map(FindingRecord.of, known.values())),
            solutions=(incumbent,) if incumbent is not None else (),
            earlier=tuple(map(EarlierRecord.wrap, self._earlier(plan))),
            priors=self._priors(plan),
            evolve=self._evolve,
            unconfined_references=self._unconfined,
        ).model_dump(mode="json")
        task["definitions"] = [own.model_dump(mode="json")] if own is not None else []
        child = self._start()
        try:
            yield from self._converse(child, json.dumps(task))
        except HarnessError as error:
            if self._stopped:  # it was stopped on request
                raise _stopped() from error
            raise
        finally:
            self._child = None
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None and not pipe.closed:
                    pipe.close()

    def build(self, solution: Solution) -> Path:
        return self._builder.build(solution)

    def evidence(self, digest: Digest) -> bytes | None:
        return self._builder.evidence(digest)

    def turns(self, plan: str) -> Sequence[Turn]:
        return self._builder.turns(plan)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            child = self._child
        if child is not None:
            child.kill()
        self._builder.stop()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise _stopped()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "retuned.experiment"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=_die_with_daemon,
            )
            return self._child

    def _converse(self, child: subprocess.Popen[bytes], task: str) -> Iterator[Finding]:
        assert child.stdin is not None, "stdin is a pipe"
        assert child.stdout is not None, "stdout is a pipe"
        try:
            child.stdin.write(task.encode())
            child.stdin.close()
        except BrokenPipeError as error:
            raise HarnessError("the lab's process died before it read its plan") from error
        while line := child.stdout.readline(_LONGEST_LINE_BYTES + 1):
            if len(line) > _LONGEST_LINE_BYTES:
                raise HarnessError(f"the lab's process wrote more than {_LONGEST_LINE_BYTES} bytes")
            finding = read_line(line)
            if finding is None:
                return
            yield finding
        raise HarnessError(f"the lab's process ended early with status {child.wait()}")


def _stopped() -> TemporaryError:
    return TemporaryError("the lab was stopped; the experiment is resumed later", delay_s=0.0)


def _die_with_daemon() -> None:
    """In the child, before it runs: an orphan must not keep a core busy."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(_NICE)
