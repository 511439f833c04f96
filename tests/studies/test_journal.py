"""The journal: completely written records are read back, torn records are skipped."""

from __future__ import annotations

import math
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.errors import StorageFull
from hopyard.studies.journal import Journal, encode_record, read_records

records = st.dictionaries(
    st.sampled_from(["kind", "a", "b"]),
    st.none() | st.integers() | st.text() | st.floats(allow_nan=False),
    min_size=1,
)


@given(st.lists(st.lists(records, max_size=4), min_size=1, max_size=4), st.data())
def test_torn_tail_loses_only_last_record(
    attempts: list[list[dict[str, object]]], data: st.DataObject
) -> None:
    whole, expected = b"", []
    for attempt in attempts:
        lines = [encode_record(record) for record in attempt]
        kept_bytes = data.draw(st.integers(0, len(lines[-1]) - 1)) if lines else 0
        whole += b"\n" + b"".join(lines[:-1]) + (lines[-1][:kept_bytes] if lines else b"")
        # Without its line feed it was never shipped, and is complete all the same.
        expected += attempt if lines and kept_bytes == len(lines[-1]) - 1 else attempt[:-1]
    assert list(read_records(whole)) == expected


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_flipped_bit_loses_only_its_record(
    given_records: list[dict[str, object]], data: st.DataObject
) -> None:
    lines = [encode_record(record) for record in given_records]
    which = data.draw(st.integers(0, len(lines) - 1))
    at, bit = data.draw(st.integers(0, len(lines[which]) - 2)), data.draw(st.integers(0, 6))
    damaged = bytearray(lines[which])
    damaged[at] ^= 1 << bit
    if damaged[at] in b"\n":
        return  # two lines now, neither of which is a record
    result = list(read_records(b"".join([*lines[:which], bytes(damaged), *lines[which + 1 :]])))
    assert result == [*given_records[:which], *given_records[which + 1 :]]


def test_restarted_process_appends_after_last_complete_line(tmp_path: Path) -> None:
    file = tmp_path / "streams" / "journal"
    first = Journal(file)
    first.write("asked", answer="wait", odd=math.inf)
    first.close()
    with file.open("ab") as half:
        half.write(encode_record({"kind": "told"})[:-5])
    reopened = Journal(file)
    assert [(record["kind"], record["odd"]) for record in reopened.past_records] == [("asked", math.inf)]
    reopened.write("told", verdict="stop")
    assert [record["kind"] for record in read_records(file.read_bytes())] == ["asked", "told"]
    assert file.read_bytes().startswith(b"\n{")
    reopened.close()


def test_write_waits_for_full_disk_then_fails(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    waited: list[OSError] = []

    def wait(failed: OSError) -> bool:
        waited.append(failed)
        if len(waited) == 2:  # another program freed space
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return len(waited) < 4

    journal = Journal(tmp_path / "journal", wait_for_space=wait)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
        journal.write("asked", long="x" * 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
        with pytest.raises(StorageFull, match="journal cannot be written"):
            journal.write("told", long="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(waited) == 4
    assert [record["kind"] for record in read_records((tmp_path / "journal").read_bytes())] == ["asked"]
    assert (tmp_path / "journal").read_bytes().endswith(b"}\n")
    journal.close()
