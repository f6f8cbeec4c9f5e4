"""One server and its control side by side: started, asked, compared, switched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from benchmarks.gpu.clocking import ratio_interval
from benchmarks.gpu.live.answers import allowed_gap, check, same
from benchmarks.gpu.live.traffic import (
    Answered,
    Asked,
    Played,
    endless,
    play,
    play_together,
    requests_of,
)

from retuned.demo.processes import Child
from retuned.demo.traffic import Phase
from retuned.runtime_client.client import RuntimeSocket

_START_S = 240.0
_TOGETHER = 12
"""Requests of an exact comparison."""


class Stage:
    """A server with Retuned in it and one without, of the same model.

    Parameters
    ----------
    folder
        State, traces, sockets and logs.
    mode
        ``eager`` or ``graphs``.
    device, model
        As the server's.
    in_flight
        Requests at a time.
    """

    def __init__(self, folder: Path, *, mode: str, device: str, model: str, in_flight: int) -> None:
        self.folder = folder
        self.mode = mode
        self.model = model
        self.in_flight = in_flight
        self._device = device
        for name in ("traces", "sockets", "state"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.swapper = RuntimeSocket(folder / "sockets")
        self.urls: dict[str, str] = {}
        self.answers: list[Answered] = []
        """Everything that the server with Retuned has answered."""
        self._own: list[Answered] = []

    def start(self, stack: ExitStack, *, cores: Sequence[int]) -> dict[str, float]:
        """Start both; return seconds until each took requests."""
        self.server = self._child(stack, "server", cores, traced=True, off=False)
        self.control = self._child(stack, "control", cores, traced=False, off=True)
        ready: dict[str, float] = {}
        for name, child in (("server", self.server), ("control", self.control)):
            said = child.answer(timeout_s=_START_S)
            self.urls[name] = f"http://127.0.0.1:{said['port']}"
            ready[name] = said["ready_s"]
        self.windows(on=False)
        return ready

    def _child(
        self, stack: ExitStack, name: str, cores: Sequence[int], *, traced: bool, off: bool
    ) -> Child:
        words = [
            *("-m", "benchmarks.gpu.live.server", "--mode", self.mode),
            *("--device", self._device, "--model", self.model),
            *("--max-running", str(self.in_flight)),
        ]
        if traced:
            words += ["--trace-dir", str(self.folder / "traces")]
        env = {"RETUNED_RUNTIME": "off"}
        if not off:
            words += ["--socket-dir", str(self.folder / "sockets")]
            env = {"RETUNED_RUNTIME": "on", "RETUNED_TRITON": "on"}
        child = Child(name, words, log_dir=self.folder, cores=cores, env=env)
        return stack.enter_context(child)

    # --- asking -----------------------------------------------------------------------------------

    def play(self, side: str, phase: Phase, count: int, *, seed: int) -> Played:
        """Send a list of requests to one side, and keep what came."""
        requests = requests_of(phase, count, model=self.model, seed=seed)
        return self._kept(side, play(self.urls[side], requests, in_flight=self.in_flight))

    def together(self, side: str, *, seed: int) -> Played:
        """Send requests of both phases that the server composes into the same batches each time."""
        return self._kept(side, play_together(self.urls[side], self._mixed(seed)))

    def _mixed(self, seed: int) -> list[Asked]:
        sources = [endless(phase, model=self.model, seed=seed) for phase in Phase]
        return [next(sources[n % 2]) for n in range(min(_TOGETHER, self.in_flight))]

    def _kept(self, side: str, played: Played) -> Played:
        (self._own if side == "control" else self.answers).extend(played.answers)
        return played

    def windows(self, *, on: bool) -> None:
        """Have the server take profiler windows, or no more."""
        answer = httpx.post(f"{self.urls['server']}/live/windows", json={"on": on}, timeout=30)
        answer.raise_for_status()

    def steps(self, side: str = "server") -> dict[str, Any]:
        """Return decode steps by bucket."""
        found: dict[str, Any] = httpx.get(f"{self.urls[side]}/live/steps", timeout=30).json()
        return found

    def new_windows(self, since: float) -> list[Path]:
        """Return the profiler windows that were written since (wall clock), oldest first."""
        found = (self.folder / "traces").glob("*.gz")
        return sorted(path for path in found if path.stat().st_mtime >= since)

    def fresh_windows(self, phase: Phase, *, count: int, requests: int) -> list[Path]:
        """Serve a phase until so many profiler windows of it are written.

        The first that lands is left out: it may have begun in other traffic.
        """
        since, deadline = time.time(), time.monotonic() + 90
        self.windows(on=True)
        seed = 900
        while len(self.new_windows(since)) <= count and time.monotonic() < deadline:
            self.play("server", phase, requests, seed=seed)
            seed += 1
        self.windows(on=False)
        return self.new_windows(since)[1:]

    # --- comparing --------------------------------------------------------------------------------

    def exact(self, *, seed: int) -> dict[str, Any]:
        """Compare both sides on the same batches, and the control with itself."""
        first, again = (self.together("control", seed=seed) for _ in range(2))
        ours = self.together("server", seed=seed)
        return {
            "control_with_itself": same(first.answers, again.answers),
            "server_with_control": same(first.answers, ours.answers),
        }

    def rates(
        self,
        sides: Mapping[str, Callable[[], str]],
        phase: Phase,
        *,
        blocks: int,
        requests: int,
    ) -> dict[str, Any]:
        """Serve the same requests on every side in turn, and compare tokens a second.

        Each of `sides` sets its state and returns the server to ask. Every block has other
        requests, which every process serves once before: libraries plan for each new length.
        The order of the sides reverses from block to block.
        """
        found: dict[str, list[float]] = {name: [] for name in sides}
        failed = 0
        for block in range(blocks):
            for url in self.urls:
                self.play(url, phase, requests, seed=1000 + block)
            names = list(sides) if block % 2 == 0 else list(sides)[::-1]
            for name in names:
                played = self.play(sides[name](), phase, requests, seed=1000 + block)
                found[name].append(played.tokens_per_s)
                failed += played.failed
        first, *others = sides
        bases = [first, "off"] if "off" in sides else [first]
        return {
            "phase": phase,
            "blocks": blocks,
            "requests_per_block": requests,
            "failed": failed,
            "tokens_per_s": {name: sorted(v)[len(v) // 2] for name, v in found.items()},
            "ratio": {
                f"{name} / {base}": _interval(found[name], found[base])
                for base in bases
                for name in others
                if name != base
            },
            "raw": found,
        }

    def bypass(self, *, on: bool) -> str:
        """Serve originals, or the orders in force again; return the side to ask."""
        for slot in self.swapper.slots():
            if slot.active is not None:
                self.swapper.bypass(slot.definition, on=on)
        return "server"

    def engaged(self) -> dict[str, Any]:
        """Prove by counters that launches and nodes run the variants, and what checks found."""
        before = {s.definition: s.swapped_launches for s in self.swapper.samples()}
        time.sleep(4.0)  # traffic goes on: what is counted meanwhile is the proof
        after = self.swapper.samples()
        slots = {s["definition"]: s for s in self.slots()}
        return {
            sample.definition: {
                "launches_in_4_s": sample.swapped_launches - before.get(sample.definition, 0),
                "swapped_launches": sample.swapped_launches,
                "fallback_launches": sample.fallback_launches,
                "ineligible": dict(sample.ineligible_launches),
                "shadow_checks": sample.shadow_checks,
                "shadow_mismatches": sample.shadow_mismatches,
                "shadow_nonfinite": sample.shadow_nonfinite,
                "worst_ratio": sample.worst_ratio,
                "errors": sample.errors,
                "tripped": sample.tripped,
                "graph": slots.get(sample.definition, {}).get("graph"),
            }
            for sample in after
        }

    def slots(self) -> list[Any]:
        """Return what the server says of its slots, graphs included."""
        (answer,) = self.swapper.ask({"op": "slots"})
        found: list[Any] = answer["slots"]
        return found

    def judged(self, *, most: int) -> dict[str, Any]:
        """Have the control read the answers of both sides; nothing may be served meanwhile."""
        own, ours = _thinned(self._own, most // 2), _thinned(self.answers, most)
        with httpx.Client(timeout=60, trust_env=False) as client:
            control = [self._gaps(client, each) for each in own]
            allowed = allowed_gap([gaps for gaps in control if gaps is not None])
            checked = check(ours, [self._gaps(client, each) for each in ours], allowed=allowed)
            rounding = check(own, control, allowed=allowed)
        return {
            "answers": len(self.answers),
            "failed": sum(a.failure is not None for a in self.answers),
            "read_by_the_control": _told(checked),
            "control_itself": _told(rounding),
        }

    def _gaps(self, client: httpx.Client, answer: Answered) -> list[float] | None:
        if answer.failure is not None:
            return None
        body = {"prompt": list(answer.asked.prompt), "tokens": list(answer.tokens)}
        said = client.post(f"{self.urls['control']}/live/check", json=body)
        said.raise_for_status()
        found: list[float] = said.json()["gaps"]
        return found


def _interval(one: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    return dict(zip(("low", "median", "high"), ratio_interval(one, other), strict=True))


def _thinned(answers: Sequence[Answered], most: int) -> list[Answered]:
    """Return at most so many, evenly, with every failure among them."""
    step = max(1, -(-len(answers) // max(most, 1)))
    return [a for n, a in enumerate(answers) if n % step == 0 or a.failure is not None]


def _told(checked: Any) -> dict[str, Any]:  # noqa: ANN401 - Checked
    return {name: getattr(checked, name) for name in checked.__slots__}
