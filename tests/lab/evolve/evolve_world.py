"""A model that plays a part, and a lab that reads speeds from comments in sources."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retuned import catalog
from retuned.clock import FakeClock
from retuned.contract import Language, Solution, SourceFile, Workload
from retuned.lab.generators.evolve import DeviceBrief, EvolveGenerator, EvolveRules, Task
from retuned.lab.llm.budget import ChatBudget, Prices, RemainingBudget
from retuned.lab.llm.client import PaidChatModel, WireAnswer
from retuned.lab.llm.transcript import Transcript
from retuned.ports import ChatRequest, Finding
from retuned.stages.verdict import Interval, Reason, ShapeResult, Status, Verdict

KERNEL = "rmsnorm_h64"
WORKLOADS = (Workload(definition=KERNEL, axes={"M": 16}, weight=3.0),)
SLOW = "// speed 1\nvoid k() {}\n"
BLOCK = "```{}\n{}\n```\n"

Respond = Callable[[ChatRequest], str]


def incumbent(source: str = SLOW, language: Language = Language.CPU_CPP) -> Solution:
    """Return a variant in production."""
    path = "k.py" if language is Language.TRITON else "k.cpp"
    return Solution(
        name="slow",
        definition=KERNEL,
        language=language,
        entry="k",
        sources=(
            SourceFile(path=path, content=source),
            *(
                (SourceFile(path="vec.h", content="// helpers\n"),)
                if language is Language.CPU_CPP
                else ()
            ),
        ),
        structure="plain",
        grid=("M",) if language is Language.TRITON else (),
    )


@dataclass(slots=True)
class Actor:
    """A wire whose answers are computed from the question."""

    respond: Respond
    model: str = "actor"
    asked: list[ChatRequest] = field(default_factory=list)

    def ask(self, request: ChatRequest, *, timeout_s: float = math.inf) -> WireAnswer:
        del timeout_s
        self.asked.append(request)
        return WireAnswer(text=self.respond(request), finish="stop", usage=None)

    def roles(self) -> list[str]:
        return [str(request.purpose["role"]) for request in self.asked]


def prompt_of(request: ChatRequest) -> str:
    return request.messages[-1].content


def whole(source: str, **launch: object) -> str:
    """Answer with a whole file."""
    return BLOCK.format("json", json.dumps(launch)) + BLOCK.format("cpp", source.rstrip("\n"))


def faster(request: ChatRequest) -> str:
    """Play a good model: each variant is half as fast again as the base, edited in place."""
    if request.purpose["role"] == "optimizer":
        return BLOCK.format("json", '{"ideas": ["unroll the loop", "use wider vectors"]}')
    if request.purpose["role"] == "reflector":
        return BLOCK.format("json", '{"cause": "a semicolon", "fix": "write it"}')
    prompt = prompt_of(request)
    base = re.search(r"# Base, id ([0-9a-f]{12})", prompt)
    speed = re.search(r"// speed ([\d.]+)", prompt.partition("# Base")[2])
    step = int(request.purpose["step"])
    if base is None or speed is None:
        return whole(f"// speed 1.1\nvoid fresh{step}() {{}}", entry="k")
    old = float(speed[1])
    edit = (
        f"<<<<<<< SEARCH\n// speed {speed[1]}\n=======\n// speed {round(old * 1.5, 4)}\n"
        f"// by step {step}\n>>>>>>> REPLACE"
    )
    return BLOCK.format("json", json.dumps({"base": base[1], "idea": "more"})) + BLOCK.format(
        "edit", edit
    )


def finding(
    solution: Solution,
    *,
    ratio: float | None = None,
    reason: Reason = Reason.LOST_SEARCH,
    detail: str = "",
) -> Finding:
    """Return what the lab says: a speed, or a reason without one."""
    shapes: tuple[ShapeResult, ...] = ()
    if ratio is not None:
        interval = Interval(lower=ratio, point=ratio, upper=ratio, confidence=0.95)
        shapes = (
            ShapeResult(
                axes={"M": 16},
                weight=3.0,
                incumbent_us=10.0,
                candidate_us=10.0 / ratio,
                speedup=interval,
            ),
        )
    verdict = Verdict(
        status=Status.REJECT,
        reason=reason,
        gate="G5" if ratio is not None else "G2",
        candidate=solution.digest,
        incumbent="sha256:" + "1" * 64,
        detail=detail,
        shapes=shapes,
    )
    return Finding(solution=solution, verdict=verdict, seconds=0.1)


def judged(solution: Solution) -> Finding:
    """Measure a variant by its comment; one without does not compile."""
    speed = re.search(r"speed (\d+(?:\.\d+)?)", solution.sources[0].content)
    if speed is None or not float(speed[1]):
        return finding(solution, reason=Reason.COMPILE_FAILED, detail="k.cpp:1: error: no speed")
    return finding(solution, ratio=float(speed[1]))


@dataclass(slots=True, kw_only=True)
class Evolution:
    """A generator over an actor, with a transcript that outlives it."""

    folder: Path
    actor: Actor
    rules: EvolveRules = field(default_factory=EvolveRules)
    start: Solution = field(default_factory=incumbent)
    max_tokens: int = 10**8
    hint: str = ""
    history: list[Finding] = field(default_factory=list)
    opened: list[PaidChatModel] = field(default_factory=list)
    generator: EvolveGenerator | None = None

    def begin(self) -> EvolveGenerator:
        """Make the generator, anew if there was one: as after a kill."""
        self.close()
        transcript = Transcript(self.folder / "t.jsonl")
        prices = Prices(prompt_usd_per_mtok=0.0, completion_usd_per_mtok=0.0)
        purse = RemainingBudget(
            ChatBudget(max_tokens=self.max_tokens, max_usd=0.0), prices, spent=transcript.spent
        )
        chat = PaidChatModel(
            self.actor, purse=purse, transcript=transcript, clock=FakeClock(), sleep=_no_sleep
        )
        self.opened.append(chat)
        self.generator = EvolveGenerator(
            chat,
            task=Task(
                definition=catalog.get(KERNEL).definition,
                incumbent=self.start,
                rules=self.rules,
                facts=DeviceBrief(arch="cpu:test", cores=2),
                model="actor",
                seed=7,
                hint=self.hint,
            ),
        )
        return self.generator

    def propose(self, count: int = 4) -> Sequence[Solution]:
        """Ask the generator."""
        generator = self.generator or self.begin()
        return generator.propose(
            catalog.get(KERNEL).definition, WORKLOADS, history=tuple(self.history), count=count
        )

    def round(self, count: int = 4) -> Sequence[Solution]:
        """Ask, and let the lab judge what came."""
        found = self.propose(count)
        self.history += [judged(solution) for solution in found]
        return found

    def close(self) -> None:
        """Let go of the transcript."""
        for chat in self.opened:
            chat.close()


def _no_sleep(_: float) -> None:
    raise AssertionError("nothing here is worth a wait")
