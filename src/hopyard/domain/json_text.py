"""JSON as people read it."""

from __future__ import annotations

import json
import re
from typing import Any

_COMBINING = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
# C0 is escaped by JSON itself; of marks one upon another, those after the first eight
_UNSAFE_CHARACTERS = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
    f"|(?<={_COMBINING * 8}){_COMBINING}"
)


def format_json(value: Any) -> str:
    """JSON that people read, with a line break at its end.
    What would act on a terminal is escaped, as JSON can."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = _UNSAFE_CHARACTERS.sub(lambda found: json.dumps(found[0])[1:-1], text)
    return text + "\n"
