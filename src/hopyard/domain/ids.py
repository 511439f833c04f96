"""Identifiers, and the names that users type."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NewType

from hopyard.backports import dataclass
from hopyard.domain.text import escape
from hopyard.errors import SpecError

RunId = NewType("RunId", str)  # opaque, sorts by submission time
GangId = NewType("GangId", str)  # a run has one gang: the same text as its RunId
AttemptId = NewType("AttemptId", str)  # "<run id>.<number>", number counts from 1
NodeId = NewType("NodeId", str)
QueueName = NewType("QueueName", str)
PoolName = NewType("PoolName", str)
ReservationId = NewType("ReservationId", str)
TrialId = NewType("TrialId", str)
WorkerId = NewType("WorkerId", str)
PartitionId = NewType("PartitionId", int)
Digest = NewType("Digest", str)  # BLAKE3, 64 lower-case hex digits
Version = NewType("Version", int)

DEFAULT_QUEUE = QueueName("default")
DEFAULT_POOL = PoolName("default")
LAST_RUN_REF = "last"  # in a run reference: the newest run of a user

# One rule per kind of name. Always matched in full, here with `fullmatch`. The server's schemas and its API
# description use these patterns.
NAME_PATTERN = r"(?!.*\.\.)[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?"
# each run id is a valid name, too: it becomes a folder
RUN_ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9-]{4,62}[A-Za-z0-9]"
ATTEMPT_PATTERN = RUN_ID_PATTERN + r"\.[1-9][0-9]{0,5}"
DIGEST_PATTERN = r"[0-9a-f]{64}"
STATE_PATTERN = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"  # of a trial that trains in a study

_NAME, _RUN_ID, _DIGEST, _STATE = (
    re.compile(rule) for rule in (NAME_PATTERN, RUN_ID_PATTERN, DIGEST_PATTERN, STATE_PATTERN)
)
# ASCII only, no leading zero: each number has one spelling, and fits 64 bits
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"
NAME_RULE = "letters, digits, `.`, `_` and `-`, beginning with a letter or digit, at most 128"
RUN_ID_RULE = "6 to 64 letters, digits and `-`, with a letter or digit at both ends"


def check_name(value: str, *, subject: str) -> str:
    """Returns `value` if it is a legal name of a dataset, project, user, role …; else raises SpecError.

    A name becomes a folder and a part of an address, so separators, `..` and control characters are rejected.
    """
    if not is_name(value):
        raise SpecError(
            f"{subject}: `{escape(value[:200])}` is not a name", hints=(f"a name is made of {NAME_RULE}",)
        )
    return value


def check_label(value: str, *, subject: str) -> str:
    """Returns `value` unless it is ambiguous as a run reference. Raises SpecError for `last` and for
    numbers."""
    if value == LAST_RUN_REF or (value.isascii() and value.isdecimal()):
        meaning = "the newest run" if value == LAST_RUN_REF else "the run of that number"
        raise SpecError(
            f"{subject}: `{value}` has a special meaning in run references: {meaning}",
            hints=("choose a name that contains other letters",),
        )
    return value


def is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def is_state_name(value: str) -> bool:
    """Returns whether `value` is a legal state name of a study's trial, and so a legal file name."""
    return _STATE.fullmatch(value) is not None


def is_digest(value: str) -> bool:
    return _DIGEST.fullmatch(value) is not None


def check_digest(value: str, *, subject: str = "digest") -> Digest:
    if not is_digest(value):
        raise SpecError(
            f"{subject}: `{escape(value[:80])}` is not a BLAKE3 digest",
            hints=("a digest is 64 lower-case hexadecimal digits",),
        )
    return Digest(value)


def new_run_id(at: datetime, random_bytes: bytes) -> RunId:
    """Returns an id of 20 characters that sorts by `at` (to the millisecond). random_bytes: at least 7
    bytes."""
    return RunId(
        _base32(int(at.timestamp() * 1000), 9) + _base32(int.from_bytes(random_bytes[:7], "little"), 11)
    )


def _base32(value: int, digits: int) -> str:
    return "".join(_BASE32[(value >> (5 * position)) & 31] for position in range(digits - 1, -1, -1))


_RESERVED_RUN_IDS = frozenset({"compose", "counts", "preview"})  # paths below `/runs`


def is_run_id(value: str) -> bool:
    return _RUN_ID.fullmatch(value) is not None


def check_run_id(value: str, *, subject: str = "id") -> RunId:
    """Returns `value` if it is a legal run id; else raises SpecError."""
    if not is_run_id(value):
        raise SpecError(
            f"{subject}: `{escape(value[:80])}` is not a run id", hints=(f"a run id has {RUN_ID_RULE}",)
        )
    if value in _RESERVED_RUN_IDS:
        raise SpecError(f"{subject}: `{value}` is reserved", hints=("use another id",))
    return RunId(value)


def slug(text: str, *, fallback: str = "run") -> str:
    """Makes a legal name from free text such as a folder's name."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    cleaned = re.sub(r"\.{2,}", ".", cleaned).strip("._-")[:128].rstrip("._-")
    return cleaned or fallback


def attempt_id(run: RunId, number: int) -> AttemptId:
    return AttemptId(f"{run}.{number}")


def split_attempt(attempt: AttemptId) -> tuple[RunId, int]:
    """Returns the run and the number of an attempt. Raises SpecError if the text is not an attempt id."""
    run, separator, number = attempt.rpartition(".")
    if not separator or not run or not _NUMBER.fullmatch(number):
        raise SpecError(
            f"`{escape(attempt[:80])}` is not an attempt", hints=("write an attempt as RUN_ID.NUMBER",)
        )
    return RunId(run), int(number)


@dataclass(frozen=True, slots=True, order=True)
class RunName:
    """The name of a run: `alice/mnist/12`."""

    user: str
    project: str
    number: int

    def __str__(self) -> str:
        return f"{self.user}/{self.project}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> RunName:
        parts = text.split("/")
        if len(parts) != 3 or not _NUMBER.fullmatch(parts[2]):
            raise SpecError(
                f"`{escape(text[:400])}` is not the name of a run",
                hints=("write a run as USER/PROJECT/NUMBER, for example alice/mnist/12",),
            )
        return cls(
            check_name(parts[0], subject="user"), check_name(parts[1], subject="project"), int(parts[2])
        )
