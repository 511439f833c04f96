"""Rate limits per user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from hopyard.config.server_limits import LimitSettings
from hopyard.errors import TooManyRequests

RateKind = Literal["requests", "submissions", "upload_bytes"]
_BURST_S = 5.0  # a burst of so many seconds of the rate is allowed
_MAX_BUCKETS = 4096
_MAX_REFUSALS_PER_S, _REFUSAL_BURST = 0.5, 50.0  # recorded refusals of one user
# recorded refusals without a valid token: replicas of a copied home, for example, send them forever
_UNAUTHENTICATED_PER_S = 1 / 60
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
    """Holds at most `burst` tokens and gains `rate` tokens per second.

    Taking is allowed while the level is positive, and may make it negative. A request larger than the burst
    therefore passes, and later requests wait for it.
    """

    __slots__ = ("_burst", "_level", "_rate", "_updated_at")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._level, self._updated_at = rate, burst, burst, now

    def take_or_wait_s(self, amount: float, now: float) -> float:
        """Returns 0 when the amount was taken; else the seconds until a retry is worthwhile."""
        self._level = min(self._burst, self._level + (now - self._updated_at) * self._rate)
        self._updated_at = now
        if self._level > 0:
            self._level -= amount
            return 0.0
        return (1 - self._level) / self._rate


class RefusalRates:
    """The rates of recorded refusals, which are limited so that strangers cannot fill the database."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, user: str) -> bool:
        """Returns whether one more refusal of this user is recorded. user: "" without a valid token."""
        now = time.monotonic()
        bucket = self._buckets.get(user)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets.clear()
            rate = _MAX_REFUSALS_PER_S if user else _UNAUTHENTICATED_PER_S
            bucket = self._buckets[user] = TokenBucket(rate, _REFUSAL_BURST, now)
        return not bucket.take_or_wait_s(1, now)


class UserRateLimits:
    """The rate limits of all users. now: seconds of a monotonic clock. Each run's own token is counted
    separately."""

    def __init__(self, limits: LimitSettings, *, now: Callable[[], float]) -> None:
        self._now = now
        self._rates: dict[RateKind, int] = {
            "requests": limits.requests_per_s,
            "submissions": limits.submissions_per_s,
            "upload_bytes": limits.upload_bytes_per_s,
        }
        self._buckets: dict[tuple[str, RateKind], TokenBucket] = {}

    def take_or_raise(self, user: str, kind: RateKind, amount: float = 1) -> None:
        """Raises TooManyRequests with the limit and the time to wait."""
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
            message = f"too many {_LABELS[kind]} by {user}: at most {rate} per second"
            hint = (
                f"wait {max(1, round(wait_s))} s; the limit is `server: {{limits: {{{_SETTING_NAMES[kind]}: "
                f"…}}}}` of the server's config.yaml"
            )
            raise TooManyRequests(message, hints=(hint,), retry_after_s=wait_s)
