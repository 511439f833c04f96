"""The end of a script with gloo threads that are still at work."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, hashlib, os, sys, threading, types
import hopyard.sdk.session
if {torch}:
    sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
begun = threading.Event()

def work():
    ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)
    begun.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", {rounds})  # runs without Python's lock, as gloo does
    os.write(1, b"finished ")

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def _run_gloo(*, torch: bool, name: bytes, rounds: int) -> str:
    script = SCRIPT.format(torch=torch, name=name, rounds=rounds)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout


def test_interpreter_exits_after_gloo_thread_ends() -> None:
    assert _run_gloo(torch=True, name=b"pt_gloo_runloop", rounds=100_000) == "finished "


def test_exit_does_not_wait_for_other_threads() -> None:
    assert _run_gloo(torch=True, name=b"other", rounds=2_000_000_000) == ""
    assert _run_gloo(torch=False, name=b"pt_gloo_runloop", rounds=2_000_000_000) == ""
