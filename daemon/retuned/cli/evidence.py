"""``retuned evidence``: what was measured, who signed it, and whether it holds.

How evidence looks: a page for people, and one line for `retuned show`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from retuned.cli.output import JsonFlag, emit_json, safe, say, stdout
from retuned.cli.session import ConfigOption, StateOption, StateSession, desk
from retuned.contract import Digest
from retuned.errors import Refused, UnreadableInput, UsageError
from retuned.files import read_plain
from retuned.lab.evidence_check import wrong_with_raw
from retuned.ports import Store, Verifier
from retuned.settings import load_settings
from retuned.stages.verdict import (
    Doubt,
    EvidenceDocument,
    EvidenceFault,
    Interval,
    Timing,
    contradiction_in,
)
from retuned.standalone.evidence import Read, read
from retuned.store.envelopes import signed_by, unseal
from retuned.store.keys import Ed25519Notary, PublicKey, public_pem
from retuned.text import print_fields

_UNBOUNDED = 1e9
"""Above it a bound says that too few blocks are in."""


def print_page(document: EvidenceDocument, *, digest: str, key: str, doubt: Doubt | None) -> None:
    """Print everything that a person needs to judge the evidence."""
    signed = f"signed by {key}, whole" if doubt is None else f"NOT VERIFIED: {doubt.detail}"
    print_fields([("evidence", digest), ("signature", signed), *_rows(document)])


def gates_line(document: EvidenceDocument) -> str:
    """Name the gates that answered, such as ``G0 G1 G2 passed, G3 failed``."""
    passed = [gate for gate, good in document.gates() if good]
    failed = [gate for gate, good in document.gates() if not good]
    parts = [f"{' '.join(passed)} passed"] if passed else []
    parts += [f"{' '.join(failed)} failed"] if failed else []
    return ", ".join(parts) or "no gate answered"


def _rows(document: EvidenceDocument) -> Iterator[tuple[str, str]]:
    verdict, freeze = document.verdict, document.freeze
    yield "verdict", f"{verdict.status}: {verdict.reason} at gate {verdict.gate}"
    yield "", verdict.detail
    yield "kernel", document.definition
    yield "candidate", document.candidate
    yield "incumbent", document.incumbent
    made = f" from {', '.join(freeze.parents)}" if freeze.parents else ""
    asked = f", prompt {freeze.prompt}" if freeze.prompt else ""
    origin = f"class {freeze.trust}, {freeze.structure}, by {freeze.author or 'an unnamed author'}"
    yield "frozen", f"{freeze.frozen_at.isoformat(timespec='seconds')}, {origin}{made}{asked}"
    yield "tried", f"{document.tried} candidates of experiment {document.plan} so far"
    for check in document.evidence.checks:
        answer = "passed" if check.reason is None else f"FAILED: {check.reason}"
        ratio = f", error {check.error_ratio:.3g} of the incumbent's" if check.error_ratio else ""
        yield check.gate, f"{answer}{ratio}  {check.detail}"
    if document.evidence.search is not None:
        yield "search", _interval(document.evidence.search)
    if document.evidence.timing is not None:
        yield from _timing(document.evidence.timing)
    environment = document.environment
    facts = (environment.arch, environment.driver, environment.runtime, environment.compiler)
    torch = f"torch {environment.torch}" if environment.torch else ""
    switches = [f"{name}={value}" for name, value in sorted(environment.numerics.items())]
    yield "environment", "; ".join(filter(None, (*facts, torch, *switches)))
    isolation = document.isolation
    walls = {
        "system calls filtered": isolation.system_calls_filtered,
        "no network": isolation.network_cut,
        "no files": isolation.files_denied,
        isolation.memory_check: True,
    }
    yield "isolation", "; ".join(name for name, stands in walls.items() if stands)
    if isolation.reference_confined_by:
        yield "  reference", f"confined by {' and '.join(isolation.reference_confined_by)}"
    for sentence in isolation.missing:
        yield "  missing", sentence
    for seed in document.seeds:
        when = "after" if seed.after_freeze else "before"
        yield f"seed {seed.purpose}", f"{seed.commitment}, drawn {when} the candidate was frozen"


def _timing(timing: Timing) -> Iterator[tuple[str, str]]:
    yield (
        "final",
        f"{timing.pairs} pairs in {timing.blocks} blocks of {timing.processes} processes at least, "
        f"{timing.looks} looks; identical clones differ by up to {timing.noise_floor_ratio:.4f}x",
    )
    for shape in timing.shapes:
        axes = ", ".join(f"{name}={length}" for name, length in shape.axes.items())
        floor = f", physics {shape.floor_us:.3g} us" if shape.floor_us else ""
        yield (
            f"  {axes}",
            f"{shape.incumbent_us:.4g} us -> {shape.candidate_us:.4g} us, "
            f"{_interval(shape.speedup)}{floor}",
        )
    for group in timing.groups:
        names = " and ".join(
            ",".join(str(length) for length in timing.shapes[index].axes.values())
            for index in group.members
        )
        yield f"  {names} together", f"{_interval(group.speedup)}, adjusted p {group.p_value:.2g}"


def _interval(interval: Interval) -> str:
    upper = f"{interval.upper:.3f}" if interval.upper < _UNBOUNDED else "no bound"
    return (
        f"{interval.point:.3f}x [{interval.lower:.3f}, {upper}], each bound at "
        f"{interval.confidence:.0%}"
    )


app = typer.Typer(no_args_is_help=True, help="Show and verify the evidence of candidates.")

WhatArgument = Annotated[
    str,
    typer.Argument(
        help="Digest of evidence or of a candidate, id of a proposal, or the beginning of one."
    ),
]
_SHORTEST = 4
_MAX_BYTES = 64 << 20


@app.command()
def show(
    what: WhatArgument,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Print evidence as a page: gates, numbers, noise floor, environment, seeds, signature."""
    with desk(config, state_dir) as at:
        digest = _find(at.store, what)
        found, key = _opened(at, digest)
    if found.document is None:
        assert found.doubt is not None, "what cannot be read is in doubt"
        raise UnreadableInput(
            str(found.doubt.fault), where=f"evidence {digest}", message=found.doubt.detail
        )
    if json:
        emit_json(
            {
                "digest": digest,
                "key": key,
                "verified": found.doubt is None,
                "doubt": _doubt(found.doubt),
                "document": found.document.model_dump(mode="json"),
            }
        )
        return
    print_page(found.document, digest=digest, key=key, doubt=found.doubt)


