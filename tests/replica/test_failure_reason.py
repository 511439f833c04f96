"""The reason of a failure, as programs of several languages and launchers write it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.replica.exit_reasons import exit_from_status
from hopyard.replica.failure_reason import abort_reason, failure_reason

_TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 3, in <module>
[rank1]:     main()
[rank1]: RuntimeError: shapes differ
[rank1]: expected 3
W1126 10:00:00.000000 7 api.py:1010] Sending process 11 closing signal SIGTERM
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  rank      : 1 (local_rank: 1)
============================================================
"""
_HYDRA = """\
Error executing job with overrides: ['lr=3']
Traceback (most recent call last):
  File "/w/train.py", line 9, in main
    raise ValueError("lr is too large")
ValueError: lr is too large

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
_HYDRA_HINT = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
_HYDRA_OVERRIDE = (
    "/w/train.py:3: UserWarning: old\n  warnings.warn(x)\n"
    "Could not override 'lrr'.\nTo append to your config use +lrr=1\nKey 'lrr' is not in struct\n"
    + _HYDRA_HINT
)
_HYDRA_GROUP = (
    "In 'train.yaml': Could not find 'model/foo'\n\nAvailable options in 'model':\n\tmnist\n" + _HYDRA_HINT
)
_TYRO = """\
╭─ Unrecognized options ──────────────────╮
│ Unrecognized options: --lrr, 2          │
│ ─────────────────────────────────────── │
│ For full helptext, run train.py --help  │
╰─────────────────────────────────────────╯
"""
_TYPER = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ───────────────────────────────────╮
│ Invalid value for '--learning-rate': 'a'  │
│ is not a valid float.                     │
╰───────────────────────────────────────────╯
"""
_ABSL = (
    "FATAL Flags parsing error: Unknown command line flag 'lrr'. Did you mean: lr ?\n"
    "Pass --helpshort or --helpfull to see help on flags.\n"
)
_RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /w/train.py:3 in <module>                                                    │
│ ❱ 3 main()                                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
\x1b[1;91mKeyError: \x1b[0m'val_loss'
"""
_NOTEBOOK = """\
\x1b[0;31m----------------------------------------\x1b[0m
\x1b[0;31mValueError\x1b[0m                     Traceback (most recent call last)
Cell \x1b[0;32mIn[1], line 2\x1b[0m
ValueError: the cell failed

"""
_IGNORED = """\
Traceback (most recent call last):
  File "/w/a.py", line 5, in <module>
RuntimeError: real
Exception ignored in: <function A.__del__ at 0x7f>
Traceback (most recent call last):
  File "/w/a.py", line 3, in __del__
KeyError: 'ignored'
"""
_HANDLED = (
    'Traceback (most recent call last):\n  File "a.py"\nZeroDivisionError: x\n' + "retry\n" * 80 + "no data\n"
)
_JAVA = (
    'Exception in thread "main" java.lang.RuntimeException: outer\n\tat Main.main(Main.java:3)\n'
    "Caused by: java.io.IOException: disk\n\tat Main.read(Main.java:9)\n\t... 1 more\n"
)
_NODE = "/w/a.js:2\n  throw new Error('x')\n  ^\n\nError: no model\n    at main (a.js:2:9)\n\nNode.js v20\n"
_GO = "panic: nil map\n\ngoroutine 1 [running]:\nmain.main()\n\t/w/a.go:4 +0x1d\nexit status 2\n"
_RUST = "\nthread 'main' (71) panicked at src/main.rs:2:5:\nindex out of bounds\nnote: RUST_BACKTRACE=1\n"
_R = "Error in f(1) : no column y\nCalls: f\nExecution halted\n"
_JULIA = "ERROR: LoadError: no column y\nStacktrace:\n [1] error(s::String)\n   @ Base ./error.jl:35\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("ValueError: bad\nhint: try another\n", "ValueError: bad"),
        (
            "hopyard: resumed\nusage: train.py\nhopyard: checkpoints take most of the time\n",
            "usage: train.py",
        ),
        ("hopyard: resumed from the checkpoint of step 8\n", ""),
        ("", ""),
        (_TORCHRUN, "RuntimeError: shapes differ"),
        (_HYDRA, "ValueError: lr is too large"),
        (_HYDRA_OVERRIDE, "Key 'lrr' is not in struct"),
        (_HYDRA_GROUP, "In 'train.yaml': Could not find 'model/foo'"),
        (_RICH, "KeyError: 'val_loss'"),
        (_TYRO, "Unrecognized options: --lrr, 2"),
        (_TYPER, "Invalid value for '--learning-rate': 'a' is not a valid float."),
        (_ABSL, "Flags parsing error: Unknown command line flag 'lrr'. Did you mean: lr ?"),
        (_NOTEBOOK, "ValueError: the cell failed"),
        (_IGNORED, "RuntimeError: real"),
        (_HANDLED, "no data"),
        (_JAVA, "java.io.IOException: disk"),
        (_NODE, "Error: no model"),
        (_GO, "panic: nil map"),
        (_RUST, "panicked: index out of bounds"),
        (_R, "Error in f(1) : no column y"),
        (_JULIA, "ERROR: LoadError: no column y"),
    ],
)
def test_reason_is_the_exception(tmp_path: Path, output: str, reason: str) -> None:
    (tmp_path / "stderr").write_text(output)
    assert failure_reason(tmp_path / "stderr", tmp_path / "stdout") == reason


def test_text_of_exit_precedes_an_exception_that_was_handled(tmp_path: Path) -> None:
    script = """
import sys, traceback
from hopyard.sdk.startup.exit_texts import watch_exits
watch_exits()
import pickle
assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
try:
    sys.exit("not this text")
except SystemExit:
    pass
try:
    raise ValueError("handled")
except ValueError:
    traceback.print_exc()
MORE
sys.exit("no data in data/train\\nrun the download first")
"""
    stderr = tmp_path / "stderr"
    for more, reason in (
        ("", "no data in data/train run the download first"),
        ("raise KeyError('x')", "KeyError: 'x'"),
    ):
        with stderr.open("w") as output:
            subprocess.run(
                [sys.executable, "-c", script.replace("MORE", more)],
                stderr=output,
                check=False,
                env={**os.environ, "HOPYARD_REPLICA_DIR": str(tmp_path)},
            )
        with stderr.open("a") as output:
            output.write("wandb: Find logs at: ./wandb\n")
        text = (tmp_path / "exit_text").read_text()
        assert failure_reason(stderr, tmp_path / "stdout", exit_text=text) == reason


def test_exception_on_stdout_is_found_if_stderr_is_empty(tmp_path: Path) -> None:
    (tmp_path / "stderr").touch()
    (tmp_path / "stdout").write_text(_HYDRA + "done\n")
    assert failure_reason(tmp_path / "stderr", tmp_path / "stdout") == "ValueError: lr is too large"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "raise ExceptionGroup('two', [ExceptionGroup('in', [ValueError('deep')]), KeyError(1)])",
            "ExceptionGroup: two (2 sub-exceptions): ValueError: deep",
        ),
        (
            "try:\n  1/0\nexcept Exception as e:\n  raise OSError('first\\nsecond: b') from e",
            "OSError: first",
        ),
    ],
)
def test_reason_of_a_real_failure(tmp_path: Path, script: str, reason: str) -> None:
    with (tmp_path / "stderr").open("wb") as stderr:
        assert subprocess.run([sys.executable, "-c", script], stderr=stderr, check=False).returncode == 1
    assert failure_reason(tmp_path / "stderr", tmp_path / "stdout") == reason


def test_abort_reason_is_the_exception_of_cpp(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_text(
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  boom\n"
    )
    assert abort_reason(tmp_path / "stderr") == (
        "terminate called after throwing an instance of 'std::runtime_error': what():  boom"
    )


_PARENT = 'Traceback (most recent call last):\n  File "a.py", line 9, in <module>\n'
_CHILD = 'Traceback (most recent call last):\n  File "a.py", line 3, in work\nValueError: bad sample 3\n'
_REPORT = """\
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 55)
  traceback : {trace}
============================================================
"""
_AGENT = f"{_PARENT}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            f"{_PARENT}ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal {_CHILD}",
            "ValueError: bad sample 3 (in DataLoader worker process 0)",
        ),
        (
            f"Process Process-1:\n{_CHILD}{_PARENT}RuntimeError: a worker has failed\n",
            "ValueError: bad sample 3 (in Process-1); RuntimeError: a worker has failed",
        ),
        (f"Process Process-1:\n{_CHILD}", "ValueError: bad sample 3"),
        (
            f"{_PARENT}RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            f"{_PARENT}RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly\n",
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        ),
        (f"{_CHILD}{_PARENT}subprocess.CalledProcessError: Command 'x'\n", "ValueError: bad sample 3"),
        (
            _CHILD + _AGENT + _REPORT.format(code=-9, trace="Signal 9 (SIGKILL) received by PID 55"),
            "rank 1: Signal 9 (SIGKILL) received by PID 55",
        ),
        (
            _CHILD + _AGENT + "Failures:\n[1]:\n  rank      : 0 (local_rank: 0)\n"
            "  traceback : Signal 15 (SIGTERM) received by PID 54\n"
            + _REPORT.format(code=1, trace="To enable traceback see: https://pytorch.org"),
            "ValueError: bad sample 3",
        ),
        (
            _AGENT
            + _REPORT.format(
                code=1,
                trace='Traceback (most recent call last):\n    File "a.py", line 8, in main\n'
                '      raise ValueError("recorded")\n  ValueError: recorded',
            ),
            "rank 1: ValueError: recorded",
        ),
    ],
)
def test_exception_of_a_child_process_comes_first(tmp_path: Path, stderr: str, reason: str) -> None:
    (tmp_path / "stderr").write_text(stderr)
    assert failure_reason(tmp_path / "stderr", tmp_path / "stdout") == reason


@pytest.mark.parametrize(
    "line",
    [
        "free(): invalid pointer",
        "double free or corruption (out)",
        "*** stack smashing detected ***: terminated",
    ],
)
def test_abort_of_the_allocator_has_a_reason(tmp_path: Path, line: str) -> None:
    (tmp_path / "stderr").write_text(f"epoch 1\n{line}\n")
    assert abort_reason(tmp_path / "stderr") == line


def test_rule_below_a_report_is_no_reason(tmp_path: Path) -> None:
    report = "-" * 74 + "\nmpirun was unable to find main.py\n" + "-" * 74 + "\n=====\n"
    (tmp_path / "stderr").write_text(report)
    assert failure_reason(tmp_path / "stderr", tmp_path / "stdout") == "mpirun was unable to find main.py"


@pytest.mark.parametrize(("free_bytes", "is_named"), [(0, True), (10 << 20, True), (10 << 30, False)])
def test_error_lost_on_a_scarce_disk_is_explained(tmp_path: Path, free_bytes: int, is_named: bool) -> None:
    """By the time that the end is seen, another process may have made some space again."""
    (tmp_path / "stderr").write_text("lost sys.stderr\n")
    (tmp_path / "stdout").write_text("")
    exit = exit_from_status(1 << 8, tmp_path / "stdout", tmp_path / "stderr", free_bytes=free_bytes)
    assert ("no space left on the disk of" in exit.reason) is is_named
