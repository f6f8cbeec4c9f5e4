"""Protocols of everything outside, one small Protocol each.

Every real adapter has a fake, and one conformance suite in ``tests/conformance`` runs over both. A
port lists the errors that can occur; it never describes an implementation.
"""

from retuned.ports.lab import (
    Bench,
    ChatAnswer,
    ChatMessage,
    ChatModel,
    ChatRequest,
    EndToEnd,
    Finding,
    Generator,
    Notary,
    Verifier,
)
from retuned.ports.operator import Operator
from retuned.ports.server import (
    CapturedInputs,
    CapturedTensor,
    CaptureRule,
    InputTap,
    KernelTap,
    LiveSteps,
    ObservedSteps,
    ServiceCounts,
    SlotState,
    StepObserver,
    Swapper,
)
from retuned.ports.store import Clock, Event, Store, Stored
from retuned.ports.telemetry import Devices, DeviceState, Spans, Telemetry, TraceBatch, TraceSource

__all__ = [
    "Bench",
    "CaptureRule",
    "CapturedInputs",
    "CapturedTensor",
    "ChatAnswer",
    "ChatMessage",
    "ChatModel",
    "ChatRequest",
    "Clock",
    "DeviceState",
    "Devices",
    "EndToEnd",
    "Event",
    "Finding",
    "Generator",
    "InputTap",
    "KernelTap",
    "LiveSteps",
    "Notary",
    "ObservedSteps",
    "Operator",
    "ServiceCounts",
    "SlotState",
    "Spans",
    "StepObserver",
    "Store",
    "Stored",
    "Swapper",
    "Telemetry",
    "TraceBatch",
    "TraceSource",
    "Verifier",
]
