"""Output of a run on the terminal: exact bytes for one replica, complete lines for several."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.cli.log_printer import LineBuffer
from hopyard.cli.run_output import RunOutput, SharedTerminalLine
from hopyard.cli.status_line import StatusLine
from hopyard.cli.terminal.console import format_number


class Collected(RunOutput):
    """Collects the output."""

    def __init__(self, replicas: int) -> None:
        super().__init__(StatusLine(), replicas=replicas)
        self.written: list[bytes] = []

    def _emit(self, stream: str, data: bytes) -> None:
        self.written.append(data)


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_output_of_one_replica_is_written_unchanged(parts: list[bytes]) -> None:
    output = Collected(1)
    for part in parts:
        output.write(0, "stdout", part)
    output.flush()
    assert b"".join(output.written) == b"".join(parts)


LINES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n"]), max_size=30).map(b"".join)


@given(LINES, st.lists(st.integers(0, 60), max_size=5))
def test_lines_of_several_replicas_are_prefixed_for_any_chunking(data: bytes, cuts: list[int]) -> None:
    unsplit, cut = Collected(2), Collected(2)
    unsplit.write(1, "stdout", data)
    unsplit.flush()
    places = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for start, end in pairwise(places):
        cut.write(1, "stdout", data[start:end])
    cut.flush()
    assert b"".join(cut.written) == b"".join(unsplit.written)
    assert b"".join(unsplit.written).replace(b"[1] ", b"").rstrip(b"\n") == data.rstrip(b"\n")


def test_lines_of_replicas_do_not_mix() -> None:
    output = Collected(2)
    output.write(0, "stdout", b"epoch ")
    output.write(1, "stdout", b"epoch 1\n")
    output.write(0, "stdout", b"1\nrest")
    output.flush()
    assert b"".join(output.written) == b"[1] epoch 1\n[0] epoch 1\n[0] rest\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (
            [("stderr", b"\r19/20"), ("stdout", b"epoch 0\n"), ("stderr", b"\n\r1/20")],
            b"\r19/20\nepoch 0\n\r1/20",
        ),
        (
            [("stderr", b"\r19/20"), ("stdout", b"epoch 0\n"), ("stderr", b"\r20/20\n")],
            b"\r19/20\nepoch 0\n\r20/20\n",
        ),
        ([("stderr", b"50%"), ("stderr", b"\n"), ("stdout", b"done\n")], b"50%\ndone\n"),
        ([("stdout", b"a"), ("stderr", b"b"), ("stdout", b"\n"), ("stdout", b"c\n")], b"a\nb\nc\n"),
    ],
)
def test_streams_on_one_terminal_do_not_share_lines(written: list[tuple[str, bytes]], shown: bytes) -> None:
    line = SharedTerminalLine()
    assert b"".join(line.interleave(stream, data) for stream, data in written) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"abc", b"abc"),
        (b" 1%\r 50%\r100%", b"100%"),
        (b"\r10%\r20%\r", b"20%"),
        (b"abc\r", b"abc\r"),
        (b"\r\r", b""),
        (b"", b""),
    ],
)
def test_redrawn_line_is_reduced_to_its_last_state(line: bytes, shown: bytes) -> None:
    assembler = LineBuffer(raw=False)
    assert [*assembler.feed(line + b"\n")] == [shown + b"\n"]


@given(LINES, st.lists(st.integers(0, 60), max_size=5))
def test_chunks_of_a_line_do_not_change_its_last_state(data: bytes, cuts: list[int]) -> None:
    whole, chunked = LineBuffer(raw=False), LineBuffer(raw=False)
    expected = [*whole.feed(data), whole.flush()]
    places = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    shown = [line for start, end in pairwise(places) for line in chunked.feed(data[start:end])]
    assert [*shown, chunked.flush()] == expected


def test_line_without_an_end_is_printed_in_pieces() -> None:
    assembler = LineBuffer(raw=False)
    pieces = [piece for _ in range(64) for piece in assembler.feed(b"x" * 100_000)]
    assert max(map(len, pieces)) < 2_000_000
    assert sum(map(len, [*pieces, assembler.flush()])) == 6_400_000


def test_progress_bar_without_an_end_needs_little_memory() -> None:
    assembler = LineBuffer(raw=False)
    assert not [line for step in range(20_000) for line in assembler.feed(b"\r%d/20000" % step)]
    assert assembler.flush() == b"19999/20000"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (49999, "49999"),
        (-123456.7, "-123457"),
        (9999.7, "10000"),
        (0.123456, "0.1235"),
        (1234.0, "1234"),
        (2e9, "2e+09"),
        (float("nan"), "NaN"),
        ("Infinity", "inf"),
        ("-Infinity", "-inf"),
        (None, "NaN"),
    ],
)
def test_numbers_have_all_digits_before_the_point(value: float | str | None, shown: str) -> None:
    assert format_number(value) == shown
