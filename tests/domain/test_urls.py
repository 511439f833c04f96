"""Credentials in addresses: taken out for everybody, put in again for the program that needs them."""

from __future__ import annotations

import pytest

from hopyard.domain.urls import credentials, with_credentials, without_credentials

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


def test_a_lock_loses_its_credentials_and_gets_them_back() -> None:
    assert without_credentials(LOCK) == PLAIN == without_credentials(PLAIN)
    known = credentials([LOCK])
    assert known == {"http://127.0.0.1:18999": "owner:PA%20SS", "https://index.example": "TOKEN", "https://github.example": "TOKEN2"}
    assert with_credentials(PLAIN, known) == LOCK == with_credentials(LOCK, known)
    assert with_credentials("http://127.0.0.1:18998/simple", known) == "http://127.0.0.1:18998/simple", "another port is another server"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("git+ssh://git@github.com/o/r", "git+ssh://git@github.com/o/r"),
        ("ftp://me:secret@host/x", "ftp://me@host/x"),
        ("https://host/a@b", "https://host/a@b"),
        ("failed to fetch `http://u:p@h/simple/x/`, http://u:p@h/y", "failed to fetch `http://h/simple/x/`, http://h/y"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_only_credentials_go(text: str, told: str) -> None:
    assert without_credentials(text) == told
