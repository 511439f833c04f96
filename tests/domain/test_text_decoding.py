"""Texts of users: the encoding of a file, and bytes of a command line that no encoding explains."""

from __future__ import annotations

import pytest

from hopyard.api_client.client import Client
from hopyard.domain.text_decoding import decode_source, decode_text, escape_bytes
from hopyard.errors import SpecError


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_mark_names_the_encoding(encoding: str) -> None:
    assert decode_text("a: é\n".encode(encoding), "f.yaml") == "a: é\n"


def test_other_bytes_are_named_with_their_line() -> None:
    with pytest.raises(SpecError, match=r"f\.yaml: line 2: not UTF-8: byte 0xe9"):
        decode_text("a: 1\nb: é\n".encode("latin-1"), "f.yaml")


def test_bytes_of_a_command_line_are_shown() -> None:
    assert escape_bytes("a\udcff é") == r"a\xff é"
    assert escape_bytes("\ud800") == r"\ud800"


def test_word_that_is_no_text_is_named_before_it_is_sent() -> None:
    client = Client("http://127.0.0.1:1", "hop_x")
    with pytest.raises(SpecError, match=r"^`n\\xff` is not UTF-8"):
        client.post("/runs", {"spec": {"command": ["python", "n\udcff", "x"]}})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("#!/usr/bin/python\n# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"), "x = 'é'\n"),
        ("# vim: set fileencoding=cp1252 :\nx = '€'\n".encode("cp1252"), "x = '€'\n"),
        ("x = 'é€'\n".encode(), "x = 'é€'\n"),
        ("x = 'é'\n".encode("utf-8-sig"), "x = 'é'\n"),
        (b"# coding: no-such\nx = '\xe9'\n", "x = '\ufffd'\n"),
        (b"# coding: base64\nx = '\xe9'\n", "x = '\ufffd'\n"),
        (b"x = '\xe9'\n", "x = '\ufffd'\n"),
    ],
)
def test_source_has_the_encoding_that_it_declares(data: bytes, text: str) -> None:
    assert decode_source(data).splitlines(keepends=True)[-1] == text
