"""One run of ``retuned dataset export``: experiments of a store as rows in a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from retuned import catalog
from retuned.catalog.entry import source_text
from retuned.cli.kernels_bench import learn
from retuned.cli.output import emit_json, safe, say, stdout
from retuned.cli.session import StateSession, desk
from retuned.contract import Definition, Digest, Solution, SourceFile, digest_of
from retuned.errors import Refused, UsageError
from retuned.stages.verdict import EvidenceDocument
from retuned.standalone.evidence import read
from retuned_bench.dataset.folder import Draft, draft
from retuned_bench.dataset.options import Format
from retuned_bench.dataset.records import EpisodeRow, FileEntry, Manifest, SftRow, Split
from retuned_bench.dataset.rows import Maker
from retuned_bench.dataset.rules import REWARD_DEFINITION, Knowledge
from retuned_bench.dataset.trials import trials, tried

MANIFEST = "manifest.json"
_LICENSE = re.compile(r"[A-Za-z0-9.+-]{1,64}( (AND|OR|WITH) [A-Za-z0-9.+-]{1,64}){0,8}")


@dataclass(slots=True)
class _Count:
    """What is counted while rows go by."""

    experiments: int = 0
    findings: int = 0
    redacted: int = 0
    kins: dict[str, Split] = field(default_factory=dict)
    licenses: Counter[str] = field(default_factory=Counter)


def export_dataset(
    out: Path,
    *,
    format: Format,
    license: str,
    seed: str,
    config: Path | None,
    state_dir: Path | None,
    definition_files: Sequence[Path],
    json: bool,
) -> None:
    """Do what `commands.export` describes.

    Raises
    ------
    Refused
        If there is nothing to export.
    UsageError
        If an option is wrong, or `out` cannot be written.
    """
    if not _LICENSE.fullmatch(license):
        raise UsageError(f"--license {license!r:.80} is not an SPDX expression, such as Apache-2.0")
    learn(config, definition_files)
    with desk(config, state_dir) as at, draft(out, [f"{split}.jsonl" for split in Split]) as made:
        manifest = _write(at, made, format, license=license, seed=seed)
        if not any(entry.rows for entry in manifest.files):
            raise Refused(f"there is nothing to export: {_reasons(manifest.left_out)}")
        made.put(MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    if json:
        emit_json({"out": str(out), "manifest": manifest.model_dump(mode="json")})
        return
    rows = ", ".join(f"{entry.rows} for {entry.split}" for entry in manifest.files)
    stdout().print(safe(f"{out}: {rows} rows, {manifest.digest}", limit=4000), soft_wrap=True)
    say(f"left out: {_reasons(manifest.left_out)}")


def _write(at: StateSession, made: Draft, format: Format, *, license: str, seed: str) -> Manifest:
    maker = Maker(_knowledge(at, license), seed=seed)
    count = _Count()
    for trial in trials(at.store):
        count.experiments += 1
        if trial is None:
            maker.left_out["still-running"] += 1
            continue
        count.findings += len(trial.findings)
        if format is Format.SFT:
            for row in maker.winners(trial):
                _put(made, row, count, licenses=[row.licenses.completion])
        elif (episode := maker.episode(trial)) is not None:
            _put(made, episode, count, licenses=[each.license for each in episode.attempts])
    return _manifest(made, format, seed=seed, count=count, left_out=maker.left_out)


def _put(made: Draft, row: SftRow | EpisodeRow, count: _Count, *, licenses: list[str]) -> None:
    made.files[f"{row.split}.jsonl"].add(row.model_dump_json())
    count.kins[row.kin] = row.split
    count.redacted += row.redacted
    count.licenses.update(licenses)


def _manifest(
    made: Draft, format: Format, *, seed: str, count: _Count, left_out: Counter[str]
) -> Manifest:
    files = []
    for split in Split:
        name = f"{split}.jsonl"
        lines = made.files[name]
        files.append(
            FileEntry(
                name=name, split=split, rows=lines.rows, bytes=lines.bytes, sha256=lines.sha256
            )
        )
    return Manifest(
        format=format,
        digest=digest_of([[entry.name, entry.sha256] for entry in files]),
        seed=seed,
        files=tuple(files),
        experiments=count.experiments,
        findings=count.findings,
        left_out={reason: n for reason, n in sorted(left_out.items()) if n},
        kins=dict(sorted(count.kins.items())),
        licenses=dict(sorted(count.licenses.items())),
        redacted_rows=count.redacted,
        reward=REWARD_DEFINITION if format is Format.EPISODES else {},
    )


def _knowledge(at: StateSession, license: str) -> Knowledge:
    # Only here: it costs every command a third of a second otherwise.
    from retuned.lab.generators.evolve.redaction import redactor
    from retuned.lab.llm.setup import machine_names

    def evidence(digest: Digest | None) -> tuple[EvidenceDocument | None, str]:
        found = read(at.store, at.notary, digest)
        return found.document, str(found.doubt.fault) if found.doubt is not None else ""

    return Knowledge(
        definition=_definition,
        incumbent=_incumbents(at),
        evidence=evidence,
        shipped=_shipped,
        own=lambda name: catalog.own_definition(name) is not None,
        redact=redactor(names=machine_names()),
        license=license,
    )


def _definition(name: str) -> Definition | None:
    try:
        return catalog.get(name).definition
    except UsageError:  # a user's definition whose file is gone, or another version's
        return None


def _incumbents(at: StateSession) -> Callable[[str, Digest], Solution | None]:
    """Return what finds an incumbent: the catalog's, or one that an experiment found."""
    from retuned.experiment.__main__ import shipped

    @lru_cache(maxsize=16)
    def find(name: str, digest: Digest) -> Solution | None:
        return shipped(digest, [name]) or tried(at.store, digest)

    return find


def _shipped(source: SourceFile) -> bool:
    return source.content == _catalog_text(source.path)


@lru_cache(maxsize=256)
def _catalog_text(name: str) -> str | None:
    """Keep the catalog's sources at hand, never the state's, which have no limit together."""
    try:
        return source_text(name)
    except OSError:
        return None


def _reasons(left_out: dict[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items())) or "nothing"
