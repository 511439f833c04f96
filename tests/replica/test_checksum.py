"""The checksum of event files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopyard.replica.checksum import masked_crc, masked_crcs


def test_checksum_is_crc_32c() -> None:
    unmasked = (masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0xE3069283


@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_many_records_have_the_checksums_of_each(random, kinds: int) -> None:  # type: ignore[no-untyped-def]
    lengths = [random.randrange(40) for _ in range(kinds + 1)]
    records = [random.randbytes(random.choice(lengths)) for _ in range(100)]
    assert masked_crcs(records) == [masked_crc(record) for record in records]


def test_long_input_has_the_checksum_of_its_bytes() -> None:
    data = bytes(range(256)) * 80 + b"end"
    # a group of equal inputs is computed without lanes
    assert [masked_crc(data)] * 32 == masked_crcs([data] * 32)
