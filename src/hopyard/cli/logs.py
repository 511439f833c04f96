"""`hop logs`: the output of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import last_run_argument
from hopyard.cli.terminal import console
from hopyard.cli.terminal.escape_sequences import EscapeFilter
from hopyard.client.run_lookup import get_run
from hopyard.errors import Conflict, NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_BLOCK_BYTES = 256 * 1024


@click.command("logs")
@last_run_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends or Ctrl-C.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only stdout.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only stderr, printed to stdout.")
@click.option("--rank", type=click.IntRange(0), help="Only the replica of this rank.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    help=("Only this attempt, in full, including output that a resume rolled back."),
)
@click.option(
    "--raw",
    is_flag=True,
    help="Every byte unchanged: carriage returns of progress bars, and all control sequences.",
)
def logs(
    ref: str,
    follow: bool,
    only_stdout: bool,
    only_stderr: bool,
    rank: int | None,
    tail: int | None,
    attempt: int | None,
    raw: bool,
) -> int | None:
    """Print the output of RUN, by default the newest run: stdout to stdout, stderr to stderr.

    A line that a progress bar redrew is printed in its last state; --raw and -f print every byte. On a
    terminal, control sequences are shown as text, except colours and those of progress bars, and except with
    --raw.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import localise_times
    from hopyard.client.follow import call_with_retry

    if only_stdout and only_stderr:
        raise UsageError(
            "--stdout and --stderr exclude each other",
            hints=(("leave out both options to see both streams"),),
        )
    if follow and attempt is not None:
        raise UsageError(
            "--attempt selects the output of an ended attempt, which cannot be followed",
            hints=("leave out -f or --attempt",),
        )

    def find(client: Client) -> api.RunOut:
        return client.get_run(get_run(client, ref)["id"])

    client = connect()
    client, run = call_with_retry(client, find) if follow else (client, find(client))
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    if rank is not None and rank >= size:
        raise SpecError(
            f"--rank: {run['name']} has no replica {rank}",
            hints=(f"its ranks are 0 to {size - 1}" if size > 1 else "its only rank is 0",),
        )
    streams = ("stdout",) if only_stdout else ("stderr",) if only_stderr else ("stdout", "stderr")
    ranks = range(size) if rank is None else (rank,)
    if follow:
        return _follow_logs(client, run, streams, rank, size, tail, ranks, raw=raw)
    for sentence in run.get("elsewhere") or () if attempt is None else ():
        console.print_message(f"note: {localise_times(sentence)}")
    for stream in streams:
        sink = sys.stderr.buffer if stream == "stderr" and not only_stderr else sys.stdout.buffer
        for replica in ranks:
            data = (
                _attempt_log(client, run, attempt, replica, stream, tail)
                if attempt
                else _print_log(client, run, replica, stream, tail)
            )
            mark = b"[%d] " % replica if size > 1 and rank is None else b""
            pieces = _final_lines(data, raw=raw, mark=mark)
            for piece in pieces if raw or not sink.isatty() else _filter_chunks(pieces):
                sink.write(piece)
        sink.flush()
    return None


def _print_log(client: Client, run: api.RunOut, rank: int, stream: str, tail: int | None) -> Iterator[bytes]:
    with client.open(
        "GET", f"/runs/{run['id']}/log", query={"stream": stream, "rank": rank, "tail_lines": tail}
    ) as response:
        while data := response.read(_BLOCK_BYTES):
            yield data


def _attempt_log(
    client: Client, run: api.RunOut, attempt: int, rank: int, stream: str, tail: int | None
) -> Iterator[bytes]:
    numbers = [a["number"] for a in run.get("attempts") or ()]
    if attempt not in numbers:
        raise NotFound(
            f"{run['name']} has no attempt {attempt}",
            hints=(f"it has {', '.join(map(str, numbers)) or 'none yet'}",),
        )
    data = b"".join(_read_raw(client, run, f"{run['id']}.{attempt}", rank, stream, 0))
    yield data if tail is None else last_lines(data, tail)


