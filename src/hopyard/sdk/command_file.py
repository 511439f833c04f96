"""The commands of users to a live gang: a file that the replicas append to and all processes read. Standard
library only.

    turns/commands          eight-byte cells: the number of the newest command; the iteration at which all
                            processes apply commands, the number of the last one that they apply there, and
                            the rank of the process that answers
    turns/commands.jsonl    one command per line, in the order of their numbers; and refusals: the number of a
                            refused command, and the reason

A process looks for a new command by reading one cell of shared memory.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hopyard.private_files import make_folder, open_file

SAFE_POINTS_DIR = "turns"
_CELLS_FILE, _LINES_FILE = "commands", "commands.jsonl"
_NEWEST_CELL, _ITERATION_CELL, _AGREED_CELL, _RANK_CELL, _CELLS = 0, 1, 2, 3, 4

CommandLine = Mapping[str, Any]  # {"number", "kind", "arguments", "user"}; a refused one also has "refused"


class CommandFile:
    """The file in the folder `gang`. Creates it if needed. Raises OSError.

    open_in: opens a file of the subfolder by its name and flags, for a process that may follow no links.
    """

    def __init__(self, gang: str, open_in: Callable[[str, int], int] | None = None) -> None:
        folder = os.path.join(gang, SAFE_POINTS_DIR)
        make_folder(folder, private_parent=gang)
        self._lines = os.path.join(folder, _LINES_FILE)
        self._open = open_in or (lambda name, flags: open_file(os.path.join(folder, name), flags))
        descriptor = self._open(_CELLS_FILE, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            self._cells = map_cells(descriptor, _CELLS)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._descriptor = descriptor

    @property
    def newest(self) -> int:
        """The number of the newest command; 0 if there is none."""
        return self._cells[_NEWEST_CELL]

    @property
    def agreed(self) -> int:
        """The number of the last command that the processes of the gang have agreed to apply."""
        return self._cells[_AGREED_CELL]

    @property
    def answering_rank(self) -> int:
        """The rank of the process that answers the agreed commands."""
        return self._cells[_RANK_CELL]

    def agree(self, iteration: int, number: int, *, rank: int = 0) -> None:
        """Records that all processes apply the commands up to `number` at `iteration`. rank: of the process
        that answers them."""
        self._cells[_ITERATION_CELL], self._cells[_RANK_CELL] = iteration, rank
        self._cells[_AGREED_CELL] = number

    def refuse(self, number: int, reason: str) -> None:
        """Records that no process applies a command. Raises OSError."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self._append([{"refused": number, "reason": reason}])
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def append(self, commands: Iterable[CommandLine]) -> bool:
        """Adds the commands that the file lacks. Returns whether there were any. Raises OSError, with nothing
        added."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            new = sorted(
                (command for command in commands if command["number"] > self.newest),
                key=lambda command: int(command["number"]),
            )
            if not new:
                return False
            self._append(new)
            self._cells[_NEWEST_CELL] = new[-1]["number"]
            return True
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _append(self, new: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(dict(line)) + "\n" for line in new).encode()
        lines = self._open(_LINES_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(lines).st_size
            if size and os.pread(lines, 1, size - 1) != b"\n":  # an earlier write was interrupted
                text = b"\n" + text
            if os.write(lines, text) != len(text):
                os.ftruncate(lines, size)
                raise OSError(28, "No space left on device", self._lines)
        finally:
            os.close(lines)

    def read(self, after: int, through: int) -> Sequence[CommandLine]:
        """Returns the commands with `after` < number <= `through`, in order; a refused one with the reason
        as "refused"."""
        try:
            with open(self._lines, "rb") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        commands: dict[int, dict[str, Any]] = {}
        for line in lines:
            try:
                command = json.loads(line)
            except ValueError:
                continue
            if isinstance(command, dict) and after < command.get("number", 0) <= through:
                commands[command["number"]] = command
            elif isinstance(command, dict) and command.get("refused") in commands:
                commands[command["refused"]]["refused"] = command.get("reason", "")
        return list(commands.values())


def has_commands(gang: str) -> bool:
    """Returns whether a gang with this folder has ever got a command."""
    return os.path.exists(os.path.join(gang, SAFE_POINTS_DIR, _LINES_FILE))


def values_set_before(gang: str, *, rank: int = 0, answered: int | None = None) -> tuple[dict[str, Any], int]:
    """Returns the parameters that commands have set in this attempt, and the number of the last command that
    is done with them. A process that starts later, as after a restart by torchrun, begins with them. A
    current pause is left to its first safe point.

    answered: the last command that an earlier process of this rank has answered, if there was one. Those that
    this rank still has to answer are left, too.
    """
    if not has_commands(gang):
        return {}, 0
    file = CommandFile(gang)
    values: dict[str, Any] = {}
    agreed = file.agreed
    if answered is not None and rank == file.answering_rank:
        agreed = min(agreed, answered)
    number = agreed
    for command in file.read(0, agreed):
        if "refused" in command:
            continue
        if command["kind"] == "set":
            values |= command["arguments"]
        else:
            number = min(number, command["number"] - 1) if command["kind"] == "pause" else agreed
    return values, number


def last_answered(events: str) -> int:
    """Returns the number of the last command that this stream of events answers; 0 for none."""
    number = 0
    with suppress(OSError), open(events, "rb") as file:
        for line in file:
            if b'"command"' in line:
                with suppress(ValueError):  # the process died while it wrote it
                    event = json.loads(line)
                    if event.get("kind") == "command":
                        number = max(number, event["number"])
    return number


def map_cells(descriptor: int, count: int) -> memoryview:
    """Maps the file's cells into shared memory. A cell is read and written atomically, so a partly written
    number is never visible.
    """
    if os.fstat(descriptor).st_size < 8 * count:
        # written, not truncated to size: a hole on a full disk would raise SIGBUS later
        # behind the cells of an earlier version, which stay
        size = os.fstat(descriptor).st_size
        os.pwrite(descriptor, bytes(8 * count - size), size)
    return memoryview(mmap.mmap(descriptor, 8 * count)).cast("q")
