"""Solutions in FlashInfer-Bench JSON.

Their solutions own host code; ours never do. A Triton variant is exported with a launcher made from
its declarative launch data, so that it runs there. Beside it go the source as it is and a file
``retuned.json`` with what their schema has no field for; only with these two is an imported
solution a candidate here. Host code is never run, also not from a trusted author.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retuned.contract import Definition, Language, Solution, SourceFile, TrustClass
from retuned.errors import UnreadableInput
from retuned_bench.flashinfer.launcher import launcher_text
from retuned_bench.flashinfer.schema import (
    NotExportable,
    parse_object,
    unreadable,
    validated,
)

OWN_FILE = "retuned.json"
"""What their schema has no field for."""
_MAIN = "main.py"
_FORMAT = 1
_WORDS: Mapping[Language, str] = {
    Language.TRITON: "triton",
    Language.CPU_CPP: "cpp",
    Language.GPU_CPP: "cuda",
}
_HARDWARE: Mapping[Language, str] = {
    Language.TRITON: "any GPU that Triton compiles for",
    Language.CPU_CPP: "CPU",
    Language.GPU_CPP: "NVIDIA and AMD GPUs",
}
_FOLDER = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^[/\\]|^[A-Za-z]:|[\x00-\x1f]")
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class _Source(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    path: Text
    content: Annotated[str, Field(max_length=1_000_000)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    language: Text
    entry_point: Text


class _Solution(BaseModel):
    """Their record; fields that are not named here are left out."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: Text
    definition: Text
    author: str = ""
    spec: _Spec
    sources: Annotated[list[_Source], Field(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSolution:
    """A solution, and whether it can be a candidate here."""

    name: str
    """As it calls itself."""
    definition: str
    """Name of the definition that it says it implements."""
    solution: Solution | None
    """The candidate; None where it is none here."""
    reason: str = ""
    """Why it is none, a stable code: ``host-code`` or ``language``."""
    detail: str = ""
    """One sentence on that."""


def export_solution(solution: Solution, definition: Definition) -> dict[str, Any]:
    """Return a solution as their JSON.

    Raises
    ------
    NotExportable
        If it is for another definition, or their launchers could not do what ours does.
    """
    if solution.definition != definition.name:
        raise NotExportable(f"{solution.name} is for {solution.definition}, not {definition.name}")
    taken = {source.path for source in solution.sources} & {OWN_FILE, _MAIN}
    if taken:
        raise NotExportable(f"{solution.name}: its file '{min(taken)}' has a name that is needed")
    body = solution.model_dump(mode="json", exclude={"sources"})
    files = [source.model_dump(mode="json") for source in solution.sources]
    own = {
        "format": _FORMAT,
        "digest": solution.digest,
        "sources": [source.path for source in solution.sources],
        "solution": body,
    }
    files.append({"path": OWN_FILE, "content": json.dumps(own, indent=1)})
    entry, description = f"{solution.sources[0].path}::{solution.entry}", _NO_HOST_CODE
    if solution.language is Language.TRITON:
        files.append({"path": _MAIN, "content": launcher_text(solution, definition)})
        entry, description = f"{_MAIN}::run", "A variant of Retuned; main.py launches it."
    return {
        "name": solution.name,
        "definition": solution.definition,
        "description": description,
        "author": solution.author or "retuned",
        "spec": {
            "language": _WORDS[solution.language],
            "target_hardware": [_HARDWARE[solution.language]],
            "entry_point": entry,
            "destination_passing_style": True,
            "dependencies": [],
        },
        "sources": files,
    }


_NO_HOST_CODE = (
    "Device code and launch data of a variant of Retuned, without host code: only Retuned runs it."
)


def import_solution(body: Mapping[str, Any], *, where: str) -> ImportedSolution:
    """Read a solution; none of its code is run.

    Raises
    ------
    UnreadableInput
        If it is none, if a path leaves its folder, or if ``retuned.json`` contradicts the rest.
    """
    found = validated(_Solution, body, where=where, code="bad-solution")
    _check_paths(found, where=where)
    contents = {source.path: source.content for source in found.sources}
    if OWN_FILE not in contents:
        return ImportedSolution(
            name=found.name, definition=found.definition, solution=None, **_why_not(found)
        )
    own = parse_object(contents[OWN_FILE], where=f"{where}: {OWN_FILE}")
    solution = _own_solution(own, contents, where=f"{where}: {OWN_FILE}")
    if (solution.name, solution.definition) != (found.name, found.definition):
        raise _contradicts(where, "another name or definition")
    if own.get("digest") != solution.digest:
        raise _contradicts(where, "another digest: the source was changed after it was exported")
    return ImportedSolution(name=found.name, definition=found.definition, solution=solution)


def _own_solution(own: Mapping[str, Any], contents: Mapping[str, str], *, where: str) -> Solution:
    body, paths = own.get("solution"), own.get("sources")
    well = isinstance(body, dict) and isinstance(paths, list) and own.get("format") == _FORMAT
    if not well or not all(isinstance(path, str) and path in contents for path in paths or ()):
        message = f"is not as Retuned writes it (format {_FORMAT}: digest, sources, solution)"
        raise UnreadableInput("bad-solution", where=where, message=message)
    assert isinstance(body, dict), "checked above"
    assert isinstance(paths, list), "checked above"
    try:
        sources = tuple(SourceFile(path=path, content=contents[path]) for path in paths)
        solution = Solution.model_validate({**body, "sources": sources})
    except ValidationError as error:
        raise unreadable(error, where=where, code="bad-solution") from None
    # A file from outside may call itself what it likes; trust is not its to give.
    return solution.model_copy(update={"trust": TrustClass.GENERATED})


def _check_paths(found: _Solution, *, where: str) -> None:
    seen: set[str] = set()
    for source in found.sources:
        if _FOLDER.search(source.path):
            message = f"the path {source.path[:80]!r} leaves the solution's folder"
            raise UnreadableInput("bad-solution", where=where, message=message)
        if source.path in seen:
            message = f"the file {source.path[:80]!r} is there twice"
            raise UnreadableInput("bad-solution", where=where, message=message)
        seen.add(source.path)


def _why_not(found: _Solution) -> dict[str, str]:
    language = found.spec.language.lower()
    if language not in ("triton", "python", "cpp", "cuda", "tilelang"):
        return {"reason": "language", "detail": f"'{language[:40]}' is not a language of variants"}
    return {
        "reason": "host-code",
        "detail": (
            f"'{found.spec.entry_point[:80]}' is host code, which Retuned does not run; a "
            f"candidate is device code with declarative launch data ({OWN_FILE}, or a file as "
            "`retuned validate` takes it)"
        ),
    }


def _contradicts(where: str, what: str) -> UnreadableInput:
    message = f"{OWN_FILE} and the rest of the solution contradict: {what}"
    return UnreadableInput("bad-solution", where=where, message=message)
