"""Markdown as HTML: CommonMark with tables, strikethrough and TeX. HTML in the source is shown as text.

`web/src/text/markdown.tsx` shows the same in the browser, with the port of the same parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from hopyard.server.report_export.maths import tex_to_mathml

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_LINK = re.compile(r"^(https?|mailto):", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_ALIGNED = re.compile(r"text-align:(left|center|right)")


def markdown_to_html(text: str) -> str:
    """Returns HTML without scripts, styles, forms and addresses that a browser would load."""
    html: str = _parser().render(text)
    return html


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("js-default", {"html": False, "linkify": False, "typographer": False})
    parser.inline.ruler.after("escape", "maths", _inline_maths)
    parser.block.ruler.before(
        "fence", "maths", _block_maths, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.core.ruler.push("plain", _simplify)
    for name, rule in (
        ("math_inline", _render_maths),
        ("math_display", _render_maths),
        ("image", _render_image),
        ("link_open", _render_link),
    ):
        parser.add_render_rule(name, rule)
    return parser


def _inline_maths(state: StateInline, silent: bool) -> bool:
    """Reads `$x$` and `$$x$$`. As in Pandoc, no space is inside of the signs, and no digit follows, so that
    amounts of money stay text."""
    source, begin, end = state.src, state.pos, state.posMax
    if source[begin] != "$":
        return False
    sign = "$$" if source.startswith("$$", begin) else "$"
    first = begin + len(sign)
    last = source.find(sign, first)
    while last > first and source[last - 1] == "\\":
        last = source.find(sign, last + 1)
    if last <= first or last + len(sign) > end:
        return False
    tex, after = source[first:last], source[last + len(sign) : last + len(sign) + 1]
    if sign == "$" and (tex[0].isspace() or tex[-1].isspace() or after.isdigit()):
        return False
    if not silent:
        token = state.push("math_inline" if sign == "$" else "math_display", "math", 0)
        token.content = tex.strip()
    state.pos = last + len(sign)
    return True


def _block_maths(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """Reads a block from a line that begins with `$$` to one that ends with it."""
    if state.sCount[first] - state.blkIndent >= 4:
        return False
    text = state.src[state.bMarks[first] + state.tShift[first] : state.eMarks[first]].strip()
    if not text.startswith("$$"):
        return False
    lines, line = [text[2:]], first
    while not lines[-1].endswith("$$"):
        line += 1
        if line >= last or state.isEmpty(line):
            return False
        lines.append(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].strip())
    tex = "\n".join(lines)[:-2].strip()
    if not tex or "$$" in tex:
        return False
    if not silent:
        state.line = line + 1
        token = state.push("math_display", "math", 0)
        token.block, token.content, token.map = True, tex, [first, state.line]
    return True


def _simplify(state: Any) -> None:
    """The title of the page is its only heading of the first level, and alignment is a class: the page
    accepts no style attributes."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        elif token.type in ("th_open", "td_open"):
            found = _ALIGNED.fullmatch(str(token.attrs.pop("style", "")))
            if found is not None:
                token.attrSet("class", found[1])


def _render_maths(_: Any, tokens: Sequence[Token], index: int, *_more: Any) -> str:
    token = tokens[index]
    html = tex_to_mathml(token.content, is_display=token.type == "math_display")
    return f"<p>{html}</p>\n" if token.block else html


def _render_image(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A picture in the text itself is shown; one elsewhere becomes its description, with a link."""
    token = tokens[index]
    source = str(token.attrGet("src") or "")
    name = escape(renderer.renderInlineAsText(token.children or [], options, env) or "picture")
    if _PICTURE.fullmatch(source):
        return f'<img src="{escape(source)}" alt="{name}">'
    return _anchor(source) + f"{name}</a>" if _LINK.search(source) else name


def _render_link(_: Any, tokens: Sequence[Token], index: int, *_more: Any) -> str:
    return _anchor(str(tokens[index].attrGet("href") or ""))


def _anchor(address: str) -> str:
    """An address on the server leads nowhere from a file."""
    if not _LINK.search(address):
        return "<a>"
    return f'<a href="{escape(address)}" rel="noopener noreferrer nofollow">'
