from __future__ import annotations

import base64
import copy
import hashlib
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retuned.report.pages import analyze_page, demo_page, diff_page

Page = Callable[[dict[str, Any]], str]
PAGES: dict[str, Page] = {"analyze": analyze_page, "diff": diff_page, "demo": demo_page}
VOID = {"meta", "br", "link", "img", "hr", "input"}
ALLOWED_SVG = {"svg", "title", "desc", "g", "rect", "line", "text", "circle", "polygon", "polyline"}
_TEXT_TAGS = {
    "p",
    "h1",
    "h2",
    "h3",
    "dl",
    "dt",
    "dd",
    "small",
    "span",
    "strong",
    "em",
    "code",
    "br",
    "details",
    "summary",
}
_TABLE_TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"}
_FRAME_TAGS = {"html", "head", "meta", "title", "style", "body", "header", "main", "footer"}
ALLOWED_HTML = _TEXT_TAGS | _TABLE_TAGS | _FRAME_TAGS | {"a", "section", "div"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title></svg><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<![CDATA[ x ]]> <!-- --> &lt;b&gt;",
    "javascript:alert(1)",
    "\x1b[2J\x00\u202egnp.exe\ud800",
)


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"doubled attribute in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> out of order"

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def close(self) -> None:
        super().close()
        assert not self._open, f"never closed: {self._open}"


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def data_of(name: str, samples: ModuleType) -> dict[str, Any]:
    made: dict[str, Any] = getattr(samples, name)()
    return made


