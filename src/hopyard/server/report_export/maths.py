"""TeX as MathML, which browsers show without styles or fonts of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from xml.etree.ElementTree import Element

_MAX_LENGTH = 4000  # characters
_MAX_DEPTH = 60
_ELEMENTS = frozenset(
    [
        *("math", "mrow", "mi", "mo", "mn", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mstyle"),
        *("msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts"),
        *("none", "mtable", "mtr", "mtd", "mpadded", "mphantom", "menclose", "mfenced", "merror"),
    ]
)
_ATTRIBUTES = frozenset(
    [
        *("display", "displaystyle", "scriptlevel", "mathvariant", "mathcolor", "mathbackground", "stretchy"),
        *("fence", "form", "separator", "lspace", "rspace", "minsize", "maxsize", "largeop", "movablelimits"),
        *("accent", "accentunder", "linethickness", "width", "height", "depth", "columnalign", "rowspacing"),
        *("columnspacing", "columnlines", "rowlines", "columnspan", "rowspan", "notation", "open", "close"),
    ]
)
# The rules for lengths are those of `web/src/text/maths_length.ts`, which shows the same text.
_MIN_EM, _MAX_EM = -2, 20
_MAX_SPAN = 50  # columns or rows
_LENGTH = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([a-z]*|%)")
_EM_OF_UNIT = {"": 1, "em": 1, "ex": 0.5, "mu": 1 / 18, "%": 0.01, "px": 1 / 16, "pt": 1 / 12, "pc": 1} | {
    "mm": 0.236,
    "cm": 2.36,
    "in": 6,
}
_KEYWORDS = frozenset(["thin", "medium", "thick"])
_LENGTHS = frozenset(
    [
        *("lspace", "rspace", "minsize", "maxsize", "linethickness", "width", "height", "depth"),
        *("rowspacing", "columnspacing"),
    ]
)


def tex_to_mathml(tex: str, *, is_display: bool) -> str:
    """Returns MathML. TeX that cannot be read is returned as it is written, as code."""
    from latex2mathml.converter import convert_to_element

    source = f"<code>{escape(tex)}</code>"
    if len(tex) > _MAX_LENGTH:
        return source
    try:
        root = convert_to_element(tex, display="block" if is_display else "inline")
        return "".join(_serialise(root, 0))
    except Exception:  # its errors have no common class; RecursionError is another
        return source


def _serialise(element: Element, depth: int) -> Iterator[str]:
    """Yields the element with its content. The converter passes on elements, attributes and text of the
    source without a check, so only those of mathematics are written, and everything is escaped."""
    if element.tag not in _ELEMENTS or depth > _MAX_DEPTH:
        raise ValueError(f"{element.tag} is no element of mathematics")
    attributes = "".join(
        f' {name}="{escape(bounded)}"'
        for name, value in element.items()
        if name in _ATTRIBUTES and (bounded := bound_attribute(name, unescape(value))) is not None
    )
    yield f"<{element.tag}{attributes}>"
    if element.text:
        yield escape(unescape(element.text))
    for child in element:
        yield from _serialise(child, depth + 1)
        if child.tail:
            yield escape(unescape(child.tail))
    yield f"</{element.tag}>"


def bound_attribute(name: str, value: str) -> str | None:
    """Returns the value within bounds, so that a formula stays in its place; None: leave it out."""
    if name in _LENGTHS:
        parts = [_bound_length(part) for part in value.split()]
        return None if not parts or None in parts else " ".join(part for part in parts if part is not None)
    if name in ("columnspan", "rowspan"):
        return value if re.fullmatch("[0-9]{1,2}", value) and int(value) <= _MAX_SPAN else None
    if name == "scriptlevel":  # below 0, text grows
        return value if re.fullmatch(r"\+?[0-3]", value) else None
    return value


def _bound_length(text: str) -> str | None:
    match = _LENGTH.fullmatch(text)
    if match is None or match[2] not in _EM_OF_UNIT:
        return text if text in _KEYWORDS else None
    size = float(match[1]) * _EM_OF_UNIT[match[2]]
    return f"{_MAX_EM}em" if size > _MAX_EM else f"{_MIN_EM}em" if size < _MIN_EM else text
