"""A failed process of a replica starts again, as `restart` of its role allows."""

from __future__ import annotations

from hopyard.api_client.client import Client
from tests.cli.shell import Shell

# It fails once after unsaved iterations, and once by a signal. Its best value is one of a lost iteration.
TRAIN = """
import os, sys
import hopyard as hop

class Count:
    n = 0
    def state_dict(self): return {'n': self.n}
    def load_state_dict(self, state): self.n = state['n']

count, process = Count(), int(os.environ.get('HOPYARD_RESTART_COUNT', 0))
hop.bind(count=count)
for turn in hop.loop(range(8), every=2):
    count.n += 1
    print('turn', turn, count.n, flush=True)
    hop.log(loss=1.0 if process else -turn, step=turn)
    hop.log(free=turn)
    if (process, turn) == (0, 4): raise ValueError('lost connection')
    if (process, turn) == (1, 6): os.kill(os.getpid(), 9)
"""
# It saves its own checkpoints, and continues only if an argument names one.
OWN = """
import os, pathlib, sys
resume = dict(word.split('=') for word in sys.argv[1:]).get('--resume', '')
first = int(pathlib.Path(resume).read_text()) + 1 if resume else 0
process = int(os.environ.get('HOPYARD_RESTART_COUNT', 0))
print('process', process, 'begins at', first, os.path.basename(resume), flush=True)
for step in range(first, 6):
    scratch = pathlib.Path('out', 'scratch.tmp')
    scratch.parent.mkdir(exist_ok=True)
    scratch.write_text(str(step))
    scratch.rename(f'out/checkpoint-{step}.json')
    if step == 1 and process == 0: sys.exit('lost connection')
    if step == 3 and process == 1: sys.exit('lost connection')
"""
ACTOR = """
import os, sys, time
if os.environ['RANK'] == '1' and 'HOPYARD_RESTART_COUNT' not in os.environ:
    sys.exit('no trainer yet')
if os.environ['RANK'] == '1':
    open(os.environ['HOPYARD_WORKSPACE'] + '/connected', 'w').close()
while not os.path.exists(os.environ['HOPYARD_WORKSPACE'] + '/connected'):
    time.sleep(0.02)
"""


def test_restarted_process_continues_from_its_newest_checkpoint(shell: Shell, client: Client) -> None:
    shell.write("train.py", TRAIN)
    shell.write(
        "hop.yaml",
        "restart: {policy: on-failure, limit: 2, backoff: 0.1s}\nroles: [{command: python train.py}]\n",
    )
    run = shell.hop("run", "--json", "hop.yaml").json
    assert run["phase"] == "succeeded", run
    lines = [f"turn {turn} {turn + 1}" for turn in range(8)]
    assert shell.hop("logs", run["name"], "--stdout").text.splitlines() == lines
    curves = dict(client.iterate_run_metrics(run["id"]))
    assert curves["loss"]["steps"] == curves["free"]["steps"] == list(range(8))
    assert curves["loss"]["values"] == [0.0, -1.0, -2.0, -3.0, 1.0, 1.0, 1.0, 1.0]
    info = shell.hop("info", run["name"]).text
    assert (
        "restarted: worker-0 restarted from the checkpoint of step 4 (1 of 2): exit code 1: ValueError: "
        "lost connection"
    ) in info
    assert "step 6 (2 of 2): killed by signal 9" in info


def test_restarted_process_gets_the_resume_arguments(shell: Shell) -> None:
    shell.write("train.py", OWN)
    shell.write(
        "hop.yaml",
        "restart: {policy: on-failure, limit: 2, backoff: 0.1s}\n"
        "checkpoints: out\nresume_args: --resume={checkpoint}\n"
        "roles: [{command: python train.py}]\n",
    )
    run = shell.hop("run", "--json", "hop.yaml").json
    assert run["phase"] == "succeeded", run
    assert shell.hop("logs", run["name"], "--stdout").text.splitlines() == [
        "process 0 begins at 0 ",
        "process 1 begins at 2 checkpoint-1.json",
        "process 2 begins at 4 checkpoint-3.json",
    ]
    info = shell.hop("info", run["name"]).text
    assert "the checkpoint is out/checkpoint-3.json" in info


def test_replica_that_fails_more_often_than_allowed_ends_its_gang(shell: Shell) -> None:
    shell.write("bad.py", "import sys\nsys.exit('no data')\n")
    shell.write("wait.py", "import time\ntime.sleep(600)\n")
    shell.write(
        "hop.yaml",
        "roles:\n- {name: lead, command: python wait.py, resources: {cpus: 0.2}}\n"
        "- {name: actor, command: python bad.py, resources: {cpus: 0.2},"
        " restart: {policy: on-failure, limit: 1, backoff: 0.1s}}\n",
    )
    run = shell.hop("run", "--json", "hop.yaml").json
    assert run["run"]["exit"]["reason"] == "replica 1: exit code 1: no data; no restart is left of 1 restart"


def test_actor_starts_again_while_its_gang_runs(shell: Shell) -> None:
    shell.write("actor.py", ACTOR)
    shell.write(
        "hop.yaml",
        "roles:\n- {name: trainer, command: python actor.py, resources: {cpus: 0.2}}\n"
        "- {name: actor, command: python actor.py, resources: {cpus: 0.2}, restart: on-failure}\n",
    )
    run = shell.hop("run", "--json", "hop.yaml").json
    assert (run["phase"], run["run"]["attempt"]["number"]) == ("succeeded", 1), run
    assert "actor-0 restarted (1 of 3): exit code 1: no trainer yet" in shell.hop("info", run["name"]).text
