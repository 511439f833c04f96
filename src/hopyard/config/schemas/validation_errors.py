"""Says what is wrong with a value that msgspec refused."""

from __future__ import annotations

import re

_MSGSPEC_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?", re.S)


def friendly_validation_error(message: str) -> str:
    """msgspec's sentence with its path as people write it: `roles.0.resources.gpus: expected …`."""
    found = _MSGSPEC_MESSAGE.fullmatch(message)
    if found is None or not found["path"]:
        return message
    path = found["path"].removeprefix("$").lstrip(".")
    path = re.sub(r"\[(\d+)\]", r".\1", path).replace("[...]", ".*").lstrip(".")
    what = found["what"][:1].lower() + found["what"][1:]
    return f"{path or 'body'}: {what}"
