"""Gate policies from YAML files, with the line of every problem; invalid policies are not used."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retuned.errors import PolicyInvalid, Problem, RetunedError, UnreadableInput
from retuned.stages.gate import KernelTuningPolicy, cluster_only_fields, limits_of
from retuned.strict_yaml import Tree, parse, problems_of, read_text, truths_of

log = logging.getLogger(__name__)

_SUFFIXES = (".yaml", ".yml")


def load_policy(path: Path) -> KernelTuningPolicy:
    """Read one policy.

    Raises
    ------
    PolicyInvalid
        With every problem and its line.
    UnreadableInput
        If the file is absent, not UTF-8, too large or not plain YAML.
    """
    return _load(path)[0]


def _load(path: Path) -> tuple[KernelTuningPolicy, Tree]:
    tree = parse(read_text(path), path=path)
    try:
        policy = KernelTuningPolicy.model_validate_json(
            json.dumps(tree.data), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems = problems_of(error, schema=_schema(), tree=tree)
        raise PolicyInvalid(str(path), problems=problems) from error
    return policy, tree


def cluster_only_in(path: Path) -> tuple[Problem, ...]:
    """Return the fields of a policy that act in a cluster only, each with its line.

    Raises
    ------
    PolicyInvalid
        With every problem and its line.
    UnreadableInput
        If the file cannot be read.
    """
    policy, tree = _load(path)
    return tuple(
        Problem(
            path=field.path,
            line=tree.lines.get(field.place),
            message=f"acts in a cluster only; on one machine {field.instead}",
        )
        for field in cluster_only_fields(policy)
    )


def misread_in(path: Path) -> tuple[Problem, ...]:
    """Return what kubectl and Helm would not read as it is written, each with its line.

    Raises
    ------
    UnreadableInput
        If the file cannot be read.
    """
    return truths_of(parse(read_text(path), path=path))


def permissions_in(path: Path) -> tuple[Problem, ...]:
    """Return the permissions of a valid policy that need attention, with their lines.

    Raises
    ------
    PolicyInvalid
        If it is not valid.
    UnreadableInput
        If the file cannot be read.
    """
    policy, tree = _load(path)
    limits = limits_of(policy)
    if not limits.capture:
        return ()
    kept = f"{limits.capture_bytes} bytes a kernel for at most {limits.capture_retention}"
    text = (
        f"permits samples of the server's inputs, which are data of its users: {kept}; none are "
        "taken unless the setting capture_inputs is on"
    )
    place = ("spec", "capture")
    return (Problem(path=".".join(place), line=tree.lines.get(place), message=text),)


def check_policy(path: Path) -> tuple[Problem, ...]:
    """Return what is wrong with a policy; empty means that it may be used.

    Raises
    ------
    UnreadableInput
        If the file cannot be read at all.
    """
    try:
        load_policy(path)
    except PolicyInvalid as error:
        return error.problems
    return ()


def load_policies(paths: Sequence[Path]) -> tuple[KernelTuningPolicy, ...]:
    """Read policies from files, and from the YAML files of folders, by name.

    Raises
    ------
    PolicyInvalid
        If any is invalid, or two have the same name.
    UnreadableInput
        If any cannot be read.
    """
    loaded: dict[str, tuple[KernelTuningPolicy, Path]] = {}
    for path in policy_paths(paths):
        policy = load_policy(path)
        twin = loaded.get(policy.full_name)
        if twin is not None:
            text = f"{policy.full_name} is already in {twin[1]}"
            problem = Problem(path="metadata.name", line=None, message=text)
            raise PolicyInvalid(str(path), problems=(problem,))
        loaded[policy.full_name] = (policy, path)
    return tuple(policy for policy, _ in loaded.values())


def policy_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the policy files: a folder means the YAML files in it.

    Raises
    ------
    UnreadableInput
        If a folder cannot be listed.
    """
    files: list[Path] = []
    for path in paths:
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else [path]
        except OSError as error:
            text = f"cannot be listed ({error.strerror})"
            raise UnreadableInput("cannot-open", where=str(path), message=text) from error
        files += [p for p in inside if p == path or p.suffix in _SUFFIXES]
    return files


class PolicyFiles:
    """The policies in force, read again when a file changes.

    If one of them is invalid, no policy is in force: the invalid one may be the strictest.

    Parameters
    ----------
    paths
        Files and folders.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._seen: object = None
        self._policies: tuple[KernelTuningPolicy, ...] = ()
        self.problem: RetunedError | None = None
        """Why no policy is in force; None while all files are valid."""

    def __call__(self) -> Sequence[KernelTuningPolicy]:
        """Return the policies in force; empty means that no proposal continues. Never raises."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            try:
                self._policies, self.problem = load_policies(self._paths), None
            except RetunedError as error:
                self._policies, self.problem = (), error
                log.error("no policy is in force, nothing will be swapped: %s", error)
        return self._policies

    def _state(self) -> object:
        seen: list[object] = []
        try:
            for path in policy_paths(self._paths):
                stat = path.stat()
                seen.append((path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except (OSError, UnreadableInput) as error:
            seen.append(str(error))
        return seen


@cache
def _schema() -> dict[str, Any]:
    return KernelTuningPolicy.model_json_schema(by_alias=True)
