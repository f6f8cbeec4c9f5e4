"""Composition of a step: what vLLM's scheduler put into it, and the graph that it ran in.

The scheduler's output has the computed tokens of every sequence, in both runners of vLLM. The state
of the runner itself is one step older when a step begins.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

MAX_DESCRIBED = 256
"""Sequences of a described step."""
_LEAST_GAP_S, _MOST_GAP_S = 0.001, 0.020
"""Gaps below are work, gaps above are idle time."""
_GAPS = 64
_TIMES_SHORTEST = 3.0


class Composition(NamedTuple):
    """Work of one step."""

    prefill: int
    """New tokens of sequences with more than one; drafts of speculative decoding are such."""
    decode: int
    """Sequences with one new token."""
    context: int
    """Tokens of all scheduled sequences that were computed before."""
    after_idle: bool = False
    """Whether the server had waited for work before this step."""
    may_have_waited: bool = False
    """Whether no sequence of the step before runs on; then the gap before it decides: `Gaps`."""


def composition(output: Any) -> Composition:  # noqa: ANN401 - a SchedulerOutput
    """Return the composition of a step of vLLM.

    Raises
    ------
    AttributeError
        If it is not the output of a known scheduler.
    """
    tokens = output.total_num_scheduled_tokens
    decode = list(output.num_scheduled_tokens.values()).count(1)
    cached = output.scheduled_cached_reqs
    context = sum(cached.num_computed_tokens)
    for new in output.scheduled_new_reqs:
        context += new.num_computed_tokens
    return Composition(tokens - decode, decode, context, may_have_waited=not cached.req_ids)


class Gaps:
    """Tells waiting from a backlog where no sequence runs on from one step to the next.

    Requests of one token each end with their step, also while others wait. A server that takes the
    next one at once needs the same short time between its steps again and again. A longer gap is
    one in which it waited. With a GPU the gaps are those of its timeline, because the host of a
    busy server waits for the GPU in every step.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_GAPS)

    def waited(self, gap_s: float) -> bool:
        """Note a gap between two steps; return whether the server waited in it.

        Examples
        --------
        >>> gaps = Gaps()
        >>> [gaps.waited(gap_s) for gap_s in (0.002, 0.002, 0.003, 0.080, 0.002)]
        [True, False, False, True, False]
        """
        shortest = min(self._recent, default=0.0)
        self._recent.append(gap_s)
        return gap_s > min(max(_LEAST_GAP_S, _TIMES_SHORTEST * shortest), _MOST_GAP_S)


def described(output: Any) -> dict[str, Any]:  # noqa: ANN401
    """Describe a step for experiments: new tokens and length after it, of each sequence."""
    scheduled = output.num_scheduled_tokens
    names = list(scheduled)[:MAX_DESCRIBED]
    queries = [int(scheduled[name]) for name in names]
    return {
        "sequences": len(scheduled),
        "tokens": int(output.total_num_scheduled_tokens),
        "queries": queries,
        "keys": _lengths(output, names, queries),
    }


def _lengths(output: Any, names: list[str], queries: list[int]) -> list[int]:  # noqa: ANN401
    """Return the length of each sequence after the step; [] from an unknown scheduler."""
    try:
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    except AttributeError:
        return []
    return [int(computed.get(n, 0)) + q for n, q in zip(names, queries, strict=True)]


class GraphNote:
    """Notes which captured graph a step runs in, while steps are recorded.

    Both runners of vLLM choose by a method ``dispatch``: V2 that of ``cudagraph_manager``, V1 that
    of ``cudagraph_dispatcher``. Its results are read on the instance. A step may ask several
    times: again with more tokens (other ranks pad), which counts, and for a part of the model with
    fewer tokens, which does not.
    """

    def __init__(self) -> None:
        self._holder: Any = None
        self._tokens = 0
        self._graph = 0

    def begin(self, runner: Any) -> None:  # noqa: ANN401 - the server's
        """Follow a runner's choices from now on; the next step has made none."""
        self._tokens = self._graph = 0
        holder: Any = getattr(runner, "cudagraph_manager", None)
        if holder is None:
            holder = getattr(runner, "cudagraph_dispatcher", None)
        if holder is self._holder:
            return
        self.leave()
        stock = getattr(holder, "dispatch", None)
        if stock is None:
            return

        def dispatch(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the server's
            found = stock(*args, **kwargs)
            self._note(found)
            return found

        holder.dispatch = dispatch
        self._holder = holder

    def size(self) -> int:
        """Return the padded tokens of the step's graph; 0 if it ran without one."""
        return self._graph

    def leave(self) -> None:
        """Read no choices any more."""
        holder, self._holder = self._holder, None
        if holder is not None:
            vars(holder).pop("dispatch", None)

    def _note(self, found: Any) -> None:  # noqa: ANN401
        try:
            if isinstance(found, tuple):  # V1
                mode, padded = found[0], int(found[1].num_tokens)
            else:
                mode, padded = found.cg_mode, int(found.num_tokens)
            if padded >= self._tokens:
                self._tokens, self._graph = padded, 0 if mode.name == "NONE" else padded
        except (AttributeError, IndexError, TypeError, ValueError):
            self._graph = 0  # another vLLM
