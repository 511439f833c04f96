"""What single fields of requests may be, with the bounds that they must keep."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?$"
TEXT = r"^[^\x00]*$"
DIGEST = r"^[0-9a-f]{64}$"
RUN_ID = r"^[A-Za-z0-9-]{6,64}$"
MAX_NAMES = 1000  # parameters, tags … of one run
MAX_SECONDS = 10 * 365 * 86400.0

Name = Annotated[str, Meta(pattern=NAME, max_length=128)]
Text = Annotated[str, Meta(pattern=TEXT, max_length=1024)]
LongText = Annotated[str, Meta(pattern=TEXT, max_length=64 * 1024)]
Hex = Annotated[str, Meta(pattern=DIGEST)]
Id = Annotated[str, Meta(pattern=RUN_ID)]
Key = Annotated[str, Meta(min_length=1, max_length=256, pattern=TEXT)]
EnvKey = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^=\x00]+$")]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
Time = Annotated[datetime, Meta(tz=True)]
Param = LongText | Whole | float | bool | None


def some_of(words: Iterable[str]) -> str:
    """The pattern of one or more of these words with commas between."""
    one = "(" + "|".join(words) + ")"
    return f"^{one}(,{one})*$"


class In(Struct, forbid_unknown_fields=True, kw_only=True):
    """What comes in: a field that is not known is refused, not dropped."""
