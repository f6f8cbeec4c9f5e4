"""Generators behind one: asked in turns, each turn recorded, none of them able to end the rest."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from retuned.contract import Definition, Digest, Solution, Workload
from retuned.errors import TemporaryError
from retuned.lab.generators.portfolio.bandit import BanditSettings, choose
from retuned.lab.generators.portfolio.turns import TurnLog, close_turn
from retuned.ports import Finding, Generator
from retuned.stages.experiment import Turn, TurnOutcome

log = logging.getLogger(__name__)

MAX_RESTS = 3
"""A generator that cannot answer so many times in a row is not asked again."""


class Portfolio:
    """Asks one of its members at a time; deterministic for a seed, turns and a history.

    A member that cannot answer now raises `TemporaryError`: with a delay it rests so long, with
    none it waits until others have tried something. Neither ends anything for the others.

    Parameters
    ----------
    members
        Makes each generator, by name, in the plan's order; a member is made when it is first asked.
    seed
        Decides the bandit's draws.
    log
        Keeps the turns; those of an interrupted run are taken up.
    clock
        Seconds that never go back.
    taken
        Digests that are never worth proposing, such as the incumbent's.
    settings
        How quickly the bandit forgets.
    advantages
        How much more a second than the average each brought in earlier experiments.
    """

    name = "portfolio"

    def __init__(
        self,
        members: Mapping[str, Callable[[], Generator]],
        *,
        seed: int,
        log: TurnLog,
        clock: Callable[[], float],
        taken: Collection[Digest] = (),
        settings: BanditSettings | None = None,
        advantages: Mapping[str, float] | None = None,
    ) -> None:
        self._members = dict(members)
        self._seed = seed
        self._log = log
        self._clock = clock
        self._taken = set(taken)
        self._settings = settings or BanditSettings()
        self._advantages = dict(advantages or {})
        self._made: dict[str, Generator] = {}
        self._rests_until: dict[str, float] = {}
        self._turns = list(log.read())
        self._earlier = self._turns[-1].number if self._turns else 0

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn so far, oldest first."""
        return tuple(self._turns)

    def propose(
        self,
        definition: Definition,
        workloads: Sequence[Workload],
        *,
        history: Sequence[Finding],
        count: int,
    ) -> Sequence[Solution]:
        """Return the proposals of the member whose turn it is; empty if no member has any now.

        If some members only rest, `wakes_in_s` returns when to ask again.
        """
        self.settle(history)
        while alive := self._alive():
            chosen = choose(
                self._turns,
                alive=alive,
                seed=self._seed,
                settings=self._settings,
                advantages=self._advantages,
            )
            turn, solutions = self._ask(
                chosen.generator,
                lambda member: member.propose(definition, workloads, history=history, count=count),
                tried={finding.solution.digest for finding in history},
                count=count,
            )
            self._add(turn.model_copy(update={"because": chosen.because}))
            if solutions:
                return solutions
        return ()

    def wakes_in_s(self) -> float | None:
        """Return seconds until the first resting member may be asked; None if none rests."""
        now = self._clock()
        left = [
            until - now
            for name, until in self._rests_until.items()
            if until > now and not self._rested_out(name)
        ]
        return min(left, default=None)

    def settle(self, history: Sequence[Finding]) -> None:
        """Close the turn that is open: its candidates were tried, or will not be tried."""
        if self._turns and self._turns[-1].outcome is TurnOutcome.OPEN:
            self._turns[-1] = close_turn(self._turns[-1], history)
            self._log.write(self._turns[-1])

    def _alive(self) -> list[str]:
        """Return who may be asked now."""
        return [name for name in self._members if self._may_be_asked(name)]

    def _may_be_asked(self, name: str) -> bool:
        own = [turn for turn in self._turns if turn.generator == name]
        last = own[-1] if own else None
        if last is not None and last.outcome is TurnOutcome.FAILED:
            return False
        if last is not None and last.outcome is TurnOutcome.EXHAUSTED:
            if last.number <= self._earlier:
                return True  # of an interrupted run: its last candidates may not have been tried
            # A new best is something new to start from.
            return any(t.number > last.number and t.gain_ratio > 1.0 for t in self._turns)
        if last is not None and last.outcome is TurnOutcome.WAITING:
            return any(t.number > last.number and t.tried for t in self._turns)
        awake = self._clock() >= self._rests_until.get(name, -math.inf)
        return awake and not self._rested_out(name)

    def _rested_out(self, name: str) -> bool:
        """Whether a member could not answer so often in a row that it is not asked again."""
        own = [turn for turn in self._turns if turn.generator == name]
        rests = [turn.outcome is TurnOutcome.RESTING for turn in own[-MAX_RESTS:]]
        return len(rests) == MAX_RESTS and all(rests)

    def _ask(
        self,
        name: str,
        question: Callable[[Generator], Sequence[Solution]],
        *,
        tried: Collection[Digest],
        count: int,
    ) -> tuple[Turn, list[Solution]]:
        began = self._clock()
        outcome, detail = TurnOutcome.OPEN, ""
        fresh: dict[Digest, Solution] = {}
        try:
            if name not in self._made:
                self._made[name] = self._members[name]()
            came = question(self._made[name])
            new = {
                each.digest: each
                for each in came
                if each.digest not in tried and each.digest not in self._taken
            }
            fresh = dict(islice(new.items(), count))
        except TemporaryError as error:
            outcome, detail = TurnOutcome.WAITING, _short(error)
            if error.delay_s > 0.0:
                self._rests_until[name] = self._clock() + error.delay_s
                outcome = TurnOutcome.RESTING
        except Exception as error:  # whatever a generator raises, the others go on
            log.warning("generator %s failed and is not asked again: %s", name, _short(error))
            outcome, detail = TurnOutcome.FAILED, _short(error)
        if outcome is TurnOutcome.OPEN and not fresh:
            outcome = TurnOutcome.EXHAUSTED
        asked_s = max(self._clock() - began, 0.0)
        turn = Turn(
            number=self._turns[-1].number + 1 if self._turns else 1,
            generator=name,
            because="",
            outcome=outcome,
            proposed=tuple(fresh),
            detail=detail,
            asked_s=asked_s,
            seconds=asked_s,
        )
        return turn, list(fresh.values())

    def _add(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._log.write(turn)


def _short(error: BaseException) -> str:
    """Shorten a generator's error text: it may hold untrusted text."""
    text = re.sub(r"[^\x20-\x7e]+", " ", f"{type(error).__name__}: {error}")
    return text.strip()[:400]
