"""Servers of one database accept each other's tokens for minutes, and no other tokens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hopyard.errors import AuthError
from hopyard.server.server_tokens import (
    MAX_CLOCK_SKEW,
    TOKEN_LIFETIME,
    server_proof,
    server_token,
    verify_server_token,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, OTHER = "ab" * 32, "cd" * 32


def test_server_token_names_its_sender_until_it_expires() -> None:
    token = server_token(KEY, sender="local-a_b", now=NOW)
    for later in (timedelta(0), TOKEN_LIFETIME, -MAX_CLOCK_SKEW):
        assert verify_server_token(token, KEY, now=NOW + later) == "local-a_b"
    for when in (
        NOW + TOKEN_LIFETIME + MAX_CLOCK_SKEW + timedelta(seconds=2),
        NOW - MAX_CLOCK_SKEW - timedelta(seconds=2),
    ):
        with pytest.raises(AuthError, match="expired"):
            verify_server_token(token, KEY, now=when)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("local", "locol"),
        lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"),
        lambda t: "hops_",
        lambda t: "hops_a_b_c",
    ],
)
def test_altered_server_token_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(AuthError):
        verify_server_token(change(server_token(KEY, sender="local-a", now=NOW)), KEY, now=NOW)


def test_token_of_another_server_is_refused() -> None:
    for key in (OTHER, ""):
        with pytest.raises(AuthError):
            verify_server_token(server_token(KEY, sender="local-a", now=NOW), key, now=NOW)
    nonce = "0" * 64
    assert server_proof(KEY, nonce) != server_proof(OTHER, nonce)
    assert server_proof("", nonce) == ""
