"""Write SVG: escaped, well formed, sized by a viewBox, named for screen readers.

Colours are classes; the page's style sheet decides them for light, dark and print.
"""

from __future__ import annotations

from html import escape

from retuned.report.words import clean, short

FONT_PX = 13
_SANS = 0.56
_MONO = 0.605


def text_width(text: str, *, mono: bool = False, size: float = FONT_PX) -> float:
    """Estimate the pixels a line of text takes; exact for mono, a little wide for sans."""
    return len(text) * size * (_MONO if mono else _SANS)


def fit(text: str, room: float, *, mono: bool = False) -> str:
    """Cut text in the middle so that it fits `room` pixels."""
    return short(text, max(4, int(room / (FONT_PX * (_MONO if mono else _SANS)))))


def number(value: float) -> str:
    """Coordinate with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, body: str = "", **attributes: str | float) -> str:
    """Return one element; `body` is markup already, attributes are escaped here.

    A trailing underscore is dropped from a name and inner ones become dashes (``class_``,
    ``text_anchor``).
    """
    parts = [tag]
    for name, value in attributes.items():
        if value == "":
            continue
        shown = value if isinstance(value, str) else number(value)
        parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(clean(shown))}"')
    head = " ".join(parts)
    return f"<{head}>{body}</{tag}>" if body else f"<{head}/>"


def label(x: float, y: float, *, text: str, class_: str = "", anchor: str = "") -> str:
    """Text with its baseline at y; `anchor` is start (default), middle or end."""
    return element("text", escape(clean(text)), x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, *, x2: float, y2: float, class_: str) -> str:
    """Straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, *, width: float, height: float, class_: str) -> str:
    """Rectangle; never of negative size."""
    return element("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=class_)


def dot(x: float, y: float, *, class_: str, radius: float = 4.5) -> str:
    """Circle."""
    return element("circle", cx=x, cy=y, r=radius, class_=class_)


def diamond(x: float, y: float, *, class_: str, radius: float = 6.5) -> str:
    """Diamond: tells a winner from circles without colour."""
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    return element(
        "polygon", points=" ".join(f"{number(a)},{number(b)}" for a, b in corners), class_=class_
    )


def group(body: str, *, tip: str = "") -> str:
    """Group with an optional tooltip, which screen readers and pointers both find."""
    return element("g", (element("title", escape(clean(tip))) if tip else "") + (body or " "))


def document(body: str, *, width: float, height: float, title: str, desc: str) -> str:
    """Whole picture."""
    head = element("title", escape(clean(title)) or " ") + element(
        "desc", escape(clean(desc)) or " "
    )
    return element(
        "svg",
        head + body,
        xmlns="http://www.w3.org/2000/svg",
        class_="plot",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=title or "plot",
    )


def nothing(width: float, *, title: str, why: str = "no data") -> str:
    """Box that says there is nothing to show, so that nobody takes a gap for a zero."""
    body = rect(0.5, 0.5, width=width - 1, height=55, class_="empty")
    body += label(width / 2, 33, text=why, class_="muted", anchor="middle")
    return document(body, width=width, height=56, title=title, desc=why)
