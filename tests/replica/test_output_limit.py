"""What a run writes beyond its limit: the beginning and the newest part stay, and what is left out is counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.replica.output_limit import OutputLimit

MIB = 1024 * 1024
LIMIT = OutputLimit(4 * MIB)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "stdout"
    path.write_bytes(b"".join(b"line %011d\n" % number for number in range(MIB)))  # 17 MiB
    return path


def shipped(limit: OutputLimit, path: Path, *, ended: bool, piece: int = MIB) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    found = b""
    while data := limit.read(path.name, descriptor, len(found), piece, ended=ended):
        found += data
    os.close(descriptor)
    assert len(found) == limit.shipped_size(path.name, path.stat().st_size, ended=ended)
    return found


def test_output_beyond_the_limit_is_its_beginning_and_its_newest_part_with_a_count_between(written: Path) -> None:
    text, size = written.read_bytes(), written.stat().st_size
    live, whole = (shipped(LIMIT, written, ended=ended) for ended in (False, True))
    assert whole.startswith(live), "what was sent never changes"
    assert live.startswith(text[: 4 * MIB])
    assert whole.endswith(text[-MIB:])
    assert b"[hopyard: %d bytes are left out here]" % (size - 5 * MIB) in whole
    assert len(whole) < 5 * MIB + 300


@given(piece=st.integers(1_000, 3 * MIB), at=st.integers(0, 6 * MIB))
def test_pieces_of_any_size_are_those_of_the_whole(written: Path, piece: int, at: int) -> None:
    whole = shipped(LIMIT, written, ended=True)
    descriptor = os.open(written, os.O_RDONLY)
    assert LIMIT.read("stdout", descriptor, at, piece, ended=True) == whole[at : at + piece]
    os.close(descriptor)


def test_what_is_left_out_takes_no_space_and_nothing_else_is_touched(tmp_path: Path, written: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(written.read_bytes())
    before = shipped(LIMIT, path, ended=True)
    size = path.stat().st_size
    reached = LIMIT.give_back("stdout", str(path), size, 0)
    assert reached > size - 2 * MIB
    assert path.stat().st_blocks * 512 < 6 * MIB
    assert (path.stat().st_size, shipped(LIMIT, path, ended=True)) == (size, before)
    assert LIMIT.give_back("stdout", str(path), size, reached) == reached


@pytest.mark.parametrize(("limit", "name"), [(0, "stdout"), (4 * MIB, "metrics"), (64 * MIB, "stdout")])
def test_what_stays_within_its_limit_or_has_none_is_shipped_as_it_is(tmp_path: Path, written: Path, limit: int, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(written.read_bytes())
    assert shipped(OutputLimit(limit), path, ended=True) == written.read_bytes()
    assert OutputLimit(limit).give_back(name, str(path), path.stat().st_size, 0) == 0