@app.command()
def verify(
    what: Annotated[
        str,
        typer.Argument(help="As for `show`, or a file that `evidence save` has written."),
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="Public key in PEM; without it the keys of this installation count."),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Verify that evidence is whole and signed, and that its numbers support its claim.

    The command computes the bounds again from the raw pairs, and this version's judge judges them
    again. Exit 1 if a check fails.
    """
    given = _public(key) if key is not None else None
    if Path(what).is_file():
        data, name = _file(Path(what)), safe(what)
        settings = load_settings(config, {"state_dir": state_dir})
        document, doubt = unseal(data, verifier=given or Ed25519Notary(settings.keys))
        found, signer = Read(document=document, doubt=doubt), signed_by(data)
    else:
        with desk(config, state_dir) as at:
            name = _find(at.store, what)
            found, signer = _opened(at, name, verifier=given)
    doubt = found.doubt
    if doubt is None and found.document is not None:
        doubt = contradiction_in(found.document) or _recomputed(found.document)
    if json:
        emit_json(
            {"evidence": name, "key": signer, "verified": doubt is None, "doubt": _doubt(doubt)}
        )
        raise typer.Exit(0 if doubt is None else 1)
    if doubt is not None:
        raise Refused(f"{name} cannot be trusted: {safe(doubt.detail)} [{doubt.fault}]")
    stdout().print(
        f"yes: {name} is whole, {signer} signed it, and its numbers support its claim",
        soft_wrap=True,
    )


@app.command()
def save(
    what: WhatArgument,
    file: Annotated[Path, typer.Argument(help="Where to; it must not exist.")],
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Write evidence with its signature to a file, so that others can verify it elsewhere."""
    with desk(config, state_dir) as at:
        data = at.store.get_blob(_find(at.store, what))
    try:
        with file.open("xb") as stream:
            stream.write(data)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from error
    say(f"{len(data)} bytes in {file}; `retuned evidence verify {file} --key KEY` verifies them")


@app.command()
def key(config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False) -> None:
    """Print the public key that evidence is signed with now; make a key where none exists."""
    settings = load_settings(config, {"state_dir": state_dir})
    _print_key(Ed25519Notary(settings.keys), json=json)


@app.command()
def rotate(
    revoke: Annotated[
        str,
        typer.Option(help="Stop trusting this key: its id, or `current` for the one before."),
    ] = "",
    reason: Annotated[str, typer.Option(help="Why it is revoked, for the record.")] = "",
    trust_until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z"],
            help="Still trust what it signed until then, such as 2026-11-21T10:00:00+0000. "
            "Anyone who has the key can sign any time into a document; without this option "
            "nothing that it signed is trusted.",
        ),
    ] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Sign with a new key from now on. Older signatures stay valid unless their key is revoked.

    Evidence of a revoked key permits no swap and is measured again; swaps that run already go on.
    """
    now = datetime.now(UTC)
    if trust_until is not None and trust_until > now:
        raise UsageError(
            f"--trust-until {trust_until.isoformat()} is in the future: anyone who has the key "
            "would be trusted until then; name a time before the key can have been read"
        )
    if not revoke and (reason or trust_until is not None):
        raise UsageError("--reason and --trust-until are about --revoke; say which key")
    settings = load_settings(config, {"state_dir": state_dir})
    notary = Ed25519Notary(settings.keys)
    signing = _signing(notary)
    named = signing if revoke == "current" else revoke
    if revoke and named not in notary.public_keys():
        raise UsageError(f"no key {named!r:.60} ever signed here; see `retuned evidence key`")
    if named in ("", signing) or not signing:
        notary.rotate()
    if named:
        notary.revoke(named, at=now, reason=reason, trust_until=trust_until)
    _print_key(notary, json=json)


def _signing(notary: Ed25519Notary) -> str:
    """Return the key that signs now, one that others may have read too; empty if it is damaged."""
    try:
        return notary.current(exposed=True)
    except UnreadableInput:
        return ""


def _print_key(notary: Ed25519Notary, *, json: bool) -> None:
    current = notary.current()
    keys = notary.public_keys()
    if current not in keys:
        raise UnreadableInput(
            "public-key-missing",
            where=current,
            message="its public half is gone, so nothing it signed can be verified; run "
            "`retuned evidence rotate`",
        )
    pem = public_pem(keys[current])
    older = sorted(set(keys) - {current})
    revoked = notary.revocations.all()
    if json:
        said = [each.model_dump(mode="json") for each in revoked]
        emit_json({"key": current, "public": pem, "older": older, "revoked": said})
        return
    stdout().print(pem.rstrip("\n"))
    say(f"{current}, and {len(older) - len(revoked)} older keys that verify what they signed")
    for each in revoked:
        until = f", but for what it signed until {each.trust_until}" if each.trust_until else ""
        say(safe(f"revoked: {each.key} at {each.at}{until} {each.reason}"))


def _opened(
    at: StateSession, digest: Digest, *, verifier: Verifier | None = None
) -> tuple[Read, str]:
    found = read(at.store, verifier or at.notary, digest)
    signer = signed_by(at.store.get_blob(digest)) if found.document is not None else ""
    return found, signer


def _find(store: Store, what: str) -> Digest:
    """Return the evidence that is meant: by itself, by its candidate, or by a proposal.

    Raises
    ------
    UsageError
        If there is none, or the beginning fits several.
    """
    wanted = what.strip().lower().removeprefix("sha256:")
    if len(wanted) < _SHORTEST:
        raise UsageError(f"give at least {_SHORTEST} characters; see `retuned proposals --all`")
    found: set[Digest] = set()
    for stored in store.list("proposal"):
        if stored.id.removeprefix("sha256:").startswith(wanted):
            found.add(str(stored.body.get("evidence") or ""))
    if not found:
        for stored in store.list("finding"):
            verdict: dict[str, Any] = stored.body.get("verdict") or {}
            named = str(verdict.get("evidence") or "")
            names = (named, str(verdict.get("candidate") or ""))
            if any(name.removeprefix("sha256:").startswith(wanted) for name in names):
                found.add(named)
    found.discard("")
    if not found:
        raise UsageError(f"no evidence is called {what!r:.80}; see `retuned proposals --all`")
    if len(found) > 1:
        many = ", ".join(sorted(found)[:5])
        raise UsageError(f"{what!r:.80} fits {len(found)} pieces of evidence: {many}")
    return found.pop()


def _public(path: Path) -> PublicKey:
    return PublicKey.read(_file(path), where=str(path))


def _file(path: Path) -> bytes:
    try:
        data = read_plain(path, max_bytes=_MAX_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UnreadableInput(
            "unreadable", where=str(path), message=f"{why}; name another file"
        ) from error
    if data is None:
        raise UnreadableInput(
            "too-large", where=str(path), message=f"has more than {_MAX_BYTES} bytes"
        )
    return data


def _recomputed(document: EvidenceDocument) -> Doubt | None:
    wrong = wrong_with_raw(document)
    return Doubt(fault=EvidenceFault.CONTRADICTED, detail=wrong) if wrong is not None else None


def _doubt(doubt: Doubt | None) -> dict[str, str] | None:
    return None if doubt is None else {"reason": str(doubt.fault), "detail": doubt.detail}
