"""Everything outside, as one small Protocol each.

Beside every real adapter ships a fake, and one conformance suite in ``tests/conformance`` runs over
both. A port says what may go wrong by the errors it names; it never says how it is done.
"""

from retuned.ports.observing import Devices, DeviceState, Spans, Telemetry, TraceBatch, TraceSource
from retuned.ports.operating import Operator
from retuned.ports.proving import (
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
from retuned.ports.serving import (
    CapturedInputs,
    CapturedTensor,
    CaptureRule,
    InputTap,
    KernelTap,
    SlotState,
    Swapper,
)
from retuned.ports.storing import Clock, Event, Store, Stored

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
    "Notary",
    "Operator",
    "SlotState",
    "Spans",
    "Store",
    "Stored",
    "Swapper",
    "Telemetry",
    "TraceBatch",
    "TraceSource",
    "Verifier",
]
