"""Selects paths by patterns, as `hop files` and `outputs:` take them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def is_selected(path: str, patterns: Sequence[str]) -> bool:
    """Returns whether the last pattern that covers `path` includes it. A pattern with `!` excludes.

    A pattern covers a path that is equal, is below a folder of that name, or fits as a glob, in which `*`
    is any text. A glob without `/` is compared with the name of the file. If all patterns exclude,
    any other path is included.
    """
    selected = bool(patterns) and all(pattern.startswith("!") for pattern in patterns)
    for pattern in patterns:
        if _covers(pattern.removeprefix("!"), path):
            selected = not pattern.startswith("!")
    return selected


def _covers(pattern: str, path: str) -> bool:
    plain = pattern.removeprefix("./").rstrip("/")
    if plain in ("", ".", path) or path.startswith(plain + "/"):
        return True
    parts = path.split("/")
    if "/" not in plain:
        return any(fnmatchcase(part, plain) for part in parts)
    folders = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    # `**/` may also be no folder at all
    return any(fnmatchcase(folder, form) for folder in folders for form in {plain, plain.replace("**/", "")})
