"""Checkpoints of a run are evaluated by another run, which reports into the first one."""

from __future__ import annotations

from hopyard.api_client.client import Client
from hopyard.client.run_lookup import get_run
from tests.cli.shell import Shell, wait_until

MODEL = """
import os, time
import hopyard as hop

class Count:
    n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.n = state['n']

model = Count()
hop.bind(model=model)
"""
# It ends only after its first checkpoint was evaluated, so the evaluation runs beside it.
TRAIN = (
    MODEL
    + """
for turn in hop.loop(range(3)):
    model.n += 1
    hop.log(loss=-turn, step=turn)
    while turn == 1 and not os.path.exists(os.environ['FIRST_DONE']):
        time.sleep(0.05)
"""
)
# Its process dies in the second evaluation, after a report of the first one.
EVALUATE = (
    MODEL
    + """
for checkpoint in hop.checkpoints():
    print(checkpoint.step, model.n, checkpoint.metrics, checkpoint.path.is_dir(), flush=True)
    is_second = 'HOPYARD_RESTART_COUNT' in os.environ
    hop.log(score=model.n if checkpoint.step == 1 or is_second else 99)
    if checkpoint.step == 2 and not is_second:
        os.kill(os.getpid(), 9)
    open(os.environ['FIRST_DONE'], 'w').close()
"""
)


def test_each_checkpoint_is_evaluated_once_and_reported_at_its_step(shell: Shell, client: Client) -> None:
    shell.write("train.py", TRAIN)
    shell.write("evaluate.py", EVALUATE)
    shell.write(
        "evaluate.yaml",
        "restart: {policy: on-failure, backoff: 0.1s}\n"
        f"env: {{FIRST_DONE: {shell.folder / 'done'}}}\n"
        "roles: [{command: python evaluate.py, resources: {cpus: 0.5}}]\n",
    )
    trained = shell.detach("-e", f"FIRST_DONE={shell.folder / 'done'}", "--cpus", "0.5", "train.py")
    result = shell.hop("evaluate", trained, "evaluate.yaml", "--json")
    evaluation = result.json
    assert (result.code, evaluation["phase"]) == (0, "succeeded"), result.stderr_text
    lines = shell.hop("logs", evaluation["name"], "--stdout").text.splitlines()
    assert lines == [
        "1 1 {'loss': 0.0} True",
        "2 2 {'loss': -1.0} True",
        "2 2 {'loss': -1.0} True",
        "3 3 {'loss': -2.0} True",
    ]
    for run in (evaluation["id"], get_run(client, trained)["id"]):
        score = dict(client.iterate_run_metrics(run))["score"]
        assert (score["steps"], score["values"]) == ([1, 2, 3], [1.0, 2.0, 3.0])
    info = shell.hop("info", trained).text
    assert f"evaluation: by {evaluation['name']}" in info
    assert "score 3  (step 3)" in info
    assert trained in shell.hop("info", evaluation["name"]).text


def test_evaluator_of_a_file_and_single_checkpoints(shell: Shell, client: Client) -> None:
    shell.write("train.py", MODEL + "for turn in hop.loop(range(3)): model.n += 1\n")
    shell.write("evaluate.py", MODEL + "for each in hop.checkpoints(): print(each.step, model.n)\n")
    shell.write(
        "hop.yaml",
        "roles: [{command: python train.py}]\nevaluator: {command: python evaluate.py, newest: true}\n",
    )
    trained = shell.hop("run", "--json", "hop.yaml").json["name"]
    (beside,) = client.get_run(get_run(client, trained)["id"])["events"]
    assert beside["kind"] == "evaluation"
    assert shell.hop("logs", "-f", beside["detail"].split()[1]).text.splitlines()[-1] == "3 3"
    for words, printed in ((["--checkpoint", "2"], "2 2\n"), (["--newest", "--no-follow"], "3 3\n")):
        result = shell.hop("evaluate", trained, *words, "evaluate.py")
        assert (result.code, result.text) == (0, printed), result.stderr_text
    alone = shell.hop("run", "evaluate.py")
    assert alone.code == 1
    assert "hop.checkpoints: this run evaluates no other run" in alone.stderr_text


def test_evaluator_makes_room_for_the_run_that_it_follows(shell: Shell, client: Client) -> None:
    """Both need the whole node. The evaluator has it while the run is released."""
    shell.write(
        "train.py",
        MODEL
        + """
for turn in hop.loop(range(10**6)):
    model.n += 1
    time.sleep(0.05)
    if hop.run().restored_step is not None:
        break
""",
    )
    shell.write("evaluate.py", MODEL + "for each in hop.checkpoints(): print(each.step, flush=True)\n")
    trained = shell.detach("--cpus", "4", "train.py")
    run = get_run(client, trained)["id"]
    wait_until(lambda: any(client.iterate_run_checkpoints(run)))
    assert "released" in shell.hop("pause", trained, "--release", "--timeout", "120").stderr_text
    evaluator = shell.hop(
        "evaluate", trained, "--newest", "--detach", "--cpus", "4", "evaluate.py"
    ).text.strip()
    wait_until(lambda: shell.hop("logs", evaluator, "--stdout").text != "")
    assert shell.hop("resume", trained).code == 0
    assert shell.hop("logs", "-f", evaluator).code == 0
    checkpoints = list(client.iterate_run_checkpoints(run))
    # the output of its first attempt, which evaluated the one before, is hidden
    assert shell.hop("logs", evaluator, "--stdout").text == f"{checkpoints[-1]['step']}\n"
    phases = [get_run(client, name)["phase"] for name in (trained, evaluator)]
    assert phases == ["succeeded", "succeeded"]
    assert f"it evaluates run {trained}" in shell.hop("info", evaluator).text


def test_evaluation_of_an_evaluation_is_refused(shell: Shell) -> None:
    shell.write("empty.py", "pass\n")
    trained = shell.hop("run", "--json", "empty.py").json["name"]
    first = shell.hop("evaluate", trained, "--json", "empty.py").json["name"]
    refused = shell.hop("evaluate", first, "empty.py")
    assert (refused.code, "is an evaluation itself" in refused.stderr_text) == (2, True)


OWN_FILES = """
import json, os
for epoch in (1, 2):
    os.makedirs(f'checkpoints/epoch_{epoch}')
    json.dump(epoch, open(f'checkpoints/epoch_{epoch}/model.json', 'w'))
"""


def test_files_that_a_script_saved_itself_are_evaluated_where_nothing_is_bound(
    shell: Shell, client: Client
) -> None:
    shell.write("train.py", OWN_FILES)
    shell.write(
        "evaluate.py",
        "import json\nimport hopyard as hop\n"
        "for each in hop.checkpoints():\n"
        "    hop.log(score=10 * json.loads((each.path / 'model.json').read_text()))\n",
    )
    shell.write("binding.py", MODEL + "for each in hop.checkpoints(): print(each.step)\n")
    trained = shell.hop("run", "--json", "train.py").json["name"]
    result = shell.hop("evaluate", trained, "evaluate.py")
    assert result.code == 0, result.stderr_text
    score = dict(client.iterate_run_metrics(get_run(client, trained)["id"]))["score"]
    assert (score["steps"], score["values"]) == ([1, 2], [10.0, 20.0])
    binding = shell.hop("evaluate", trained, "binding.py")
    assert (binding.code, binding.text) == (0, "")
    assert "the checkpoints of the run are files of its script" in binding.stderr_text
    absent = shell.hop("evaluate", trained, "--checkpoint", "9", "evaluate.py")
    assert "the run has no checkpoint of step 9: nothing is evaluated" in absent.stderr_text