def _read_raw(
    client: Client, run: api.RunOut, attempt: str, rank: int, stream: str, offset: int
) -> Iterator[bytes]:
    while True:
        data, _ = _read_raw_range(client, run, attempt, rank, stream, offset, _BLOCK_BYTES)
        if not data:
            return
        offset += len(data)
        yield data


def _read_raw_range(
    client: Client, run: api.RunOut, attempt: str, rank: int, stream: str, offset: int, limit: int
) -> tuple[bytes, int]:
    """Returns the stored bytes of a stream and its length."""
    with client.open(
        "GET", f"/runs/{run['id']}/raw/{attempt}/{rank}/{stream}", query={"offset": offset, "limit": limit}
    ) as response:
        length = int(response.headers.get("X-Length") or 0)
        return response.read(), length


def _final_lines(data: Iterator[bytes], *, raw: bool, mark: bytes) -> Iterator[bytes]:
    """Yields the bytes to print line by line, redrawn lines in their last state, each after `mark`."""
    if raw and not mark:
        yield from data
        return
    rest = b""
    for block in data:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield mark + (line if raw else final_line_state(line)) + b"\n"
    if rest:
        yield mark + (rest if raw else final_line_state(rest)) + (b"\n" if mark else b"")


def _filter_chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    guard = EscapeFilter()
    yield from map(guard.feed, pieces)
    yield guard.flush()


def last_lines(data: bytes, count: int) -> bytes:
    """Returns the last `count` lines; an unfinished line counts."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(count):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :] if count else b""


def final_line_state(line: bytes) -> bytes:
    """Returns the final text of a line that was redrawn with carriage returns."""
    if b"\r" not in line:
        return line
    ending = b"\r" if line.endswith(b"\r") and line.count(b"\r") == 1 else b""
    states = [part for part in line.split(b"\r") if part]
    return (states[-1] if states else b"") + ending


def _follow_logs(
    client: Client,
    run: api.RunOut,
    streams: tuple[str, ...],
    rank: int | None,
    size: int,
    tail: int | None,
    ranks: range | tuple[int],
    *,
    raw: bool,
) -> int | None:
    from hopyard.cli.attach import print_end
    from hopyard.cli.follow_interrupt import EXIT_DETACHED, follow_or_leave
    from hopyard.cli.run_output import OutputClosed, RunOutput
    from hopyard.cli.status_line import StatusLine
    from hopyard.cli.terminal_listener import TerminalListener
    from hopyard.client.follow import RunFollower, call_with_retry

    line = StatusLine()
    output = RunOutput(
        line, replicas=size if rank is None else 1, all_to_stdout=streams == ("stderr",), raw=raw
    )
    cursors: dict[str, int] = {}
    if tail is not None:
        client, cursors = call_with_retry(
            client, lambda client: _tail_cursors(client, run, streams, ranks, tail)
        )
    listener = TerminalListener(output, line)
    follower = RunFollower(client, run, listener, streams=streams, rank=rank, cursors=cursors)
    try:
        ended = follow_or_leave(follower, line)
    except OutputClosed:
        raise BrokenPipeError from None
    finally:
        line.close()
    if ended is None:
        return EXIT_DETACHED
    print_end(follower.client, ended)
    return None


def _tail_cursors(
    client: Client, run: api.RunOut, streams: tuple[str, ...], ranks: range | tuple[int], tail: int
) -> dict[str, int]:
    """Returns cursors that leave only the last `tail` lines of the present output."""
    cursors: dict[str, int] = {}
    attempts = run.get("attempts") or []
    for attempt in attempts:
        for rank in ranks:
            for stream in streams:
                try:
                    _, length = _read_raw_range(client, run, attempt["id"], rank, stream, 0, 0)
                except Conflict:  # an earlier attempt on another server sends no more output
                    continue
                if attempt is attempts[-1] and tail and length:
                    begin = max(0, length - _BLOCK_BYTES)
                    data, _ = _read_raw_range(client, run, attempt["id"], rank, stream, begin, length - begin)
                    length -= len(last_lines(data, tail))
                cursors[f"{attempt['id']}:{rank}:{stream}"] = length
    return cursors
