"""Names, logs and files that would run a script in a page which does not treat them as text.

Each script sets `window.hostile`: a test of a browser checks that it is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SCRIPT = "window.hostile=1"

# for labels of tags, values of tags, notes, alerts, messages of datasets, captions, names of media
TEXTS: Sequence[str] = (
    f"<script>{SCRIPT}</script>",
    f"</script><script>{SCRIPT}</script>",
    f"</title></style></textarea><script>{SCRIPT}</script>",
    f"<img src=x onerror={SCRIPT}>",
    f"<svg onload={SCRIPT}>",
    f'"><svg/onload={SCRIPT}>',
    f"' onmouseover='{SCRIPT}",
    f"<iframe srcdoc='<script>parent.{SCRIPT}</script>'></iframe>",
    f"<math><mtext><table><mglyph><style><!--</style><img src=x onerror={SCRIPT}>",
    f"javascript:{SCRIPT}",
    f"data:text/html,<script>{SCRIPT}</script>",
    f"[link](javascript:{SCRIPT})",
    f"![image](x' onerror='{SCRIPT})",
    f"<a href='java\tscript:{SCRIPT}'>link</a>",
    f"<base href='//hostile.example/'><script src='{SCRIPT}'></script>",
    f"<meta http-equiv=refresh content='0;url=javascript:{SCRIPT}'>",
    f"<form action='javascript:{SCRIPT}'><input type=submit autofocus onfocus={SCRIPT}>",
    f"{{{{constructor.constructor('{SCRIPT}')()}}}}",
    f"${{{SCRIPT}}}",
    f"\\u003cscript\\u003e{SCRIPT}\\u003c/script\\u003e",
    f"&lt;script&gt;{SCRIPT}&lt;/script&gt;",
    f"$\\href{{javascript:{SCRIPT}}}{{x}}$",
    f"\u202e<script>{SCRIPT}</script>",
    f"__proto__<img src=x onerror={SCRIPT}>",
)

LOGS: Sequence[bytes] = (
    *(text.encode() for text in TEXTS),
    f"\x1b]8;;javascript:{SCRIPT}\x1b\\link\x1b]8;;\x1b\\".encode(),
    f"\x1b[31m<script>{SCRIPT}</script>\x1b[0m".encode(),
    f"\x1b]0;</title><script>{SCRIPT}</script>\x07".encode(),
    f"progress\r<img src=x onerror={SCRIPT}>".encode(),
    f"\xff\xfe<script>{SCRIPT}</script>".encode("latin-1"),
    f"+ADw-script+AD4-{SCRIPT}+ADw-/script+AD4-".encode(),
)

_PAGE = f"<!doctype html><html><body><script>{SCRIPT}</script></body></html>".encode()
_SVG = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{SCRIPT}'><script>{SCRIPT}</script></svg>".encode()

# by path; an image, a table or a text in the name, a page in the bytes
FILES: Mapping[str, bytes] = {
    "page.html": _PAGE,
    "page.xhtml": f"<html xmlns='http://www.w3.org/1999/xhtml'><script>{SCRIPT}</script></html>".encode(),
    "image.svg": _SVG,
    "image.png": _PAGE,
    "table.csv": f'a,b\n=cmd(),"<script>{SCRIPT}</script>"\n'.encode(),
    "text.txt": _PAGE,
    "feed.xml": f"<?xml version='1.0'?><?xml-stylesheet href='data:,{SCRIPT}'?><a/>".encode(),
    "script.js": f"{SCRIPT}\n".encode(),
    "worker.js": f"self.addEventListener('fetch', () => {{{SCRIPT}}})".encode(),
    "table.json": f'{{"columns": ["<script>{SCRIPT}</script>"]}}'.encode(),
    "archive.mhtml": f"MIME-Version: 1.0\nContent-Type: text/html\n\n<script>{SCRIPT}</script>".encode(),
    "no-type": _PAGE,
    f"<img src=x onerror={SCRIPT}>.png": _PAGE,
    f'"onload="{SCRIPT}".svg': _SVG,
}
