"""The process of a shell that stays when its terminal is disconnected."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameReader
from hopyard.domain.replica import CONSOLE_SOCKET
from hopyard.replica.console.prompt_connection import ring
from hopyard.sdk.prompt_point import TERMINALS_DIR

TIMEOUT_S = 120.0


def test_shell_ends_although_a_process_in_the_background_has_its_terminal(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as replica:
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        replica.bind(f"/proc/self/fd/{folder}/{CONSOLE_SOCKET}")  # the path itself may be too long
        os.close(folder)
        replica.listen()
        replica.settimeout(TIMEOUT_S)
        shell = "(trap '' HUP; sleep 1000) & echo $!; exit 5"
        keeper = subprocess.Popen(
            [sys.executable, "-m", "hopyard.sdk.terminal_keeper", "--keep", "1000", "--", "sh", "-c", shell],
            env={**os.environ, "HOPYARD_REPLICA_DIR": str(tmp_path)},
        )
        deadline = time.monotonic() + TIMEOUT_S
        while not ring(tmp_path, TERMINALS_DIR):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        user, _ = replica.accept()
    user.settimeout(TIMEOUT_S)
    user.sendall(frames.json_frame(frames.START, {"terminal": {"rows": 24, "columns": 80, "type": "xterm"}}))
    reader, shown = FrameReader(), b""
    code: object = None
    while code is None:
        data = user.recv(frames.DATA_BYTES)
        assert data
        for kind, payload in reader.feed(data):
            if kind == frames.OUTPUT:
                shown += payload
            elif kind == frames.EXIT:
                code = frames.fields_of(payload)["code"]
    user.close()
    os.kill(int(shown.split()[0]), 9)
    assert (code, keeper.wait(TIMEOUT_S)) == (5, 5)
