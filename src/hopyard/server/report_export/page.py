"""The page around an exported report. It loads nothing, and its policy refuses every script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

_LIGHT = (
    *("#527ee4", "#a75200", "#819b0c", "#9b3d66", "#03a1bb"),
    *("#6116e4", "#65401e", "#ba7377", "#006f99", "#5b3293"),
)
_DARK = (
    *("#89acff", "#c56f2b", "#dde420", "#ce417c", "#24ebff"),
    *("#ac5cff", "#e0a71c", "#ffcaab", "#66b695", "#687fb9"),
)


def _colours(colours: Iterable[str]) -> str:
    return "".join(
        f".curve.k{number}{{stroke:{colour}}}.band.k{number},.dot.k{number}{{fill:{colour}}}"
        for number, colour in enumerate(colours)
    )


_STYLE = (
    ":root{color-scheme:light dark;--text:#1b211d;--soft:#55605a;--line:#dfe3df;--page:#fff;--accent:#1f6f43}"
    "body{margin:0;background:var(--page);color:var(--text);"
    'font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}'
    "main{max-width:820px;margin:0 auto;padding:40px 20px 80px}"
    "h1{font-size:30px;line-height:1.25;margin:0 0 4px}h2{font-size:22px;margin:36px 0 8px}"
    "h3{font-size:18px;margin:24px 0 6px}a{color:var(--accent)}"
    "header p,small,figcaption,.note{color:var(--soft);font-size:14px}"
    "figure,section{margin:24px 0;overflow-x:auto}figcaption{margin:0 0 6px;font-weight:600}"
    "svg{width:100%;height:auto;font-size:11px}svg text{fill:var(--soft)}.legend svg{width:22px;height:8px}"
    ".curve{fill:none;stroke-width:1.6;stroke-linejoin:round}.band{opacity:.16}.bar{fill:var(--accent)}"
    ".grid{stroke:var(--line);fill:none}.axis{stroke:var(--soft);fill:none}"
    ".legend{list-style:none;margin:4px 0;padding:0;display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px}"
    ".legend li{display:flex;align-items:center;gap:6px}"
    "table{border-collapse:collapse;font-size:14px}th,td{border-bottom:1px solid var(--line);"
    "padding:5px 10px;text-align:left;vertical-align:top}th{font-weight:600}"
    ".right{text-align:right}.center{text-align:center}td.right{font-variant-numeric:tabular-nums}"
    "pre,code{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace}"
    "pre{overflow-x:auto;padding:10px 12px;border:1px solid var(--line);border-radius:6px}"
    "pre.plain{white-space:pre-wrap;max-width:320px}"
    "blockquote{margin:16px 0;padding:0 16px;border-left:3px solid var(--line);color:var(--soft)}"
    "img{max-width:100%;height:auto}td img{max-width:320px}"
    "img.small{image-rendering:pixelated;min-width:64px}"
    "hr{border:0;border-top:1px solid var(--line);margin:28px 0}math[display=block]{margin:12px 0}"
    + _colours(_LIGHT)
    + "@media (prefers-color-scheme:dark){:root{--text:#e7ebe8;--soft:#a8b3ac;--line:#2a322d;--page:#101412;"
    "--accent:#63c08c}" + _colours(_DARK) + "}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; img-src data:; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'"
)


def make_page(title: str, about: str, sections: Iterable[str]) -> str:
    """Returns the page. title, about: texts. sections: HTML."""
    name = escape(title) or "Report"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{name}</h1><p>{escape(about)}</p></header>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )
