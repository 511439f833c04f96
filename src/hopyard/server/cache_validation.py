"""How long the entries of caches are valid, on a clock that may be set."""

from __future__ import annotations

from datetime import datetime, timedelta

_NONE = timedelta(0)


def is_valid(until: datetime, now: datetime, ttl: timedelta) -> bool:
    """Returns whether an entry that was made valid until this time, for `ttl`, is still valid.

    A clock that was set back puts the end of an entry far into the future. Such an entry is not valid."""
    return _NONE < until - now <= ttl
