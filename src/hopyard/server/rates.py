"""How much one user may ask of the server within a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from hopyard.config.server_limits import LimitSettings
from hopyard.errors import TooManyRequests

RateKind = Literal["requests", "submissions", "upload_bytes"]
_BURST_S = 5.0  # of a rate, that may be taken at once
_MAX_BUCKETS = 4096
_LABELS: dict[RateKind, str] = {
    "requests": "requests",
    "submissions": "submissions",
    "upload_bytes": "bytes of uploads",
}
_SETTING_NAMES: dict[RateKind, str] = {
    "requests": "requests_per_s",
    "submissions": "submissions_per_s",
    "upload_bytes": "upload_per_s",
}


class TokenBucket:
    """Holds at most `burst` tokens and gains `rate` of them a second. What is taken while any are left may go
    below zero, so that a thing larger than the burst passes, and is paid for afterwards."""

    __slots__ = ("_burst", "_level", "_rate", "_updated_at")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._level, self._updated_at = rate, burst, burst, now

    def take_or_wait_s(self, amount: float, now: float) -> float:
        """0 when taken; else the seconds until the same is worth another try."""
        self._level = min(self._burst, self._level + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._level > 0:
            self._level -= amount
            return 0.0
        return (1 - self._level) / self._rate


class UserRateLimits:
    """Of all users; `now` tells seconds of a clock that never goes back.
    Runs' own tokens are counted each for itself."""

    def __init__(self, limits: LimitSettings, *, now: Callable[[], float]) -> None:
        self._now = now
        self._rates: dict[RateKind, int] = {
            "requests": limits.requests_per_s,
            "submissions": limits.submissions_per_s,
            "upload_bytes": limits.upload_bytes_per_s,
        }
        self._buckets: dict[tuple[str, RateKind], TokenBucket] = {}

    def take_or_raise(self, user: str, kind: RateKind, amount: float = 1) -> None:
        """Raises TooManyRequests, naming the limit and when to come again."""
        rate = self._rates[kind]
        if not rate:
            return
        now = self._now()
        bucket = self._buckets.get((user, kind))
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets.clear()
            bucket = self._buckets[user, kind] = TokenBucket(rate, rate * _BURST_S, now)
        wait_s = bucket.take_or_wait_s(amount, now)
        if wait_s:
            message = f"too many {_LABELS[kind]} by {user}: at most {rate} a second"
            hint = (
                f"wait {max(1, round(wait_s))} s; the limit is `server: {{limits: {{{_SETTING_NAMES[kind]}: "
                f"…}}}}` of the server's config.yaml"
            )
            raise TooManyRequests(message, hints=(hint,), retry_after_s=wait_s)
