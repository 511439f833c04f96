"""`hop checkpoint`, and references like `RUN@best`."""

from __future__ import annotations

import json

from hopyard.api_client.client import Client
from tests.cli.shell import Shell

_SCRIPT = """
import hopyard as hop
p = hop.params(epochs=7)
state = hop.bind(seen=[])
for epoch in hop.loop(range(p.epochs)):
    state.seen.append(epoch)
    accuracy = 1 - abs(epoch - 2) / 10
    hop.log(val_acc=accuracy, step=epoch)
    if epoch == 0:
        hop.save(keep=True)
    hop.summary(val_acc=accuracy)
print(state.seen)
"""

_ODD_VALUES = """
import hopyard as hop
hop.bind(a=1)
hop.save(step=3, loss=float("nan"), up=float("inf"), down=-float("inf"))
"""


def test_best_and_kept_checkpoints_remain_and_are_named(shell: Shell, client: Client) -> None:
    shell.write("peak.py", _SCRIPT)
    assert shell.hop("run", "-n", "peak", "peak.py").code == 0
    listed = json.loads(shell.hop("checkpoint", "ls", "peak", "--json").text)
    best = next(saved["step"] for saved in listed if saved["best"])
    assert [saved["step"] for saved in listed] == [0, 3, 5, 6, 7]
    assert (best, [saved["step"] for saved in listed if saved["kept"]]) == (3, [0])
    table = shell.hop("checkpoint", "ls", "peak").text.splitlines()
    assert "best" in table[2] and "val_acc 1" in table[2] and "newest" in table[5]

    assert shell.hop("pull", "peak@best", "got").code == 0
    assert sorted(part.name for part in (shell.folder / "got").iterdir() if part.is_dir()) == ["checkpoint-3"]
    fork = shell.hop("fork", "peak@best", "-n", "forked", "--json", "--detach")
    assert fork.code == 0 and client.get_run(json.loads(fork.text)["id"])["spec"]["resume"]["step"] == 3

    assert shell.hop("checkpoint", "keep", "peak@5").code == 0
    assert shell.hop("checkpoint", "keep", "peak@0", "--undo").code == 0
    removed = shell.hop("checkpoint", "rm", "peak@newest", "--json")
    assert json.loads(removed.text)["step"] == 7
    listed = json.loads(shell.hop("checkpoint", "ls", "peak", "--json").text)
    assert [saved["step"] for saved in listed] == [0, 3, 5, 6]
    assert [saved["step"] for saved in listed if saved["kept"]] == [5]


_SAVES_TWICE = """
import hopyard as hop
state = hop.bind(text='')
for epoch in range(6):
    state.text = f'trained {epoch}'
    hop.save(step=epoch)
    state.text = f'evaluated {epoch}'
    hop.save(step=epoch, keep=epoch == 0, val_loss=abs(epoch - 1))
"""
_LOADS = """
import hopyard as hop
state = hop.bind(text='')
print(hop.load(), state.text)
"""


def test_second_save_of_a_step_replaces_the_first(shell: Shell) -> None:
    shell.write("twice.py", _SAVES_TWICE)
    assert shell.hop("run", "-n", "twice", "twice.py").code == 0
    listed = json.loads(shell.hop("checkpoint", "ls", "twice", "--json").text)
    assert [(saved["step"], saved["kept"], saved["metrics"]["val_loss"]) for saved in listed] == [
        (0, True, 1), (1, False, 0), (3, False, 2), (4, False, 3), (5, False, 4),
    ]  # fmt: skip
    shell.write("twice.py", _LOADS)
    saved_run = shell.hop("info", "twice", "--json").json["name"]
    for step in (0, 5):
        forked = shell.hop("fork", f"{saved_run}@{step}", "--code", ".")
        assert (forked.code, forked.text) == (0, f"{step} evaluated {step}\n"), forked.stderr_text


def test_wrong_references_are_refused_with_a_hint(shell: Shell) -> None:
    shell.write("none.py", _ODD_VALUES)
    assert shell.hop("run", "-n", "plain", "none.py").code == 0
    [saved] = json.loads(shell.hop("checkpoint", "ls", "plain", "--json").text)
    assert saved["metrics"] == {"loss": "NaN", "up": "Infinity", "down": "-Infinity"}
    assert "loss NaN  up inf  down -inf" in shell.hop("checkpoint", "ls", "plain").text
    for arguments, message in (
        (("checkpoint", "keep", "plain"), "plain: no checkpoint is named"),
        (("checkpoint", "rm", "plain@9"), "the run has no checkpoint of step 9"),
        (("checkpoint", "keep", "plain@worst"), "plain@worst: `worst` is not `newest`, `best` or a step"),
        (("pull", "plain@3", "x", "--step", "3"), "--step: plain@3 names a checkpoint, too"),
        (("checkpoint", "rm", "plain@best"), "plain@best: no metric decides which checkpoint of"),
        (("fork", "plain@best"), "checkpoint: no metric decides which checkpoint of"),
    ):
        result = shell.hop(*arguments)
        first, *more = result.stderr_text.splitlines()
        assert result.code != 0 and message in first and any(line.startswith("hint:") for line in more)
