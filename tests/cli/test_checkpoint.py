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


_SAVES_BOTH = """
import pathlib, time
import hopyard as hop
hop.bind(a=1)
pathlib.Path('out').mkdir()
for step in range(1, 8):
    hop.log(val_acc=1 - abs(step - 3) / 10, loss=step, step=step)
    hop.save(step=step)
    pathlib.Path(f'out/model-{step}.json').write_text(str(step))
"""


def test_keep_chooses_checkpoints_and_the_list_shows_why(shell: Shell) -> None:
    shell.write("both.py", _SAVES_BOTH)
    rule = "last=1,best=2,every=5,metric=min:loss"
    run = shell.hop("run", "--keep", rule, "--checkpoints", "out", "-n", "both", "both.py")
    assert run.code == 0, run.stderr_text
    listed = shell.hop("checkpoint", "ls", "both", "--json").json
    expected = {1: ["best=2"], 2: ["best=2"], 5: ["every=5"], 7: ["last=1"]}
    assert {saved["step"]: saved["kept_for"] for saved in listed if not saved["path"]} == expected
    # those of the script itself have the metrics that were logged before: here all those of the last step
    own = {saved["step"]: saved["kept_for"] for saved in listed if saved["path"]}
    assert own[7][0] == "last=1" and "every=5" in own[5] and len(own) < 7, own
    lines = shell.hop("checkpoint", "ls", "both").text.splitlines()
    assert "KEPT FOR" in lines[0] and any("best=2" in line for line in lines)
    assert f"keeps  {rule}" in " ".join(shell.hop("info", "both").text.split()).replace("keeps ", "keeps  ")
    shell.write("hop.yaml", "keep: {last: 1, best: 0}\nroles: [{command: python both.py}]\n")
    assert shell.hop("run", "-n", "file", "hop.yaml").code == 0
    assert [saved["step"] for saved in shell.hop("checkpoint", "ls", "file", "--json").json] == [7]
    assert "keep: last=1,best=0" in shell.hop("run", "--print-spec", "hop.yaml").text
    for words, message in (
        (("--keep", "last=0"), "--keep: last=0 is out of range"),
        (("--keep", "best"), "--keep: `best` is not KEY=VALUE"),
        (("--keep", ""), "--keep: `` is not KEY=VALUE"),
        (("--python", ""), "--python: `` is not a version"),
    ):
        refused = shell.hop("run", *words, "both.py")
        assert refused.code == 2 and message in refused.stderr_text
    shell.write("hop.yaml", "keep: {evry: 1}\nroles: [{command: python both.py}]\n")
    refused = shell.hop("run", "hop.yaml")
    assert "unknown part `evry`" in refused.stderr_text and "did you mean `every`?" in refused.stderr_text


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
