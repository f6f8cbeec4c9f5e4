"""From views to HTML: templates that escape everything, one style sheet, no script."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined

from retuned import text
from retuned.report.pages import environment, style_sheet
from retuned.report.profiles import geometry
from retuned.report.proposal_text import freeze_line
from retuned.review.figures import shape_words
from retuned.review.views import event_words, key_name
from retuned.stages.drift import answer
from retuned.stages.profile import SignatureStat
from retuned.text import ago

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # not no-referrer: a browser would then hide from us where a form comes from
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-robots-tag": "noindex, nofollow",
}
"""Of every answer. Nothing from elsewhere is loaded, and no script runs, not even our own."""
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 13 6 6l3 4 5-8" fill="none" stroke="#1f5f99" stroke-width="2.2"/></svg>'
)


@cache
def style() -> str:
    """Return the style sheet: that of all reports, and what only these pages need."""
    own = files("retuned.review").joinpath("templates", "page.css").read_text(encoding="utf-8")
    return f"{style_sheet()}\n{own}"


@cache
def style_version() -> str:
    """Return what makes the address of the style sheet another one when it changes."""
    return hashlib.sha256(style().encode()).hexdigest()[:12]


def render(name: str, **values: object) -> str:
    """Return a page.

    Parameters
    ----------
    name
        File of the template.
    values
        Views, by the name the template knows them by.
    """
    return _environment().get_template(name).render(style_version=style_version(), **values)


@cache
def _environment() -> Environment:
    made = environment("retuned.review", "retuned.report", undefined=StrictUndefined)
    made.filters.update(
        ago=ago,
        answer=answer,
        event=event_words,
        freeze=freeze_line,
        key_name=key_name,
        path=path_of,
        plural=text.plural,
        shape=shape_words,
        signature=_signature,
        stamp=_stamp,
    )
    return made


def path_of(key: str) -> str:
    """Return a key as a part of an address.

    Examples
    --------
    >>> path_of("serving/swp-ab12"), path_of("a?b#c")
    ('serving/swp-ab12', 'a%3Fb%23c')
    """
    return quote(key, safe="/")


def _stamp(moment: datetime) -> str:
    """Write a moment in UTC, which the pages say once."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _signature(stat: SignatureStat) -> str:
    return geometry(stat.signature.model_dump(mode="json"))
