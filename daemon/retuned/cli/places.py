"""The places that the settings name: are they there, can they be read, and what follows if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from retuned.adapters.policy_files import load_policies
from retuned.catalog.own import load_definitions
from retuned.cli.probe import Fact, Level, Probe, fact
from retuned.errors import RetunedError
from retuned.settings import Settings
from retuned.stages.gate import EndToEndRule, limits_of, unenforced

_REFUSED = "`retuned run` does not start with it; see `retuned policy check`"


def places(probe: Probe, settings: Settings) -> Iterator[Fact]:
    """Yield a fact for each watched folder, policy and the folder of the control sockets."""
    for folder in settings.watch_dirs:
        problem = folder_problem(folder, names=probe.names)
        advice = f"{problem}; no trace is read from it until that is put right"
        yield fact("watch-folder", not problem, str(folder), advice)
    if not settings.watch_dirs:
        yield fact(
            "watch-folder", False, "none set", "`retuned run` sees no traces; set watch_dirs"
        )
    yield from _policies(settings.policy_files)
    if not settings.policy_files:
        yield fact("policy", False, "none set", "nothing is ever swapped; set policy_files")
    for path in settings.definition_files:
        yield _definitions(path)
    yield _sockets(probe, settings)
    yield _kept(probe, settings)


def cautions(settings: Settings) -> Iterator[str]:
    """Yield what the daemon should say at its start: folders it cannot read, idle policy fields.

    Raises
    ------
    UnreadableInput
        If a policy cannot be read; the daemon does not start with one.
    """
    names = Probe().names
    for folder in settings.watch_dirs:
        problem = folder_problem(folder, names=names)
        if problem:
            yield f"watched folder {folder} {problem}; no trace is read from it until it can be"
    if not settings.watch_dirs:
        yield "no folder is watched, so nothing is ever seen; set watch_dirs or give --watch"
    for policy in load_policies(settings.policy_files):
        idle = ", ".join(field.path for field in unenforced(policy))
        if idle:
            yield (
                f"policy {policy.full_name}: not enforced on one machine: {idle}; "
                "`retuned policy check` says what holds instead"
            )
        limits = limits_of(policy)
        if limits.end_to_end is EndToEndRule.REQUIRED and not settings.end_to_end_url:
            yield (
                f"policy {policy.full_name} demands an end-to-end measurement and end_to_end_url "
                "is not set, so nothing it decides about is swapped"
            )
        if limits.capture and settings.capture_inputs:
            yield f"policy {policy.full_name}: inputs of the server are captured for experiments"


def folder_problem(folder: Path, *, names: Callable[[Path], Sequence[str]]) -> str:
    """Return what is wrong with a folder that is to be read; nothing if it can be.

    Parameters
    ----------
    names
        Lists a folder, or raises `OSError`.
    """
    try:
        names(folder)
    except FileNotFoundError:
        return "does not exist"
    except NotADirectoryError:
        return "is no folder"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def _definitions(path: Path) -> Fact:
    try:
        names = ", ".join(own.name for own in load_definitions([path]))
    except RetunedError as error:
        advice = f"{error}; `retuned run` does not start with it"
        return fact("definition", False, str(path), advice, lacking=Level.MISSING)
    return fact("definition", bool(names), f"{path}: {names}", "holds no definition")


def _policies(paths: Sequence[Path]) -> Iterator[Fact]:
    """Yield a fact for each, and one if they are good alone and cannot be used together."""
    found = [_policy(path) for path in paths]
    yield from found
    if any(each.level is Level.MISSING for each in found):
        return
    try:
        load_policies(paths)
    except RetunedError as error:
        yield fact("policy", False, str(error), _REFUSED, lacking=Level.MISSING)


def _policy(path: Path) -> Fact:
    try:
        policies = load_policies([path])
    except RetunedError as error:
        return fact("policy", False, str(error), _REFUSED, lacking=Level.MISSING)
    names = ", ".join(policy.full_name for policy in policies)
    return fact("policy", bool(policies), f"{path}: {names or 'no policy'}", "nothing is swapped")


def _kept(probe: Probe, settings: Settings) -> Fact:
    """Say how much of experiments lies here, and when the rest goes."""
    parts = []
    for what, folder in (("variants", "artifacts"), ("raw samples", "evidence")):
        try:
            count = len(probe.names(settings.state_dir / "lab" / folder))
        except OSError:
            count = 0
        parts.append(f"{count} {what}")
    value = (
        f"{', '.join(parts)}; what nothing needs goes after {settings.retention_days:g} days, "
        f"signed evidence after {settings.evidence_retention_days:g}"
    )
    return Fact(name="kept", level=Level.OK, value=value)


def _sockets(probe: Probe, settings: Settings) -> Fact:
    folder = settings.sockets
    problem = folder_problem(folder, names=probe.names)
    if problem == "does not exist":
        value = f"{folder}: not there yet; a server makes it when it attaches"
        return Fact(name="socket-folder", level=Level.OK, value=value)
    if problem:
        advice = f"{problem}; nothing can be swapped into servers behind it"
        return Fact(name="socket-folder", level=Level.LIMITED, value=str(folder), advice=advice)
    count = sum(name.endswith(".sock") for name in probe.names(folder))
    return Fact(name="socket-folder", level=Level.OK, value=f"{folder}: {count} sockets")
