"""Decisions, freezes and requests of people in the store, and their local identity.

Decisions are written once and never changed. A request asks the daemon for something that is never
gated (a rollback, an abort); it is carried out and then done.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from retuned.contract import Record, digest_of
from retuned.errors import UnreadableInput
from retuned.ports import Event, Store, Stored
from retuned.stages.gate import SwapDecision, TuningFreeze

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """User of the command, as the operating system reports it."""

    user: str
    """Login name."""
    groups: tuple[str, ...]
    """Groups, and the policy groups that they map to, sorted."""


def local_identity(group_map: Mapping[str, str]) -> Identity:
    """Ask the operating system; environment variables such as ``USER`` are not used.

    Root by sudo is the person whom sudo names, with that person's groups: two administrators are
    two people. This only distinguishes honest people; root owns the state and can be any user.

    Parameters
    ----------
    group_map
        Policy group by group of this machine; ``user:NAME`` as key maps one user.
    """
    admin = _behind_sudo()
    if admin is not None:
        gids = os.getgrouplist(admin.pw_name, admin.pw_gid)
        return Identity(
            user=admin.pw_name, groups=_mapped(admin.pw_name, _group_names(gids), group_map)
        )
    user = _user_name(os.getuid())
    groups = _group_names([os.getgid(), *os.getgroups()])
    return Identity(user=user, groups=_mapped(user, groups, group_map))


def identity_of_uid(uid: int, group_map: Mapping[str, str]) -> Identity:
    """Return who a user of this machine is, such as the one at the other end of a connection.

    Parameters
    ----------
    uid
        As the kernel reports it.
    group_map
        As for `local_identity`.
    """
    user = _user_name(uid)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Identity(user=user, groups=_mapped(user, (), group_map))
    gids = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Identity(user=user, groups=_mapped(user, _group_names(gids), group_map))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def _behind_sudo() -> pwd.struct_passwd | None:
    """Return the user who became root by sudo; None for others, and if name and id disagree."""
    if os.getuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(os.environ.get("SUDO_USER", ""))
    except KeyError:
        return None
    same = str(entry.pw_uid) == os.environ.get("SUDO_UID", "")
    return entry if same and entry.pw_uid != 0 else None


def _group_names(gids: Iterable[int]) -> list[str]:
    names = []
    for gid in set(gids):
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(f"gid:{gid}")
    return names


def _mapped(user: str, groups: Iterable[str], group_map: Mapping[str, str]) -> tuple[str, ...]:
    own = set(groups)
    keys = own | {f"user:{user}"}
    return tuple(sorted(own | {group_map[key] for key in keys if key in group_map}))


class Approvals:
    """The people's side of the store.

    Parameters
    ----------
    store
        Where it is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def give(self, decision: SwapDecision) -> bool:
        """Keep a decision and its line in the trail; False if the very same is already there."""
        body = decision.model_dump(mode="json")
        with self._store.transaction():
            if not self._store.add("decision", decision.id, body, phase="given"):
                return False
            self._note(
                decision.at,
                kind="proposal",
                id=decision.proposal,
                what=f"decision-{decision.decision.value.lower()}",
                who=decision.user,
                detail={"digest": decision.digest, "comment": decision.comment},
            )
            return True

    def decisions(self, proposal: str) -> tuple[SwapDecision, ...]:
        """Return the decisions on a proposal, oldest first.

        Raises
        ------
        UnreadableInput
            If one cannot be understood: it may be a rejection.
        """
        return tuple(
            _as(SwapDecision, stored) for stored in self._store.list("decision", proposal=proposal)
        )

    def freeze(self, freeze: TuningFreeze) -> bool:
        """Set a stop sign; False if one of this name was ever set."""
        with self._store.transaction():
            if not self._store.add(
                "freeze", freeze.id, freeze.model_dump(mode="json"), phase="active"
            ):
                return False
            self._note(
                freeze.at,
                kind="freeze",
                id=freeze.id,
                what="frozen",
                who=freeze.user,
                detail={
                    "reason": freeze.reason,
                    "until": freeze.until and freeze.until.isoformat(),
                    "targets": " ".join(freeze.scope.targets),
                    "kernels": " ".join(freeze.scope.kernels),
                },
            )
            return True

    def thaw(self, freeze: str, *, who: str, at: datetime, reason: str = "") -> bool:
        """Lift a freeze; False if none of this name is in force."""
        with self._store.transaction():
            if not self._store.advance("freeze", freeze, expect="active", to="lifted"):
                return False
            detail = {"reason": reason}
            self._note(at, kind="freeze", id=freeze, what="thawed", who=who, detail=detail)
            return True

    def freezes(self, *, now: datetime) -> tuple[TuningFreeze, ...]:
        """Return the freezes in force.

        Raises
        ------
        UnreadableInput
            If one cannot be understood: treat that as frozen.
        """
        standing = (_as(TuningFreeze, s) for s in self._store.list("freeze", phase="active"))
        return tuple(f for f in standing if f.until is None or now < f.until)

    def request(self, what: str, *, target: str, who: str, at: datetime, reason: str = "") -> str:
        """Ask the daemon for what is never gated and return the request's id.

        Parameters
        ----------
        what
            ``rollback`` or ``abort``.
        target
            Id of the proposal.
        """
        body = {"what": what, "target": target, "who": who, "at": at.isoformat(), "reason": reason}
        id = digest_of(body)
        with self._store.transaction():
            if self._store.add("request", id, body, phase="new"):
                detail = {"reason": reason}
                self._note(
                    at, kind="proposal", id=target, what=f"{what}-requested", who=who, detail=detail
                )
        return id

    def _note(
        self, at: datetime, *, kind: str, id: str, what: str, who: str, detail: Mapping[str, Any]
    ) -> None:
        self._store.record(Event(at=at, kind=kind, id=id, what=what, who=who, detail=detail))


def _as(model: type[R], stored: Stored) -> R:
    try:
        return model.model_validate(stored.body)
    except ValidationError as error:
        raise UnreadableInput(
            "record-unreadable",
            where=f"{stored.kind} {stored.id}",
            message=f"does not read as {model.__name__} ({error.error_count()} problems); it was "
            "written by another version or by hand. Nothing is decided while it is there",
        ) from error
