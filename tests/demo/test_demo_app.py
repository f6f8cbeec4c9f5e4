"""The routes, without a process: the state of the engine and injected faults over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from retuned.demo.app import Service
from retuned.demo.batches import Chunk, EngineLimits
from retuned.demo.engine import Engine
from retuned.demo.metrics import ServerMetrics
from retuned.demo.responses import Mailboxes
from retuned.demo.shapes import SHAPES
from retuned.errors import UsageError


class Nothing:
    def clear(self) -> None:
        pass


class Broken:
    """A model whose kernels always raise."""

    def new_cache(self) -> Nothing:
        return Nothing()

    def forward(self, chunks: Sequence[Chunk[Nothing]]) -> list[int]:
        raise RuntimeError("a kernel broke")


def _ask(
    method: str,
    path: str,
    *,
    json: Any = None,
    inject_fault: Callable[[str], None] | None = None,
    running: bool = True,
    max_waiting: int = 10,
) -> httpx.Response:
    async def ask() -> httpx.Response:
        boxes, metrics = Mailboxes(), ServerMetrics(CollectorRegistry())
        boxes.bind()
        limits = EngineLimits(max_waiting=max_waiting)
        engine = Engine(Broken(), limits=limits, deliver=boxes.deliver, hooks=[metrics])
        service = Service(
            engine, boxes, metrics=metrics, shape=SHAPES["tiny"], inject_fault=inject_fault
        )
        if running:
            engine.start()
        transport = httpx.ASGITransport(service.app())
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
                return await client.request(method, path, json=json)
        finally:
            await asyncio.to_thread(engine.stop)

    return asyncio.run(ask())


def test_a_request_whose_step_raised_is_a_server_error() -> None:
    body = {"prompt_tokens": [1], "max_tokens": 2, "stream": False}
    response = _ask("POST", "/v1/completions", json=body)
    assert response.status_code == 500
    assert "failed" in response.json()["error"]


def test_a_stream_whose_step_raised_has_an_error_and_no_end_mark() -> None:
    response = _ask("POST", "/v1/completions", json={"prompt_tokens": [1], "max_tokens": 2})
    assert response.status_code == 200
    assert "error" in response.text
    assert "[DONE]" not in response.text


def test_a_full_queue_says_when_to_come_back() -> None:
    body = {"prompt_tokens": [1], "max_tokens": 2}
    response = _ask("POST", "/v1/completions", json=body, running=False, max_waiting=0)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


def test_an_engine_that_does_not_run_is_not_healthy() -> None:
    assert _ask("GET", "/health", running=False).status_code == 503
    assert _ask("GET", "/health").status_code == 200


def test_an_allowed_fault_reaches_the_slot_that_is_named() -> None:
    broken: list[str] = []
    response = _ask("POST", "/demo/fault", json={"slot": "a"}, inject_fault=broken.append)
    assert response.json() == {"slot": "a", "broken": True}
    assert broken == ["a"]


@pytest.mark.parametrize("body", [{}, {"slot": ""}, {"slot": "a", "why": "fun"}, {"slot": 1}])
def test_a_fault_that_names_no_slot_is_refused(body: dict[str, Any]) -> None:
    broken: list[str] = []
    response = _ask("POST", "/demo/fault", json=body, inject_fault=broken.append)
    assert response.status_code == 400
    assert broken == []


def test_a_fault_that_cannot_be_injected_is_refused_with_the_reason() -> None:
    def refuse(name: str) -> None:
        raise UsageError(f"slot '{name}' runs its original")

    response = _ask("POST", "/demo/fault", json={"slot": "a"}, inject_fault=refuse)
    assert response.status_code == 400
    assert response.json()["error"] == "slot 'a' runs its original"
