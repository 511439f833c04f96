"""The allowed values of single fields of requests, with their bounds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from hopyard.config.key_values import VARIABLE_PATTERN
from hopyard.config.limits import (
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_STREAM_BYTES,
    MIN_PRIORITY,
    MIN_STREAM_BYTES,
)
from hopyard.domain.ids import DIGEST_PATTERN, NAME_PATTERN, NAME_RULE, RUN_ID_PATTERN, RUN_ID_RULE
from hopyard.domain.text import CONTROLS, LINE_PATTERN, LINE_RULE


def full_match(pattern: str) -> str:
    """Returns a pattern that the whole text must match. `$` would also match before a line break at the
    end."""
    return rf"^(?:{pattern})\Z"


NAME = full_match(NAME_PATTERN)
TEXT = full_match(r"[^\x00]*")  # what a person or program wrote, with line breaks: shown with care
LINE = full_match(LINE_PATTERN)
DIGEST = full_match(DIGEST_PATTERN)
RUN_ID = full_match(RUN_ID_PATTERN)
ENV_KEY = full_match(f"[^={CONTROLS}]+")
PYTHON_VERSION = full_match(r"([0-9]+(\.[0-9]+){0,2})?")
SECRET_NAME = full_match(VARIABLE_PATTERN)  # a secret becomes a variable
REDACTED = {"redacted": True}  # of texts that may be secret: errors do not show them
# What errors say in place of a pattern: what the text must be, and how it is written.
PATTERN_RULES = {
    NAME: ("a name", f"a name is made of {NAME_RULE}"),
    TEXT: ("a text without zero bytes", "remove the zero byte"),
    LINE: ("a line of visible characters", f"write {LINE_RULE}"),
    DIGEST: ("a digest", "a digest is 64 hexadecimal digits"),
    RUN_ID: ("the id of a run", f"an id is {RUN_ID_RULE}"),
    ENV_KEY: ("the name of an environment variable", "use letters, digits and `_`"),
    PYTHON_VERSION: ("a version of Python", "write it as 3.12, or 3.12.4"),
    SECRET_NAME: (
        "the name of a secret",
        "use letters, digits and `_`, not beginning with a digit",
    ),
}
MAX_NAMES = 1000  # parameters, tags … of one run

Name = Annotated[str, Meta(pattern=NAME, max_length=128)]
Text = Annotated[str, Meta(pattern=LINE, max_length=1024)]
LongText = Annotated[str, Meta(pattern=TEXT, max_length=64 * 1024, extra=REDACTED)]
Hex = Annotated[str, Meta(pattern=DIGEST)]
Id = Annotated[str, Meta(pattern=RUN_ID)]
Label = Annotated[str, Meta(max_length=128, pattern=LINE)]
Key = Annotated[str, Meta(min_length=1, max_length=256, pattern=LINE)]
EnvKey = Annotated[str, Meta(min_length=1, max_length=256, pattern=ENV_KEY)]
SecretName = Annotated[str, Meta(max_length=256, pattern=SECRET_NAME)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
LimitBytes = Annotated[int, Meta(ge=MIN_STREAM_BYTES, le=MAX_STREAM_BYTES)]  # of a stream
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
Time = Annotated[datetime, Meta(tz=True)]
ParamField = LongText | Int64 | float | bool | None


def word_pattern(words: Iterable[str]) -> str:
    """Returns the pattern of one of these words."""
    return full_match("|".join(words))


def word_list_pattern(words: Iterable[str]) -> str:
    """Returns the pattern of one or more of these words with commas between."""
    word = f"({'|'.join(words)})"
    return full_match(f"{word}(,{word})*")


class RequestModel(Struct, forbid_unknown_fields=True, kw_only=True):
    """What comes in: a field that is not known is refused, not dropped."""
