"""The ends of commands beside a script, as their user sees them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameReader
from hopyard.replica import process_tree
from hopyard.replica.console.child_exits import ChildExits
from hopyard.replica.console.command_session import CommandSession
from hopyard.replica.console.console_acceptor import close_after_user
from hopyard.replica.console.console_process import ConsoleProcess
from hopyard.replica.user_process import ProcessSpec

TIMEOUT_S = 120.0


@contextmanager
def _session(folder: Path, command: str) -> Iterator[tuple[socket.socket, ChildExits, int]]:
    """Runs a command of the shell in a session. Yields the user's end, and where the end of the run is
    written."""
    script = ProcessSpec(["true"], dict(os.environ), folder, folder / "stdout", folder / "stderr")
    exits, (stop, stop_write) = ChildExits(), os.pipe()
    user, connection = socket.socketpair()
    user.settimeout(TIMEOUT_S)
    connection.setblocking(False)
    session = CommandSession(
        connection,
        FrameReader(),
        {"command": ["sh", "-c", command]},
        ConsoleProcess(script, os.getpid(), "python"),
        exits,
        stop,
        lambda: "the run has ended",
    )
    thread = threading.Thread(target=session.run)
    thread.start()
    try:
        yield user, exits, stop_write
    finally:
        user.close()
        thread.join(TIMEOUT_S)
        connection.close()
        os.close(stop)
        os.close(stop_write)
    assert not thread.is_alive()


def _messages(user: socket.socket) -> Iterator[tuple[int, bytes]]:
    reader = FrameReader()
    while data := user.recv(frames.DATA_BYTES):
        yield from reader.feed(data)


def _reap(pid: int, exits: ChildExits) -> None:
    exits.record(pid, os.waitpid(pid, 0)[1])


def test_processes_have_ended_when_the_last_message_of_the_run_comes(tmp_path: Path) -> None:
    with _session(tmp_path, "trap '' HUP; echo $$; sleep 1000") as (user, exits, stop):
        messages = _messages(user)
        pid = next(int(payload) for kind, payload in messages if kind == frames.OUTPUT)
        os.write(stop, b".")
        last = next(payload for kind, payload in messages if kind == frames.EXIT)
        stat = process_tree.read_stat(pid)
        assert stat is not None
        assert stat.state in "ZX"
        assert frames.fields_of(last) == {"code": None, "reason": "the run has ended"}
        _reap(pid, exits)


def test_command_that_is_killed_with_the_run_states_the_reason(tmp_path: Path) -> None:
    for is_end_of_run, fields in (
        (True, {"code": None, "reason": "the run has ended"}),
        (False, {"code": 137, "reason": ""}),
    ):
        with _session(tmp_path, "echo $$; exec sleep 1000") as (user, exits, stop):
            messages = _messages(user)
            pid = next(int(payload) for kind, payload in messages if kind == frames.OUTPUT)
            os.kill(pid, signal.SIGKILL)
            _reap(pid, exits)
            if is_end_of_run:
                os.write(stop, b".")  # a moment later
            last = next(payload for kind, payload in messages if kind == frames.EXIT)
            assert frames.fields_of(last) == fields


def test_output_arrives_after_the_command_has_ended(tmp_path: Path) -> None:
    with _session(tmp_path, "echo $$ >&2; head -c 3000000 /dev/zero") as (user, exits, _):
        output, code = 0, object()
        for kind, payload in _messages(user):
            if kind == frames.ERROR_OUTPUT:
                threading.Thread(target=_reap, args=(int(payload), exits)).start()
            elif kind == frames.OUTPUT:
                output += len(payload)
            elif kind == frames.EXIT:
                code = frames.fields_of(payload)["code"]
                break
        assert (output, code) == (3_000_000, 0)


def test_last_message_arrives_despite_unread_input() -> None:
    user, connection = socket.socketpair()
    user.settimeout(TIMEOUT_S)
    user.sendall(b"unread")
    connection.sendall(b"last")
    thread = threading.Thread(target=close_after_user, args=(connection,), kwargs={"limit_s": TIMEOUT_S})
    thread.start()
    user.sendall(b"more")
    assert (user.recv(100), user.recv(100)) == (b"last", b"")
    user.close()
    thread.join(TIMEOUT_S)
    assert connection.fileno() == -1
