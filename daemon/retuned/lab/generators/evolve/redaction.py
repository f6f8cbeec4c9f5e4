"""What must not leave the machine: keys, tokens, addresses, paths, host names, mail addresses.

Used at the border, on everything that is sent to a model and on everything that is written into a
transcript. It errs on the side of taking out too much: a comment with a path in it loses the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Redact = Callable[[str], str]

_ROOTS = (
    "home|root|work|workspace|tmp|var|usr|opt|etc|mnt|media|data|srv|proc|sys|dev|run|boot|Users"
    "|builds|scratch|nfs|lustre|efs|local|lib|lib64|bin|sbin|app|apps|private|Volumes"
)
_DOMAINS = (
    "com|net|org|io|dev|ai|edu|gov|mil|info|biz|cloud|internal|intranet|corp|lan|local|localdomain"
    "|svc|cluster|consul|invalid|tech|xyz"
)
_COUNTRIES = "de|uk|fr|eu|ch|at|nl|se|no|fi|dk|pl|it|es|pt|cz|us|ca|au|nz|jp|cn|kr|in|br|tw|sg|hk"
"""Only after two more labels: `point.at` is a member, `www.host.at` is not."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_VALUE = r"(?=[^\s\"',;]{0,200}\d)[A-Za-z0-9_+/=.~-]{16,}(?![\w(\[])"
"""A key looks like this; `tokens = axes[0]` does not."""
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}KEY-----.*?(?:-----END [A-Z ]{0,40}KEY-----|\Z)", re.S),
        "[key]",
    ),
    (re.compile(r"\b(?:https?|wss?|ftp|file|ssh|git|s3|gs)://[^\s\"'<>)\]]+", re.I), "[url]"),
    (re.compile(rf"(?i)\b(bearer|basic)\s+{_VALUE}"), r"\1 [key]"),
    (
        re.compile(
            rf"(?i)\b((?:[a-z0-9]+[_-]){{0,3}}(?:secret|token|credential|key)s?)"
            rf"(\s*[:=]\s*[\"']?){_VALUE}"
        ),
        r"\1\2[key]",
    ),
    (
        re.compile(
            r"(?i)\b((?:[a-z0-9]+[_-]){0,3}(?:api[_-]?key|passw(?:or)?d))"
            r"(\s*[:=]\s*[\"']?)[^\s\"',;]{4,}"
        ),
        r"\1\2[key]",
    ),
    (
        re.compile(
            r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
            r"|\bglpat-[\w-]{16,}|\bhf_[A-Za-z0-9]{20,}|\bxox[abprs]-[\w-]{10,}"
            r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bnpm_[A-Za-z0-9]{30,}"
            r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}"
        ),
        "[key]",
    ),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"), "[mail]"),
    (re.compile(rf"(?<![\w).])(?:~|/(?:{_ROOTS}))(?:/[\w.+@%=,-]+)+/?"), "[path]"),
    (re.compile(r"\b[A-Za-z]:\\(?:[\w.+ -]+\\)*[\w.+-]+"), "[path]"),
    (re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"), "[address]"),
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])", re.I), "[address]"),
    (re.compile(rf"(?<![\w./-])(?:{_LABEL}\.){{1,8}}(?:{_DOMAINS})\b(?![\w(.])", re.I), "[host]"),
    (re.compile(rf"(?<![\w./-])(?:{_LABEL}\.){{2,8}}(?:{_COUNTRIES})\b(?![\w(.])", re.I), "[host]"),
)


def redact(text: str) -> str:
    """Take out what must not leave.

    Examples
    --------
    >>> redact("error in /home/ada/k.cpp: mail ada@example.org, key sk-abcdefghijklmnop123")
    'error in [path]: mail [mail], key [key]'
    >>> redact("acc[i] = x.y / tl.load(p).to(tl.float32)")
    'acc[i] = x.y / tl.load(p).to(tl.float32)'
    """
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def redactor(secrets: Sequence[str] = (), *, names: Sequence[str] = ()) -> Redact:
    """Return `redact` that also takes out these very strings.

    Parameters
    ----------
    secrets
        Keys: taken out wherever they stand.
    names
        Of machines and people: taken out where they stand as words. Names shorter than four
        characters are left aside, they would be found in everything.

    Examples
    --------
    >>> redactor(["geheim1"], names=["node-17"])("on node-17: xgeheim1x, node-170")
    'on [name]: x[key]x, node-170'
    """
    exact = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
    words = sorted({re.escape(name) for name in names if len(name) >= 4}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(words)})(?![\w-])") if words else None

    def both(text: str) -> str:
        for secret in exact:
            text = text.replace(secret, "[key]")
        if pattern is not None:
            text = pattern.sub("[name]", text)
        return redact(text)

    return both
