"""Who asks, by token, and what they may do, by rules as in roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakeapi.refusals import Refusal

MASTERS = "system:masters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Somebody with a token."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = "uid"
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    audiences: tuple[str, ...] = ("https://kubernetes.default.svc",)
    """For whom the token is."""


ADMIN = Identity(name="admin", groups=(MASTERS,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    user: str
    namespace: str
    """Empty means everywhere."""
    rules: Sequence[Mapping[str, Any]]


class Access:
    """Tokens and rules of one fake API server."""

    def __init__(self) -> None:
        self._tokens: dict[str, Identity] = {"admin": ADMIN}
        self._bound: list[_Bound] = []

    def add(self, token: str, identity: Identity) -> None:
        self._tokens[token] = identity

    def revoke(self, token: str) -> None:
        del self._tokens[token]

    def bind(self, user: str, rules: Sequence[Mapping[str, Any]], *, namespace: str = "") -> None:
        """Let a user or a group do what rules of a role say."""
        self._bound.append(_Bound(user=user, namespace=namespace, rules=rules))

    def who(self, header: str) -> Identity:
        """Return who asks.

        Raises
        ------
        Refusal
            401 if nobody knows.
        """
        scheme, _, token = header.partition(" ")
        found = self._tokens.get(token) if scheme.lower() == "bearer" else None
        if found is None:
            raise Refusal(401, "Unauthorized", message="Unauthorized")
        return found

    def acting(self, who: Identity, user: str, groups: Sequence[str]) -> Identity:
        """Return whom somebody may act as; themselves where no other is named.

        Raises
        ------
        Refusal
            403 if they may not.
        """
        if not user and not groups:
            return who
        if not user:
            raise Refusal(400, "BadRequest", message="groups without a user")
        wanted = [("users", user), *(("groups", group) for group in groups)]
        for resource, name in wanted:
            if not self.may(
                who, "impersonate", group="", resource=resource, namespace="", name=name
            ):
                text = f'{resource} "{name}" is forbidden: User "{who.name}" cannot impersonate'
                raise Refusal(403, "Forbidden", message=text)
        return Identity(name=user, groups=tuple(groups))

    def may(
        self, who: Identity, verb: str, *, group: str, resource: str, namespace: str, name: str
    ) -> bool:
        """Say whether somebody may do something; `resource` may have a subresource."""
        if MASTERS in who.groups:
            return True
        return any(
            _allows(rule, verb, group=group, resource=resource, name=name)
            for bound in self._bound
            if bound.user in (who.name, *who.groups) and bound.namespace in ("", namespace)
            for rule in bound.rules
        )

    def review_token(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status of a TokenReview."""
        spec = body.get("spec") or {}
        identity = self._tokens.get(str(spec.get("token", "")))
        wanted = set(spec.get("audiences") or ("https://kubernetes.default.svc",))
        if identity is None:
            return {"authenticated": False, "error": "invalid bearer token"}
        both = sorted(wanted & set(identity.audiences))
        if not both:
            return {"authenticated": False, "error": "token audiences are invalid"}
        user: dict[str, Any] = {"username": identity.name, "uid": identity.uid}
        user |= {"groups": list(identity.groups)}
        user |= {"extra": {key: list(value) for key, value in identity.extra.items()}}
        return {"authenticated": True, "user": user, "audiences": both}

    def review_self(self, who: Identity) -> dict[str, Any]:
        """Return the status of a SelfSubjectReview."""
        groups = [*who.groups, "system:authenticated"]
        return {"userInfo": {"username": who.name, "uid": who.uid, "groups": groups}}

    def review_access(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the status of a SubjectAccessReview."""
        spec = body.get("spec") or {}
        asked = spec.get("resourceAttributes") or {}
        who = Identity(name=str(spec.get("user", "")), groups=tuple(spec.get("groups") or ()))
        resource = "/".join(filter(None, (asked.get("resource", ""), asked.get("subresource", ""))))
        allowed = self.may(
            who,
            str(asked.get("verb", "")),
            group=str(asked.get("group", "")),
            resource=resource,
            namespace=str(asked.get("namespace", "")),
            name=str(asked.get("name", "")),
        )
        return {"allowed": allowed}


def _allows(rule: Mapping[str, Any], verb: str, *, group: str, resource: str, name: str) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        {verb, "*"} & set(rule["verbs"]) != set()
        and {group, "*"} & set(rule["apiGroups"]) != set()
        and {resource, "*"} & set(rule["resources"]) != set()
        and (not names or name in names)
    )
