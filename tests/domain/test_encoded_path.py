"""Paths with any bytes as text."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.controller.manifests import measure_manifest
from hopyard.domain.encoded_path import check_encoded_path, decode_path, encode_path, to_text
from hopyard.domain.manifest import FileEntry, LinkEntry, Manifest
from hopyard.errors import IntegrityError, SpecError

NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@given(NAMES)
def test_encoding_is_exact(name: bytes) -> None:
    path = os.fsdecode(name)
    text = encode_path(path)
    assert decode_path(text) == path and text.encode().decode() == text
    if ".git" not in text.casefold() and "~1" not in text:
        check_encoded_path(text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a b", ("a b", False)),
        ("100%", ("100%", False)),
        ("é\n%", ("é%0A%25", True)),
        ("\udcff", ("%FF", True)),
    ],
)
def test_only_odd_paths_are_encoded(path: str, text: tuple[str, bool]) -> None:
    assert to_text(path) == text


@pytest.mark.parametrize(
    "text",
    [
        "%2E%2E/x",
        "a%2Fb",
        "a%",
        "%0a",
        "%00",
        "%00%",
        "a\nb",
        "../a",
        "/a",
        "%41",
        ".git/x",
        "%FF" * 256,
        "x" * 256,
    ],
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        check_encoded_path(text)
    with pytest.raises(IntegrityError):
        Manifest.decode(Manifest((FileEntry(text, 0, ()),), encoded=True).encode())


@pytest.mark.parametrize("target", ["%2Fetc%2Fpasswd", "%2E%2E/x", "a%2F..", "b%00"])
def test_target_that_leads_elsewhere_when_it_is_decoded_is_refused(target: str) -> None:
    tree = Manifest((FileEntry("a%0Ab", 0, ()),), (LinkEntry("link", target),), encoded=True)
    for read in (Manifest.decode, measure_manifest):
        with pytest.raises(IntegrityError, match="link `link` leads out of the tree"):
            read(tree.encode())


def test_encoded_manifest_is_read_back() -> None:
    tree = Manifest(
        (FileEntry("a%0Ab", 0, ()), FileEntry("b", 0, ())), (LinkEntry("l%FF", "a%0Ab"),), encoded=True
    )
    assert Manifest.decode(tree.encode()) == tree
    assert b"encoded" not in Manifest((FileEntry("a%0Ab", 0, ()),)).encode()
