"""Tunables of servers in a cluster: the last post of each pod, and why there is no experiment.

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
from typing import Any

from retuned.api.agent import TunablePost
from retuned.errors import Refused
from retuned.stages.hypothesis import Untried
from retuned_operator.agent_api.ports import PodRecord
from retuned_operator.controllers.ports import LaunchedSizes, LaunchedTunable, PodPost

log = logging.getLogger(__name__)

MAX_TUNABLES = 64
"""Most tunables of one target."""
_MOST_BYTES = 256 << 20
"""Of what experiments need, over all targets; the oldest goes first, and comes again."""
_PARTS = ("environment", "recipes", "report")


class PodTunables:
    """The tunables of all targets. Safe for threads."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._posts: dict[str, dict[str, dict[str, PodPost]]] = {}
        self._needs: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._bytes, self._most_bytes = 0, most_bytes
        self._untried: dict[str, dict[str, Untried]] = {}
        self._frozen: dict[tuple[str, str], dict[str, Any]] = {}
        """The one choice of an autotuner, which a table hides."""

    def take(self, pod: PodRecord, post: TunablePost, *, at: datetime) -> None:
        """Keep a post in place of the pod's last one.

        Raises
        ------
        Refused
            ``tunable-malformed`` or ``too-many-tunables``.
        """
        _check(post)
        with self._lock:
            known = self._posts.setdefault(pod.target, {})
            if post.name not in known and len(known) >= MAX_TUNABLES:
                raise _refused("too-many-tunables", f"{pod.target} has {MAX_TUNABLES} already")
            short = PodPost(pod.uid, at, post.model_copy(update={"text": "{}"}))
            known.setdefault(post.name, {})[pod.uid] = short
            self._keep((pod.target, post.name), post.text)
            if post.frozen:
                self._frozen[pod.target, post.name] = json.loads(post.frozen)

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
        posts, needs = self.of(target).get(definition, ()), self.needs(target, definition)
        newest = self.newest(target, definition)
        if newest is None or needs is None:
            return None
        if newest.differs or len({each.post.source for each in posts}) > 1:
            return None
        report = needs["report"]
        frozen = json.loads(newest.frozen) if newest.frozen else None
        return LaunchedTunable(
            definition=definition,
            family=newest.family,
            module=newest.module,
            source=newest.source,
            frozen=frozen or self._frozen.get((target, definition)),
            ways={str(k): str(v) for k, v in dict(report.get("ways") or {}).items()},
            asked=tuple(_sizes(each) for each in report.get("asked") or ()),
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
                        del tunables[name]
                        self._bytes -= len(self._needs.pop((target, name), ""))
                        self._frozen.pop((target, name), None)
                if not tunables:
                    del self._posts[target]
                    self._untried.pop(target, None)


def _sizes(body: Mapping[str, Any]) -> LaunchedSizes:
    return LaunchedSizes(
        axes=dict(body.get("axes") or {}),
        captured=int(body.get("captured") or 0),
        sizes=tuple(body.get("sizes") or ()),
    )


def _check(post: TunablePost) -> None:
    """Verify that what an experiment needs has the form that its pod reads.

    Raises
    ------
    Refused
        ``tunable-malformed``.
    """
    try:
        body = json.loads(post.text)
        frozen = json.loads(post.frozen) if post.frozen else {}
    except ValueError as error:
        raise _refused("tunable-malformed", f"text: {error}") from None
    if not isinstance(body, dict) or tuple(sorted(body)) != _PARTS:
        raise _refused("tunable-malformed", f"text: needs exactly {', '.join(_PARTS)}")
    report, environment, recipes = body["report"], body["environment"], body["recipes"]
    if not isinstance(report, dict) or not isinstance(environment, dict):
        raise _refused("tunable-malformed", "text: report and environment must be objects")
    named = (report.get("id"), report.get("family"), report.get("source"))
    if named != (post.name, post.family, post.source):
        raise _refused("tunable-malformed", "text.report: is about another tunable")
    if not isinstance(recipes, list) or not all(isinstance(each, dict) for each in recipes):
        raise _refused("tunable-malformed", "text.recipes: is not a list of objects")
    if not isinstance(frozen, dict):
        raise _refused("tunable-malformed", "frozen: is not an object")


def _refused(code: str, message: str) -> Refused:
    error = Refused("".join(each if each.isprintable() else " " for each in message)[:300])
    error.code = code
    return error
