"""The server measures a manifest like the domain decodes it, with less memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.controller.manifests import measure_manifest
from hopyard.domain.manifest import Manifest
from hopyard.errors import IntegrityError
from tests.domain.test_manifest import trees


@given(trees(), st.integers(0, 10_000), st.binary(max_size=3), st.booleans())
def test_server_accepts_exactly_valid_manifests(tree: Manifest, at: int, put: bytes, spoil: bool) -> None:
    data = tree.encode()
    if spoil:
        data = data[: at % len(data)] + put + data[at % len(data) + len(put) :]
    try:
        expected = Manifest.decode(data)
    except IntegrityError:
        with pytest.raises(IntegrityError):
            measure_manifest(data)
        return
    result = measure_manifest(data)
    assert (result.size_bytes, result.files, result.blob_sizes) == (
        expected.size_bytes,
        len(expected.files),
        expected.blob_sizes(),
    )


@pytest.mark.parametrize("entry", [b"[]", b"{}", b'""', b'["a",0,0,[]]'])
def test_malformed_manifest_uses_little_memory(entry: bytes) -> None:
    data = b'{"files":[' + b",".join([entry] * (8 * 2**20 // len(entry))) + b"]"
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError):
            measure_manifest(data)
        # json.loads and tuples took thirty times as much
        assert tracemalloc.get_traced_memory()[1] < 12 * len(data)
    finally:
        tracemalloc.stop()
