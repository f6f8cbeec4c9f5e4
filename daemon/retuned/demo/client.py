"""The demo's client: ``python -m retuned.demo.client --url URL``. It is a separate process.

It prints one JSON line when it starts and one for each line on its stdin, in order::

    phase chat|code   other traffic from the next request on
    mark              counts since the start, with the time
    rate T0 T1        tokens per second in [T0, T1), monotonic seconds as in the other answers
    stop              send no more, wait for what is in flight, answer with everything, end

The end of stdin stops it too. Times are those of the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from retuned.demo.load import LoadGenerator, LoadSettings
from retuned.demo.throughput import Work, tokens_per_s
from retuned.demo.traffic import SCALES, Phase
from retuned.errors import RetunedError, UsageError

_PLOT_BIN_S = 0.25


class Control:
    """Answers the lines of stdin.

    Parameters
    ----------
    load
        What is controlled.
    """

    def __init__(self, load: LoadGenerator) -> None:
        self._load = load
        self._commands: dict[str, Callable[..., dict[str, Any]]] = {
            "phase": self.phase,
            "mark": self.mark,
            "rate": self.rate,
        }

    def answer(self, line: str) -> dict[str, Any]:
        """Carry out one line; ``stop`` is not among them.

        Raises
        ------
        UsageError
            If the line is not understood.
        """
        name, *arguments = line.split() or [""]
        command = self._commands.get(name)
        if command is None:
            raise UsageError(f"unknown command {name!r}; known: {', '.join(self._commands)}, stop")
        try:
            return command(*arguments)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{line!r}: {error}") from error

    def phase(self, name: str) -> dict[str, Any]:
        """Switch the traffic."""
        self._load.phase = Phase(name)
        return {"t_s": time.monotonic(), "phase": self._load.phase}

    def mark(self) -> dict[str, Any]:
        """Count."""
        events = self._load.timeline.events()
        return {
            "t_s": time.monotonic(),
            "phase": self._load.phase,
            "sent": self._load.sent,
            "ok": len(self._load.ended) - self._load.failed,
            "failed": self._load.failed,
            "failures": dict(self._load.failures),
            "in_flight": self._load.in_flight,
            "prompt_tokens": sum(event.prompt_tokens for event in events),
            "output_tokens": sum(event.output_tokens for event in events),
        }

    def rate(self, t0: str, t1: str) -> dict[str, Any]:
        """Measure an interval."""
        start, end = float(t0), float(t1)
        ended = [e for e in self._load.ended if start <= e.t_s < end and e.failure is None]
        return {
            "t0_s": start,
            "t1_s": end,
            "tokens_per_s": tokens_per_s(self._load.timeline.events(), start, end),
            "requests_per_s": len(ended) / (end - start),
            "latency_p50_s": _median([e.latency_s for e in ended]),
            "ttft_p50_s": _median([e.ttft_s for e in ended if e.ttft_s is not None]),
        }

    def last(self) -> dict[str, Any]:
        """Everything, for the report."""
        return {
            **self.mark(),
            "timeline": _binned(self._load.timeline.events()),
        }


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _binned(events: Sequence[Work]) -> list[tuple[float, int, int]]:
    """[start of the bin, prompt tokens, output tokens], for plots."""
    bins: dict[int, tuple[int, int]] = {}
    for event in events:
        key = int(event.t_s / _PLOT_BIN_S)
        prompt, output = bins.get(key, (0, 0))
        bins[key] = (prompt + event.prompt_tokens, output + event.output_tokens)
    return [(key * _PLOT_BIN_S, *bins[key]) for key in sorted(bins)]


async def converse(load: LoadGenerator, lines: asyncio.StreamReader) -> None:
    """Send traffic and answer lines until the line ``stop``."""
    control = Control(load)
    sending = asyncio.create_task(load.run())
    _say({"t_s": time.monotonic(), "phase": load.phase, "ready": True})
    while raw := await lines.readline():
        line = raw.decode("utf-8", "replace").strip()
        if line == "stop":
            break
        try:
            _say(control.answer(line))
        except UsageError as error:
            _say({"error": str(error)})
    load.stop()
    await sending
    _say(control.last())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="retuned.demo.client", description=__doc__)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--phase", type=Phase, choices=list(Phase), default=Phase.CHAT)
    parser.add_argument("--in-flight", type=int, default=8, help="most requests at once")
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", choices=sorted(SCALES), default="cpu", help="what serves")
    return parser.parse_args(arguments)


async def main(arguments: Sequence[str]) -> None:
    """Run the client as a process."""
    options = parse(arguments)
    settings = LoadSettings(
        in_flight=options.in_flight,
        timeout_s=options.timeout_s,
        vocab=options.vocab,
        seed=options.seed,
        scale=SCALES[options.scale],
    )
    load = LoadGenerator(options.url, phase=options.phase, settings=settings)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(lines)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, sys.stdin)
    try:
        await converse(load, lines)
    finally:
        transport.close()


def _say(body: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except RetunedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
