"""The short name of a browser, by which a user recognises a session."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 80
# The first match counts: most browsers also name those that they are compatible with.
_BROWSERS = (
    ("Edge", r"\bEdg(?:A|iOS|e)?/"),
    ("Opera", r"\bOPR/"),
    ("Vivaldi", r"\bVivaldi/"),
    ("Samsung Internet", r"\bSamsungBrowser/"),
    ("Firefox", r"\b(?:Firefox|FxiOS)/"),
    ("Chrome", r"\b(?:Chrome|CriOS|Chromium|HeadlessChrome)/"),
    ("Safari", r"\bSafari/"),
)
_SYSTEMS = (
    ("Android", r"\bAndroid\b"),
    ("iOS", r"\b(?:iPhone|iPad|iPod)\b"),
    ("ChromeOS", r"\bCrOS\b"),
    ("Windows", r"\bWindows\b"),
    ("macOS", r"\b(?:Macintosh|Mac OS X)\b"),
    ("Linux", r"\b(?:Linux|X11)\b"),
)
_PRODUCT = re.compile(r"^[A-Za-z][A-Za-z0-9._-]*")


def browser_name(user_agent: str) -> str:
    """Returns a name such as "Firefox on Linux" for the header `User-Agent`.

    An unknown browser is named by the first product of the header, such as "curl"; "" if there is none.
    """
    name = _first_match(_BROWSERS, user_agent)
    if not name:
        product = _PRODUCT.search(user_agent)
        name = "" if product is None or product.group() == "Mozilla" else product.group()
    system = _first_match(_SYSTEMS, user_agent)
    return " on ".join(part for part in (name, system) if part)[:MAX_NAME_LENGTH]


def _first_match(patterns: tuple[tuple[str, str], ...], text: str) -> str:
    return next((name for name, pattern in patterns if re.search(pattern, text)), "")