def harmless(html: str) -> None:
    """Only the tags and attributes that the templates and plots write may be there."""
    for tag, attributes in read(html).tags:
        assert tag in ALLOWED_HTML | ALLOWED_SVG, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"style", "src", "srcdoc", "action", "formaction"}, (tag, name)
            if name in {"href", "xlink:href"}:
                assert (value or "").startswith("#"), value


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_file_without_scripts_styles_or_links_from_elsewhere(
    name: str, samples: ModuleType
) -> None:
    html = PAGES[name](data_of(name, samples))
    harmless(html)
    assert html.startswith("<!DOCTYPE html>")
    assert not re.findall(r"@import|url\(|<link|<base|<iframe|<object", html)
    addresses = set(re.findall(r"https?://[^\"' <]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", PAGES)
def test_the_content_security_policy_allows_this_style_sheet_and_nothing_else(
    name: str, samples: ModuleType
) -> None:
    html = PAGES[name](data_of(name, samples))
    metas = [a for tag, a in read(html).tags if tag == "meta"]
    policy = next(a["content"] for a in metas if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_aloud(name: str, samples: ModuleType) -> None:
    tags = read(PAGES[name](data_of(name, samples))).tags
    names = [tag for tag, _ in tags]
    assert tags[0] == ("html", {"lang": "en"})
    assert [names.count(landmark) for landmark in ("header", "main", "footer", "h1")] == [
        1,
        1,
        1,
        1,
    ]
    assert names.index("h1") < names.index("h2")
    assert all(a.get("scope") in {"col", "row"} for tag, a in tags if tag == "th")
    pictures = [a for tag, a in tags if tag == "svg"]
    assert pictures
    assert all(a.get("role") == "img" and a.get("aria-label") for a in pictures)
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    labels = {a["aria-labelledby"] for _, a in tags if "aria-labelledby" in a}
    assert labels <= set(ids)


def poisoned(data: object, text: str) -> object:
    """Replace every text in the data, keys of free-form mappings included."""
    if isinstance(data, dict):
        free = {"params", "verdicts", "skipped"}
        return {
            key: dict.fromkeys((text,), next(iter(value.values()), 0))
            if key in free and isinstance(value, dict)
            else poisoned(value, text)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [poisoned(entry, text) for entry in data]
    return text if isinstance(data, str) else data


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", PAGES)
def test_hostile_text_in_every_field_stays_text(name: str, text: str, samples: ModuleType) -> None:
    html = PAGES[name](poisoned(data_of(name, samples), text))  # type: ignore[arg-type]
    harmless(html)
    html.encode()  # no lone surrogate is left
    assert "{" not in text or text in "".join(read(html).text)  # shown, not evaluated
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", html)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200))
def test_any_text_in_every_field_leaves_the_page_whole(text: str, samples: ModuleType) -> None:
    for name, page in PAGES.items():
        harmless(page(poisoned(data_of(name, samples), text)))  # type: ignore[arg-type]


def cuts(data: object) -> Iterator[object]:
    """Yield copies of the data with one key removed, or set to null, at any depth."""
    for path in list(paths(data, ())):
        for value in (None, "gone"):
            copied = copy.deepcopy(data)
            parent: Any = copied
            for step in path[:-1]:
                parent = parent[step]
            if value is None:
                parent[path[-1]] = None
            else:
                del parent[path[-1]]
            yield copied


def paths(data: object, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*above, key)
            yield from paths(value, (*above, key))
    elif isinstance(data, list) and data:
        yield from paths(data[0], (*above, 0))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_survives_any_missing_or_null_key(name: str, samples: ModuleType) -> None:
    data = data_of(name, samples)
    if name == "demo":
        data["timeline"], data["experiments"] = data["timeline"][:3], data["experiments"][:1]
    for cut in cuts(data):
        harmless(PAGES[name](cut))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_nothing_says_so(name: str) -> None:
    html = PAGES[name]({})
    harmless(html)
    assert "no data" in html
    for invented in ("0 requests", "nan", "None", "Undefined"):
        assert invented not in html


def test_numbers_that_are_not_finite_are_shown_as_absent(samples: ModuleType) -> None:
    data = samples.demo()
    data["tokens_per_s"]["after_swap"] = float("nan")
    data["timeline"][0]["tokens_per_s"] = float("inf")
    data["experiments"][0]["noise_floor_ratio"] = float("nan")
    data["experiments"][0]["findings"][0]["speedup"]["lower"] = float("nan")
    shown = " ".join(read(demo_page(data)).text)
    assert not re.search(r"\b(nan|inf)\b", shown)


def test_the_demo_tells_its_story_in_order(samples: ModuleType) -> None:
    html = demo_page(samples.demo())
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html)
    assert headings == [
        "1. The traffic drifted",
        "2. The hypotheses",
        "3. What was tried, and why it lost",
        "4. Who decided",
        "5. The swap",
        "6. The injected fault and the rollback",
        "7. Requests",
        "Machine and method",
    ]
    for finding in samples.experiment()["findings"]:
        assert finding["name"] in html
        assert finding["reason"] in html


def test_a_bad_outcome_is_said_as_plainly_as_a_good_one(samples: ModuleType) -> None:
    data = samples.demo()
    data["requests"] = {"sent": 100, "ok": 97, "failed": 3}
    data["rollback"]["reverted"] = False
    data["swaps"] = []
    shown = " ".join(read(demo_page(data)).text)
    assert "3 failed." in shown
    assert "NOT rolled back" in shown
    assert "nothing was swapped and the incumbent stayed" in shown
    assert "proven" not in shown.split("2. The hypotheses")[0]


def test_new_and_gone_signatures_are_listed(samples: ModuleType) -> None:
    html = diff_page(samples.diff())
    new, gone = html.split('id="new"')[1].split('id="gone"')
    assert "batched_gemm_a8w8" in new
    assert "rmsnorm_kernel_bf16" in gone
    assert "batched_gemm_a8w8" not in gone


def test_shares_of_kernels_are_worked_out_from_gpu_time(samples: ModuleType) -> None:
    rows = [
        samples.signature("a", share=0.1, total_ns=1000),
        samples.signature("b", share=0.3, total_ns=1000),
        samples.signature("a", share=0.6, total_ns=1000),
    ]
    html = analyze_page({"profile": {"signatures": rows}})
    assert "1 of 2 kernels" not in html
    assert "2 of 2 kernels take 100.0 % of kernel time; the largest is a with 70.0 %." in html


def test_a_profile_of_many_signatures_stays_a_readable_page(samples: ModuleType) -> None:
    rows = [samples.signature(f"kernel_{i}", share=1 / 5000) for i in range(5000)]
    html = analyze_page({"profile": {"signatures": rows}})
    assert html.count("<tr>") < 150
    assert "4,900 smaller signatures" in html
    assert len(html) < 1_000_000


def contrast(one: str, other: str) -> float:
    """WCAG contrast of two ``#rrggbb`` colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        lin = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_meets_aa_in_light_and_dark() -> None:
    themes = [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", analyze_page({}), re.DOTALL)
    ]
    assert len(themes) == 2
    for theme in themes:
        for ink in ("ink", "muted", "good", "bad", "accent"):
            for ground in ("page", "panel", "shade"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)


def test_kernels_that_differ_only_in_the_middle_of_a_long_name_stay_apart(
    samples: ModuleType,
) -> None:
    head, tail = "Cijk_Alik_Bljk_BBS_BH" + "_A1" * 300, "_B2" * 300 + "_WG32_8_1"
    rows = [
        samples.signature(f"{head}_MT{tile}x64x32{tail}", share=0.5, total_ns=1000)
        for tile in (128, 256)
    ]
    html = analyze_page({"profile": {"signatures": rows}})
    assert "2 of 2 kernels" in html
    assert "MT128x64x32" in html
    assert "MT256x64x32" in html


def test_profiles_are_called_by_file_names_unless_those_are_the_same(samples: ModuleType) -> None:
    data = samples.diff() | {"names": ["/a/monday.csv", "/b/friday.csv"]}
    assert "/a/" not in diff_page(data)
    data["names"] = ["/a/trace.csv", "/b/trace.csv"]
    assert "/a/trace.csv" in diff_page(data)
