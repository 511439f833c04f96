"""JSON for users."""

from __future__ import annotations

import json
import re
from typing import Any

_COMBINING = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
# JSON itself escapes C0. Of stacked marks, those after the first eight are escaped.
_UNSAFE_CHARACTERS = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
    f"|(?<={_COMBINING * 8}){_COMBINING}"
)


def format_json(value: Any) -> str:
    """Formats readable JSON, with a line break at its end. Escapes characters that would act on a
    terminal."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = _UNSAFE_CHARACTERS.sub(lambda match: json.dumps(match[0])[1:-1], text)
    return text + "\n"
