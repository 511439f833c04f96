"""A script that saves and loads its own checkpoints, without `import hopyard`, continues after each end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell
from tests.scripts.attempts import METRIC_LINE

OWN = """
import argparse, json, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
lr = parser.parse_args().lr
state = pathlib.Path("out/ckpt/state.json")
state.parent.mkdir(parents=True, exist_ok=True)
epoch = json.loads(state.read_text())["epoch"] + 1 if state.exists() else 0
where = pathlib.Path(os.environ["HOPYARD_RUN_DIR"], "where")
if where.exists():
    print("path exists:", os.path.exists(where.read_text()), flush=True)
    print("same path:", where.read_text() == str(state.resolve()), flush=True)
else:
    where.write_text(str(state.resolve()))
print("begins at", epoch, flush=True)
while epoch < 6:
    scratch = state.with_suffix(".new")
    scratch.write_text(json.dumps({"epoch": epoch}))
    scratch.rename(state)
    pathlib.Path(os.environ["HOPYARD_RUN_DIR"], "newest.txt").write_text(str(epoch))
    print("epoch", epoch, "loss", lr * (9, 7, 5, 4, 1, 3)[epoch], flush=True)
    if epoch in (1, 3):
        print("waits in", epoch, "pid", os.getpid(), flush=True)
        time.sleep(600)
    epoch += 1
print("done", flush=True)
"""


def wait_for_line(shell: Shell, run: str, text: str) -> str:
    """Waits for a line of the run's output that contains the text."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = shell.hop("logs", run).text.splitlines()
        found = [line for line in lines if text in line]
        if found:
            return found[-1]
        time.sleep(0.1)
    raise AssertionError(f"{text!r} is not in the output: {shell.hop('info', run).text}")


def wait_for_phase(shell: Shell, run: str, phase: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if shell.hop("info", "--json", run).json["phase"] == phase:
            return
        time.sleep(0.1)
    raise AssertionError(shell.hop("info", run).text)


def test_own_checkpoints_survive_kill_and_resume(served_home: Path, tmp_path: Path) -> None:
    shell = shell_in(tmp_path / "own", served_home)
    shell.write("own.py", OWN)
    shell.write("data/rows.txt", "rows")
    assert shell.hop("dataset", "push", "own", "data").code == 0
    run = shell.detach("-d", "own", *METRIC_LINE, "-p", "lr=0.5", "own.py")
    pid = int(wait_for_line(shell, run, "waits in 1").split()[-1])
    os.kill(pid, signal.SIGKILL)
    wait_for_phase(shell, run, "failed")
    assert shell.hop("info", "--json", run).json["run_folder_bytes"] > 0
    resumed = shell.hop(
        "resume", "--detach", "-n", "second", "--tag", "kind=resumed", "--cpus", "0.5", "--time", "9m", run
    )
    assert f"continues {run} from the files that it kept" in resumed.stderr_text
    second = resumed.text.strip()
    spec = shell.hop("info", "--json", "second").json["spec"]
    assert (spec["tags"], spec["time_limit_s"]) == ({"kind": "resumed"}, 540)
    assert spec["roles"][0]["resources"]["cpu_milli"] == 500
    wait_for_line(shell, second, "begins at 2")
    isolated = detect_isolation_mode() is not IsolationMode.MODES
    wait_for_line(shell, second, f"path exists: {isolated}")
    wait_for_line(shell, second, f"same path: {isolated}")
    wait_for_line(shell, second, "waits in 3")
    assert shell.hop("stop", second).code == 0
    third = shell.hop("resume", second)  # waits until it has stopped
    assert third.code == 0 and "begins at 4" in third.text, third.stderr_text
    wait_for_phase(shell, second, "cancelled")
    forked = shell.hop("fork", second, "-n", "forked", "--files", "-p", "lr=0.25")
    assert forked.code == 0, forked.stderr_text
    assert forked.text.splitlines() == [
        f"path exists: {isolated}",
        f"same path: {isolated}",
        "begins at 4",
        "epoch 4 loss 0.25",
        "epoch 5 loss 0.75",
        "done",
    ]
    difference = shell.hop("diff", "second", "forked", "--json").json
    assert (difference["params"], difference["code"]) == ({"lr": [0.5, 0.25]}, [])
    for words, values in (
        ("--last", [(0.75, 5, 0.25), (1.5, 5, 0.5), (2, 3, 0.5), (3.5, 1, 0.5)]),
        ("--best", [(0.25, 4, 0.25), (0.5, 4, 0.5), (2, 3, 0.5), (3.5, 1, 0.5)]),
    ):
        rows = shell.hop("board", "own", "-m", "loss", "--json", words).json["rows"]
        assert [(row["value"], row["step"], row["params"]["lr"]) for row in rows] == values
    assert shell.hop("files", "last", "--run-dir", "newest.txt", "-o", "-").text == "5"
    assert shell.hop("pull", "last", "got").code == 0
    assert (shell.folder / "got/run-dir/newest.txt").read_text() == "5"
    refused = shell.hop("resume", "last")
    assert refused.code != 0 and "has succeeded" in refused.stderr_text and " --files " in refused.stderr_text


# the configurator of nanoGPT in short: options with `=`, and a checkpoint that is overwritten in place
OVERWRITING = """
import os, pathlib, signal, sys
init_from, resume, out = "scratch", "", pathlib.Path("out")
for word in sys.argv[1:]:
    name, _, value = word.removeprefix("--").partition("=")
    if name == "init_from": init_from = value
    if name == "resume": resume = value
file = out / "weights-of-all"
epoch = int(file.read_text().split()[0]) + 1 if init_from == "resume" else 0
print("begins at", epoch, init_from, bool(resume) and os.path.samefile(resume, file), flush=True)
out.mkdir(exist_ok=True)
if epoch == 0:
    file.write_text("1 of two words")
    os.utime(file, (1e9, 1e9))
    os.kill(os.getpid(), signal.SIGKILL)
file.write_text(f"{epoch} of two words")
print("done", flush=True)
"""


def test_resume_arguments_are_given_with_a_checkpoint_only(served_home: Path, tmp_path: Path) -> None:
    shell = shell_in(tmp_path / "overwriting", served_home)
    shell.write("train.py", OVERWRITING)
    shell.write(
        "hop.yaml",
        "checkpoints: out\nresume_args: ['--resume={checkpoint}', --init_from=resume]\n"
        "roles: [{command: python -u train.py}]\n",
    )
    killed = shell.hop("run", "hop.yaml")
    assert killed.code != 0 and killed.text == "begins at 0 scratch False\n", killed.stderr_text
    (saved,) = shell.hop("checkpoint", "ls", "last", "--json").json
    assert (saved["path"], saved["step"]) == ("work/out/weights-of-all", 1)
    assert "out/weights-of-all" in shell.hop("checkpoint", "ls", "last").text
    resumed = shell.hop("resume", "last")
    assert (resumed.code, resumed.text) == (0, "begins at 2 resume True\ndone\n"), resumed.stderr_text
    info = shell.hop("info", "last").text
    assert "--resume={checkpoint}" in info, info
    assert "the checkpoint is out/weights-of-all" in info, info
    (saved,) = shell.hop("checkpoint", "ls", "last", "--json").json
    forked = shell.hop("fork", f"last@{saved['step']}")
    assert (forked.code, forked.text) == (0, "begins at 3 resume True\ndone\n"), forked.stderr_text
