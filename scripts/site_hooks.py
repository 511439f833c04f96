"""Hooks of the documentation site (mkdocs.yml): code blocks with a file name, the table of the API's
addresses, no request to other hosts."""

from __future__ import annotations

import json
import logging
import re
from html import escape
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.hooks")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+) +(?P<word>[^\n{]+?) *$", re.M)
API_MARK = "<!-- openapi -->"
METHODS = ("get", "head", "post", "put", "patch", "delete")
PIPED = re.compile(r"`([^`]*\\\|[^`]*)`")
WORKER, OWN_WORKER = "https://unpkg.com/iframe-worker/shim", "javascripts/iframe-worker.js"
OUTSIDE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?https?://[^ >]*')


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Returns the page's Markdown in the form that the site's extensions read."""
    if API_MARK in markdown:
        markdown = markdown.replace(API_MARK, api_table(Path(config["docs_dir"]) / "openapi.json"))
    lines = (PIPED.sub(_piped, line) if line.startswith("|") else line for line in markdown.split("\n"))
    return FENCE.sub(_titled, "\n".join(lines))


def _piped(code: re.Match[str]) -> str:
    """A code span of a table with an escaped pipe, of which Python-Markdown would show the backslash."""
    return f"<code>{escape(code[1]).replace(chr(92) + '|', '&#124;')}</code>"


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Returns the page with scripts of its own only. Warns of other hosts."""
    return _local(output, page.url)


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """The same for pages without a source, such as 404.html."""
    return _local(output_content, template_name) if template_name.endswith(".html") else output_content


def _local(html: str, url: str) -> str:
    html = html.replace(WORKER, "../" * url.count("/") + OWN_WORKER)
    for tag in OUTSIDE.findall(html):
        if 'rel="canonical"' not in tag:
            log.warning("%s: a browser fetches this from another host: %s", url, tag)
    return html


def _titled(fence: re.Match[str]) -> str:
    """The second word of a fence is a file name, or an instruction to the tests (`shown`, `fails`)."""
    title = "" if fence["word"] in ("shown", "fails") else f' title="{fence["word"]}"'
    return f"{fence['indent']}```{fence['language']}{title}"


def api_table(file: Path) -> str:
    """Returns one table per first part of the path: method, address, summary."""
    described = json.loads(file.read_text())
    groups: dict[str, list[str]] = {}
    for path, methods in sorted(described["paths"].items()):
        name = path.removeprefix("/api/v1").strip("/").partition("/")[0] or "/"
        for method in METHODS:
            if method in methods:
                summary = (
                    str(methods[method].get("summary") or methods[method].get("description") or "")
                    .replace("|", "\\|")
                    .split("\n")[0]
                )
                groups.setdefault(name, []).append(f"| `{method.upper()}` | `{path}` | {summary} |")
    parts = [
        f"## {name}\n\n| method | path | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        for name, rows in groups.items()
    ]
    return "\n".join(parts)
