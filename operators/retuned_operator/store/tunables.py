"""Tunables of servers in a cluster: the last post of each pod, and reasons against an experiment.

Posts are kept in memory: each pod repeats its own once a window, so an operator that was restarted
waits for one. What an experiment needs of a server is large, and the same for all its pods, so only
the newest is kept for each tunable.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.api.agent import AxisName, TunablePost
from retuned.errors import Refused
from retuned.stages.hypothesis import Untried
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.ports import (
    POST_FRESH,
    LaunchedSizes,
    LaunchedTunable,
    PodPost,
)

log = logging.getLogger(__name__)

MAX_TUNABLES = 64
"""Most tunables of one target."""
_MAX_CLASSES = 64
"""Most size classes that are kept of one post: those with the most time."""
_MOST_BYTES = 256 << 20
"""Of what experiments need, over all targets; the oldest goes first, and comes again."""


class PodTunables:
    """The tunables of all targets. Safe for threads."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._posts: dict[str, dict[str, dict[str, PodPost]]] = {}
        self._needs: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._bytes, self._most_bytes = 0, most_bytes
        self._untried: dict[str, dict[str, Untried]] = {}
        self._reports: dict[tuple[str, str], _Report] = {}
        """Of the newest post."""
        self._frozen: dict[tuple[str, str], str] = {}
        """The one choice of an autotuner. A table hides it, and pods may have different ones: it
        stays while some pod has it."""

    def take(self, pod: PodRecord, post: TunablePost, *, at: datetime) -> None:
        """Keep a post in place of the pod's last one.

        Raises
        ------
        Refused
            ``tunable-malformed`` or ``too-many-tunables``.
        """
        report = _checked(post)
        with self._lock:
            known = self._posts.setdefault(pod.target, {})
            if post.name not in known and len(known) >= MAX_TUNABLES:
                self._make_room(pod.target, at)
            posts = known.setdefault(post.name, {})
            before = posts.get(pod.uid)
            hidden = before is not None and before.post.source == post.source
            frozen = post.frozen or (before.post.frozen if before is not None and hidden else "")
            used = tuple(sorted(post.used, key=lambda each: -each.time_us)[:_MAX_CLASSES])
            short = post.model_copy(update={"text": "{}", "frozen": frozen, "used": used})
            posts[pod.uid] = PodPost(pod.uid, at, short)
            self._reports[pod.target, post.name] = report
            self._keep((pod.target, post.name), post.text)
            chosen = sorted({each.post.frozen for each in posts.values() if each.post.frozen})
            if chosen and self._frozen.get((pod.target, post.name)) not in chosen:
                self._frozen[pod.target, post.name] = chosen[0]

    def _make_room(self, target: str, now: datetime) -> None:
        """Forget the tunable that no pod has posted for longest, if no post of it counts now."""
        known = self._posts[target]
        posted = {name: max(each.at for each in posts.values()) for name, posts in known.items()}
        oldest = min(posted, key=lambda name: posted[name])
        if now - posted[oldest] <= POST_FRESH:
            raise refused("too-many-tunables", f"{target} has {MAX_TUNABLES} already")
        self._forget(target, oldest)

    def _forget(self, target: str, name: str) -> None:
        del self._posts[target][name]
        self._bytes -= len(self._needs.pop((target, name), ""))
        self._reports.pop((target, name), None)
        self._frozen.pop((target, name), None)

    def _keep(self, key: tuple[str, str], text: str) -> None:
        self._bytes += len(text) - len(self._needs.pop(key, ""))
        self._needs[key] = text
        while self._bytes > self._most_bytes and len(self._needs) > 1:
            _, dropped = self._needs.popitem(last=False)
            self._bytes -= len(dropped)

    def of(self, target: str) -> Mapping[str, Sequence[PodPost]]:
        """Return the last post of each pod of a target, by tunable."""
        with self._lock:
            known = self._posts.get(target, {})
            return {name: tuple(posts.values()) for name, posts in known.items()}

    def newest(self, target: str, name: str) -> TunablePost | None:
        """Return the newest post about a tunable; None without one."""
        posts = self.of(target).get(name, ())
        return max(posts, key=lambda each: each.at).post if posts else None

    def needs(self, target: str, name: str) -> Mapping[str, Any] | None:
        """Return what an experiment needs of the server: report, environment, recipes.

        None where no pod has posted it lately.
        """
        with self._lock:
            text = self._needs.get((target, name))
        return None if text is None else dict(json.loads(text))

    def launched(self, target: str, definition: str) -> LaunchedTunable | None:
        """Return what the servers of a target launch now; see `Tunables.launched`."""
        posts = self.of(target).get(definition, ())
        if not posts or len({each.post.source for each in posts}) > 1:
            return None
        newest = max(posts, key=lambda each: each.at).post
        report = self._reports.get((target, definition))
        frozen = self._frozen.get((target, definition), "")
        if newest.differs or report is None or report.source != newest.source:
            return None
        return LaunchedTunable(
            definition=definition,
            family=newest.family,
            module=newest.module,
            source=newest.source,
            frozen=json.loads(frozen) if frozen else None,
            ways=report.ways,
            asked=tuple(
                LaunchedSizes(axes=each.axes, captured=each.captured, sizes=each.sizes)
                for each in report.asked
            ),
            refused=next((each.post.refused for each in posts if each.post.refused), ""),
        )

    def tell(self, target: str, untried: Mapping[str, Untried]) -> None:
        """Note why tunables of a target get no experiment now."""
        with self._lock:
            self._untried[target] = dict(untried)

    def untried(self, target: str) -> Mapping[str, Untried]:
        """Return why tunables of a target get no experiment, by tunable."""
        with self._lock:
            return dict(self._untried.get(target, {}))

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drop what pods posted that are gone."""
        kept = set(uids)
        with self._lock:
            for target, tunables in list(self._posts.items()):
                for name, posts in list(tunables.items()):
                    for uid in posts.keys() - kept:
                        del posts[uid]
                    if not posts:
                        self._forget(target, name)
                if not tunables:
                    del self._posts[target]
                    self._untried.pop(target, None)


class _SizeClass(BaseModel):
    """One size class of a report; other fields are for experiments."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    axes: dict[AxisName, Annotated[int, Field(ge=0, le=1 << 40)]] = Field(max_length=16)
    captured: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    sizes: tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...] = Field(default=(), max_length=64)


