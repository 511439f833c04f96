from __future__ import annotations

import re

import pytest

from hopyard.server.report_export.markdown import markdown_to_html
from hopyard.server.report_export.maths import bound_attribute, tex_to_mathml

# what no exported text may contain, whatever the source
_ACTING = re.compile(
    r"<(script|img|iframe|form|style|link|svg|object|a href=\"(?!https?:|mailto:))"
    r"|\son\w+=\"|\sstyle=|<a [^>]*javascript",
    re.IGNORECASE,
)


def test_text_tables_and_links_are_shown() -> None:
    html = markdown_to_html("# Head\n\n*a* [b](https://x.example/)\n\n| c | d |\n|---|--:|\n| 1 | 2 |")
    assert "<h2>Head</h2>" in html  # the title of the page is the first heading
    assert "<em>a</em>" in html and 'href="https://x.example/"' in html
    assert '<td class="right">2</td>' in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,x) [d](vbscript:x) [e](/runs)",
        '[a](https://x.example/" onclick="alert(1))',
        "![a](https://x.example/a.png) ![b](data:image/svg+xml;base64,AAAA) ![c](x.png)",
        '<https://x.example/" onmouseover="x>',
        "```<script>\nalert(1)\n```",
        "| a |\n|:-:|\n| <script> |",
        "$\\text{<script>alert(1)</script>}$ $\\href{javascript:1}{x}$ $\\style{color:red}{x}$",
        "$$\n\\text{<img src=x onerror=alert(1)>}\n$$",
        '$\\class{a" onclick="alert(1)}{x}$',
        "[x]: javascript:alert(1)\n\n[x]",
    ],
)
def test_hostile_text_stays_text(text: str) -> None:
    assert _ACTING.search(markdown_to_html(text)) is None


def test_picture_in_the_text_itself_is_shown() -> None:
    html = markdown_to_html('![a "b](data:image/png;base64,iVBORw0KGgo=)')
    assert '<img src="data:image/png;base64,iVBORw0KGgo=" alt="a &quot;b">' in html


def test_maths_and_money() -> None:
    html = markdown_to_html("$x^2$ costs $5 and $6, \\$y\\$\n\n$$\n\\frac{a}{b}\n$$\n\nin $$z$$")
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in html
    assert "costs $5 and $6, $y$" in html
    assert '<p><math display="block">' in html and html.count("<math") == 3


def test_tex_that_cannot_be_read_is_shown_as_it_is_written() -> None:
    assert tex_to_mathml("\\frac{", is_display=False) == "<code>\\frac{</code>"
    assert tex_to_mathml("<b>" * 2000, is_display=False).startswith("<code>&lt;b&gt;")
    assert "<mfrac>" in tex_to_mathml("\\frac{a}{b}", is_display=True)


@pytest.mark.parametrize(  # the same cases as in web/src/text/maths_length.test.ts
    ("name", "value", "bounded"),
    [
        ("width", "1.5em", "1.5em"),
        ("width", "99999em", "20em"),
        ("height", "+0.833em", "+0.833em"),
        ("depth", "-99em", "-2em"),
        ("width", "9999pt", "20em"),
        ("minsize", "2000%", "2000%"),
        ("maxsize", "99999", "20em"),
        ("lspace", "-1width", None),
        ("width", "calc(9em)", None),
        ("width", "٩٩em", None),
        ("linethickness", "thin", "thin"),
        ("columnspacing", "1em 99em", "1em 20em"),
        ("columnspan", "2", "2"),
        ("rowspan", "60000", None),
        ("scriptlevel", "+1", "+1"),
        ("scriptlevel", "-9", None),
        ("notation", "box", "box"),
    ],
)
def test_lengths_of_formulas_are_bounded(name: str, value: str, bounded: str | None) -> None:
    assert bound_attribute(name, value) == bounded


def test_exported_formula_has_bounded_lengths() -> None:
    mathml = tex_to_mathml("\\rule{99999em}{99999em} \\raise{99em}{X}", is_display=True)
    assert 'width="20em" height="20em"' in mathml and 'depth="-2em"' in mathml and "99" not in mathml
