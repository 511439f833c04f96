"""Output beyond the limit of a run: its head and its newest part are retained, in complete lines, and omitted
lines are counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.sdk.output_limit import OutputLimit

MIB = 1024 * 1024
LIMIT = OutputLimit(4 * MIB)


@pytest.fixture(scope="module")
def large_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "stdout"
    # 18 MiB, and no line ends at the limit
    path.write_bytes(b"".join(b"line %012d\n" % number for number in range(MIB)))
    return path


def ship_all(limit: OutputLimit, path: Path, *, ended: bool, piece: int = MIB) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    result = b""
    while data := limit.read(path.name, descriptor, len(result), piece, ended=ended):
        result += data
    assert len(result) == limit.shipped_size(path.name, descriptor, path.stat().st_size, ended=ended)
    os.close(descriptor)
    return result


def dropped_bytes(limit: OutputLimit, path: Path) -> int:
    with path.open("rb") as file:
        return limit.dropped_bytes(path.name, file.fileno(), path.stat().st_size)


def test_output_beyond_limit_keeps_head_and_tail_with_omitted_count(
    large_output: Path,
) -> None:
    text = large_output.read_bytes()
    live, whole = (ship_all(LIMIT, large_output, ended=ended) for ended in (False, True))
    assert whole.startswith(live), "what was sent never changes"
    head, _, rest = whole.partition(b"[hopyard: ")
    tail = rest.partition(b" bytes are left out here]\n")[2]
    assert 4 * MIB - 64 < len(head) <= 4 * MIB
    assert MIB - 64 < len(tail) <= MIB
    assert (text.startswith(head), text.endswith(tail)) == (True, True)
    assert b"[hopyard: %d bytes are left out here]" % (len(text) - len(head) - len(tail)) in whole
    assert dropped_bytes(LIMIT, large_output) == len(text) - len(head) - len(tail)
    assert {len(line) for line in (head + tail).splitlines()} == {17}, "no line is cut"


def test_endless_line_is_cut_at_limit(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(b"x" * (9 * MIB))
    assert (
        ship_all(LIMIT, path, ended=True)
        .strip(b"x")
        .startswith(b"\n[hopyard: stdout has passed its limit of 4M")
    )
    assert dropped_bytes(LIMIT, path) == 4 * MIB
    assert len(ship_all(LIMIT, path, ended=True)) < 5 * MIB + 300


@given(sizes=st.lists(st.integers(1, 120_000), min_size=1, max_size=40), line=st.integers(0, 100_000))
def test_shipped_prefix_of_growing_file_never_changes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], line: int
) -> None:
    """line: the length of lines; 0 means one endless line."""
    limit, path = OutputLimit(MIB), tmp_path_factory.mktemp("grows") / "stdout"
    text = (b"x" * line + b"\n") * (2 * MIB // (line + 1)) if line else b"x" * (2 * MIB)
    sent, at = b"", MIB - 200_000
    path.write_bytes(text[:at])
    for size in (*sizes, 0):
        now = ship_all(limit, path, ended=not size)
        assert now.startswith(sent)
        sent, at = now, at + size
        path.write_bytes(text[:at])


@given(piece=st.integers(1_000, 3 * MIB), at=st.integers(0, 6 * MIB))
def test_limited_output_is_independent_of_chunk_size(large_output: Path, piece: int, at: int) -> None:
    whole = ship_all(LIMIT, large_output, ended=True)
    descriptor = os.open(large_output, os.O_RDONLY)
    assert LIMIT.read("stdout", descriptor, at, piece, ended=True) == whole[at : at + piece]
    os.close(descriptor)


def test_omitted_output_takes_no_space_and_other_files_are_untouched(
    tmp_path: Path, large_output: Path
) -> None:
    path = tmp_path / "stdout"
    path.write_bytes(large_output.read_bytes())
    before = ship_all(LIMIT, path, ended=True)
    size = path.stat().st_size
    reached = LIMIT.release_disk_blocks("stdout", str(path), size, 0)
    assert reached > size - 2 * MIB
    assert path.stat().st_blocks * 512 < 6 * MIB
    assert (path.stat().st_size, ship_all(LIMIT, path, ended=True)) == (size, before)
    assert LIMIT.release_disk_blocks("stdout", str(path), size, reached) == reached


@pytest.mark.parametrize(("limit", "name"), [(0, "stdout"), (4 * MIB, "metrics"), (64 * MIB, "stdout")])
def test_output_within_limit_or_without_limit_is_shipped_unchanged(
    tmp_path: Path, large_output: Path, limit: int, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(large_output.read_bytes())
    assert ship_all(OutputLimit(limit), path, ended=True) == large_output.read_bytes()
    assert OutputLimit(limit).release_disk_blocks(name, str(path), path.stat().st_size, 0) == 0


@pytest.mark.parametrize("lines_dropped", [0, 1, 1000])
def test_stream_cut_at_checkpoint_ends_with_omission_mark(large_output: Path, lines_dropped: int) -> None:
    text, sent = large_output.read_bytes(), ship_all(LIMIT, large_output, ended=False)
    head = sent.partition(b"[hopyard: ")[0]
    with large_output.open("rb") as file:
        end = LIMIT.server_offset("stdout", file.fileno(), len(head) + 17 * lines_dropped)
    assert text.startswith(head)
    assert sent[:end] == (sent if lines_dropped else head)
    assert not lines_dropped or sent[:end].endswith(
        b"output is left out here; its newest part is stored at the end]\n"
    )