class _Report(BaseModel):
    """What the operator reads of a report."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    family: str
    source: str
    asked: tuple[_SizeClass, ...] = Field(default=(), max_length=256)
    ways: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=64)]] = Field(
        default_factory=dict, max_length=16
    )


class _Process(BaseModel):
    """The server's process, as far as a wrong type would stop who reads it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    executable: str = ""
    path: tuple[str, ...] = ()
    variables: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)


class _Needs(BaseModel):
    """What an experiment needs; its pod reads it strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: _Report
    environment: _Process
    recipes: tuple[dict[str, Any], ...]


def _checked(post: TunablePost) -> _Report:
    """Return what the operator reads of a post.

    Raises
    ------
    Refused
        ``tunable-malformed``.
    """
    try:
        needs = _Needs.model_validate_json(post.text)
        frozen = json.loads(post.frozen) if post.frozen else {}
    except ValidationError as error:
        raise malformed(error, within="text.") from None
    except (ValueError, RecursionError) as error:
        raise refused("tunable-malformed", f"frozen: {error}") from None
    report = needs.report
    if (report.id, report.family, report.source) != (post.name, post.family, post.source):
        raise refused("tunable-malformed", "text.report: is about another tunable")
    if not isinstance(frozen, dict):
        raise refused("tunable-malformed", "frozen: is not an object")
    return report


def malformed(error: ValidationError, *, within: str = "") -> Refused:
    """Return the refusal of a post, with the first place that is wrong: ``tunable-malformed``."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return refused("tunable-malformed", f"{within}{place}: {first['msg']}")


def refused(code: str, message: str) -> Refused:
    """Return a refusal with its code; the message is text from outside, cut to one line."""
    error = Refused("".join(each if each.isprintable() else " " for each in message)[:300])
    error.code = code
    return error
