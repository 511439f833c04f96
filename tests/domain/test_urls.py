"""Credentials in URLs: removed for display, inserted again for the program that needs them."""

from __future__ import annotations

import pytest

from hopyard.domain.urls import (
    collect_credentials,
    find_secrets,
    insert_credentials,
    is_loopback_url,
    strip_credentials,
)

LOCK = """--index-url http://owner:PA%20SS@127.0.0.1:18999/simple/
--extra-index-url https://TOKEN@index.example/simple
lib @ git+https://TOKEN2@github.example/org/lib@v1
six==1.17.0
"""
PLAIN = """--index-url http://127.0.0.1:18999/simple/
--extra-index-url https://index.example/simple
lib @ git+https://github.example/org/lib@v1
six==1.17.0
"""


def test_credentials_of_a_lock_are_removed_and_restored() -> None:
    assert strip_credentials(LOCK) == PLAIN == strip_credentials(PLAIN)
    credentials = collect_credentials([LOCK])
    assert credentials == {
        "http://127.0.0.1:18999": "owner:PA%20SS",
        "https://index.example": "TOKEN",
        "https://github.example": "TOKEN2",
    }
    assert insert_credentials(PLAIN, credentials) == LOCK == insert_credentials(LOCK, credentials)
    assert (
        insert_credentials("http://127.0.0.1:18998/simple", credentials) == "http://127.0.0.1:18998/simple"
    ), "another port is another server"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git+ssh://git@github.com/o/r", "git+ssh://git@github.com/o/r"),
        ("ftp://me:secret@host/x", "ftp://me@host/x"),
        ("https://host/a@b", "https://host/a@b"),
        (
            "failed to fetch `http://u:p@h/simple/x/`, http://u:p@h/y",
            "failed to fetch `http://h/simple/x/`, http://h/y",
        ),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_only_credentials_are_removed(text: str, expected: str) -> None:
    assert strip_credentials(text) == expected


@pytest.mark.parametrize(
    "address",
    [
        "https://me:hunter2@host/simple",
        "--index-url https://me:hunter2@host/simple",
        "HTTPS://me:hunter2@host/simple",
        "--extra-index-url=https://me:hunter2@host:8443/simple",
        "git+https://me:hunter2@host/o/r.git@v1#egg=r",
        "-e git+https://ghp_0123456789abcdef@host/o/r",
        "r @ git+https://ghp_0123456789abcdef:@host/o/r",
        "r @ git+https://ghp_0123456789abcdef:x-oauth-basic@host/o/r",
        "git+ssh://me:hunter2@host/o/r",
        "svn+https://me:p%40ss@host/o",
        "https://me:p@ss@host/simple",
        'extra-index-url = ["https://me:hunter2@host/simple"]',
        "url = 'https://me:hunter2@host/simple'",
        "ftp://me:hunter2@host/x",
        "https://host/simple?private_token=hunter2hunter2",
        'dep = { url = "https://host/x.whl?a=1&access_token=hunter2hunter2" }',
    ],
)
def test_passwords_and_tokens_are_found_in_all_notations(address: str) -> None:
    (secret_,) = find_secrets(f"six\n{address}\n")
    assert secret_[0] == 2 and "host" in secret_[1]
    assert not any(
        secret in secret_[1] + strip_credentials(address) for secret in ("hunter2", "ghp_", "p%40ss", "p@ss")
    )


@pytest.mark.parametrize(
    "address",
    [
        "https://me:${TOKEN}@host/simple",
        "git+https://${TOKEN}@host/o/r",
        "git+https://${USER}:${TOKEN}@host/o/r",
        "https://me:<password>@host",
        "https://me:***@host",
        "git+ssh://git@host/o/r",
        "https://me@host/simple",
        "https://host/simple?token=${TOKEN}",
        "https://host/a:b@c",
        "write to me@example.org, see https://host",
    ],
)
def test_secret_names_and_plain_user_names_are_not_secrets(address: str) -> None:
    assert list(find_secrets(address)) == []


@pytest.mark.parametrize("mark", ["?", "#", "\\"])
def test_host_delimiters_are_not_part_of_user_names(mark: str) -> None:
    """A program that puts user names into addresses would send another user's packages to be fetched from
    there."""
    assert collect_credentials([f"https://evil.example{mark}x@pypi.example/simple"]) == {}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8765/x", "https://localhost", "http://[::1]:80", "http://127.9.9.9"]
)
def test_loopback_urls(url: str) -> None:
    assert is_loopback_url(url)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8765", "https://localhost.example.org", "http://127.example.org", ""]
)
def test_other_urls_are_no_loopback_urls(url: str) -> None:
    assert not is_loopback_url(url)
