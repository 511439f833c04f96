"""`hop logs`: the output of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

import click

from hopyard.api_client.client import Client
from hopyard.cli.log_printer import LogPrinter
from hopyard.cli.options import last_run_argument
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run
from hopyard.errors import Conflict, NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("logs")
@last_run_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends or Ctrl-C.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only stdout.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only stderr, printed to stdout.")
@click.option(
    "--rank", "ranks", default="all", metavar="N|all", show_default=True, help="The replica of this rank."
)
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option(
    "--since", metavar="TIME", help='Only what arrived since: 10m, 2h, "2026-11-01 09:00", yesterday.'
)
@click.option("--timestamps", is_flag=True, help="Begin each line with the time of its arrival.")
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
    ranks: str,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    attempt: int | None,
    raw: bool,
) -> int | None:
    """Print the output of RUN, by default the newest run: stdout to stdout, stderr to stderr.

    Lines of both streams and of all ranks are in the order in which they arrived.

    A line that a progress bar redrew is printed in its last state; --raw and -f print every byte. On a
    terminal, control sequences are shown as text, except colours and those of progress bars, and except with
    --raw.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import localise_times
    from hopyard.client.follow import call_with_retry
    from hopyard.config.past_time import parse_past_time

    rank = _parse_rank(ranks)
    begin = None if since is None else parse_past_time(since, datetime.now().astimezone(), what="--since")
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
    if attempt is not None:
        _check_attempt(run, attempt)
    streams = ("stdout",) if only_stdout else ("stderr",) if only_stderr else ("stdout", "stderr")
    if follow:
        output = RunOutputOptions(streams, rank, tail, begin, raw=raw, timestamps=timestamps)
        return _follow_logs(client, run, output, size)
    for sentence in run.get("elsewhere") or () if attempt is None else ():
        console.print_message(f"note: {localise_times(sentence)}")
    printer = LogPrinter(
        raw=raw, ranks=size > 1 and rank is None, timestamps=timestamps, all_to_stdout=only_stderr
    )
    query = _output_query(streams, rank, tail, begin) | {"attempt": attempt}
    for frame, data in _read_output(client, run, query):
        printer.write(frame["rank"], frame["stream"], data, frame["at"])
    printer.close()
    return None


def _parse_rank(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise SpecError(f"--rank: `{text}` is not a rank", hints=("give a number from 0 on, or all",))
    return int(text)


def _check_attempt(run: api.RunOut, attempt: int) -> None:
    numbers = [a["number"] for a in run.get("attempts") or ()]
    if attempt not in numbers:
        raise NotFound(
            f"{run['name']} has no attempt {attempt}",
            hints=(f"it has {', '.join(map(str, numbers)) or 'none yet'}",),
        )


class _OutputFrame(TypedDict):
    """A line of GET /runs/{id}/output; `size` bytes follow."""

    rank: int
    stream: str
    size: int
    at: float | None


_Query = dict[str, str | int | float | None]


def _output_query(
    streams: tuple[str, ...], rank: int | None, tail: int | None, begin: datetime | None
) -> _Query:
    return {
        "streams": ",".join(streams),
        "ranks": "all" if rank is None else str(rank),
        "tail_lines": tail,
        "since": None if begin is None else begin.timestamp(),
    }


def _read_output(client: Client, run: api.RunOut, query: _Query) -> Iterator[tuple[_OutputFrame, bytes]]:
    with client.open("GET", f"/runs/{run['id']}/output", query=query) as response:
        while line := response.readline():
            frame: _OutputFrame = json.loads(line)
            yield frame, response.read_exactly(frame["size"])


@dataclass(frozen=True, slots=True)
class RunOutputOptions:
    """The part of the output that is followed, and its form."""

    streams: tuple[str, ...]
    rank: int | None
    tail: int | None
    begin: datetime | None
    raw: bool
    timestamps: bool


def _follow_logs(client: Client, run: api.RunOut, options: RunOutputOptions, size: int) -> int | None:
    from hopyard.cli.attach import print_end
    from hopyard.cli.follow_interrupt import EXIT_DETACHED, follow_or_leave
    from hopyard.cli.run_output import OutputClosed, RunOutput
    from hopyard.cli.status_line import StatusLine
    from hopyard.cli.terminal_listener import TerminalListener
    from hopyard.client.follow import RunFollower, call_with_retry

    line = StatusLine()
    output = RunOutput(
        line,
        replicas=size if options.rank is None else 1,
        all_to_stdout=options.streams == ("stderr",),
        raw=options.raw,
        timestamps=options.timestamps,
    )
    cursors: dict[str, int] = {}
    if options.tail is not None or options.begin is not None:
        client, cursors = call_with_retry(client, lambda client: _tail_cursors(client, run, options, size))
    listener = TerminalListener(output, line)
    follower = RunFollower(client, run, listener, streams=options.streams, rank=options.rank, cursors=cursors)
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


def _tail_cursors(client: Client, run: api.RunOut, options: RunOutputOptions, size: int) -> dict[str, int]:
    """Returns cursors that leave only the selected part of the present output."""
    attempts = run.get("attempts") or []
    ranks = range(size) if options.rank is None else (options.rank,)
    selected = {(rank, stream): 0 for rank in ranks for stream in options.streams}
    query = _output_query(options.streams, options.rank, options.tail, options.begin)
    for attempt in attempts[-1:]:
        for frame, _ in _read_output(client, run, query | {"attempt": attempt["number"]}):
            selected[frame["rank"], frame["stream"]] += frame["size"]
    cursors: dict[str, int] = {}
    for attempt in attempts:
        for (rank, stream), size_bytes in selected.items():
            try:
                length = _stream_length(client, run, attempt["id"], rank, stream)
            except Conflict:  # an earlier attempt on another server sends no more output
                continue
            kept = size_bytes if attempt is attempts[-1] else 0
            cursors[f"{attempt['id']}:{rank}:{stream}"] = max(0, length - kept)
    return cursors


def _stream_length(client: Client, run: api.RunOut, attempt: str, rank: int, stream: str) -> int:
    path = f"/runs/{run['id']}/raw/{attempt}/{rank}/{stream}"
    with client.open("GET", path, query={"offset": 0, "limit": 0}) as response:
        response.read()
        return int(response.headers.get("X-Length") or 0)
