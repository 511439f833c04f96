"""Limits of the tags and the note of a run."""

from __future__ import annotations

from hopyard.domain.text import is_line

MAX_TAG_NAME, MAX_TAG_TEXT, MAX_NOTE = 256, 1024, 4096  # characters
MAX_TAG_BYTES = 2048  # of a name and its text together, in UTF-8: PostgreSQL indexes no longer ones
MAX_TAGS = 1000  # of one run


def is_tag(name: object, value: object) -> bool:
    """Returns whether a script may set this tag: the limits are those of a user's tags."""
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and 0 < len(name) <= MAX_TAG_NAME
        and len(value) <= MAX_TAG_TEXT
        and is_line(name)
        and is_line(value)
        and has_tag_size(name, value)
    )


def has_tag_size(name: str, value: str) -> bool:
    """Returns whether a database can index the tag."""
    return len(f"{name}{value}".encode(errors="replace")) <= MAX_TAG_BYTES
