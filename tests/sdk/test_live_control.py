"""Commands are applied at a safe point: once, by all processes of a gang at the same iteration."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.replica import STOP_FILE, StopOrder
from hopyard.errors import SpecError
from hopyard.sdk import safe_points
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.command_file import CommandFile, values_set_before
from hopyard.sdk.live_control import LiveControl
from hopyard.sdk.live_params import LiveParams
from hopyard.sdk.params import Params
from hopyard.sdk.safe_points import SAFE_POINT_EXIT_CODE, SafePointAction, SafePoints
from tests.cli.shell import wait_until
from tests.sdk.scripts import Replica, finish

PATIENCE_S = 60.0


def line(number: int, kind: str = "set", **arguments: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "arguments": arguments, "user": "alice"}


def write_stop(folder: Path, order: StopOrder | None = None) -> None:
    scratch = folder / "scratch"
    scratch.write_bytes(msgspec.json.encode(order or StopOrder.for_preemption(60)))
    scratch.replace(folder / STOP_FILE)


def has_answer(replica: Replica) -> bool:
    events = replica.folder / "streams" / "events"
    return events.exists() and b'"kind":"command"' in events.read_bytes()


def test_file_adds_each_command_once_and_repairs_a_partial_line(tmp_path: Path) -> None:
    file = CommandFile(str(tmp_path))
    assert file.append([line(2, lr=0.2), line(1, lr=0.1)])
    assert not CommandFile(str(tmp_path)).append([line(1, lr=0.1), line(2, lr=0.2)])
    with open(tmp_path / "turns" / "commands.jsonl", "ab") as lines:
        lines.write(b'{"number": 3, "ki')  # the replica was killed
    assert (file.newest, CommandFile(str(tmp_path)).append([line(3, lr=0.3), line(5, "pause")])) == (2, True)
    assert [each["number"] for each in file.read(1, 4)] == [2, 3]
    assert file.newest == 5
    assert values_set_before(str(tmp_path)) == ({}, 0)
    file.agree(9, 2)
    assert values_set_before(str(tmp_path)) == ({"lr": 0.2}, 2)
    file.agree(9, 5)
    assert values_set_before(str(tmp_path)) == ({"lr": 0.3}, 4), "it is paused at its first safe point, too"
    file.append([line(6, "resume")])
    file.agree(9, 6)
    assert values_set_before(str(tmp_path)) == ({"lr": 0.3}, 6)


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 4),
    collective_every=st.sampled_from([1, 3, 1000]),
    sent_after=st.lists(st.integers(0, 12), min_size=4, max_size=4, unique=True),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.01]), min_size=4, max_size=4),
)
def test_all_ranks_apply_commands_once_at_the_same_iteration(
    size: int, collective_every: int, sent_after: list[int], pauses: list[float]
) -> None:
    """Rank 0 sends a `set` at three iterations, and at a fourth the order to end the test."""
    with TemporaryDirectory() as root:
        gang, meeting = Path(root), threading.Barrier(size)
        members = [SafePoints(str(gang / str(rank)), str(gang), rank, size) for rank in range(size)]
        sender, order = CommandFile(root), sorted(sent_after)
        applied: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(size)}
        waiting = threading.Event()

        def train(rank: int) -> None:
            for turn in range(1, 100_000):
                if turn % collective_every == 0:
                    meeting.wait(PATIENCE_S)
                if rank == 0:
                    for number, at in enumerate(order, 1):
                        if turn > at:
                            sender.append([line(number)])
                waiting.wait(pauses[rank])  # never set: how long a turn takes
                if members[rank].reach() is SafePointAction.COMMANDS:
                    applied[rank] += [(turn, each["number"]) for each in members[rank].take_commands()]
                    members[rank].leave()
                    if applied[rank][-1][1] == len(order):
                        return

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [number for _, number in applied[0]] == [1, 2, 3, 4]
        assert all(applied[rank] == applied[0] for rank in applied)


def test_paused_gang_resumes_and_stops_together(tmp_path: Path) -> None:
    """One rank sees the end of the pause first, and the next pause before the others have left the first."""
    members = [SafePoints(str(tmp_path / str(rank)), str(tmp_path), rank, 3) for rank in range(3)]
    sender, kinds = CommandFile(str(tmp_path)), ["pause", "resume", "pause", "resume"]
    seen: dict[int, list[tuple[int, str]]] = {rank: [] for rank in range(3)}
    sender.append([line(1, kinds[0])])

    def train(rank: int) -> None:
        for turn in range(1, 100_000):
            action, is_paused = members[rank].reach(), False
            while action is SafePointAction.COMMANDS:
                for command in members[rank].take_commands():
                    seen[rank].append((turn, command["kind"]))
                    is_paused = command["kind"] == "pause"
                if rank == 0 and len(seen[0]) < len(kinds):
                    sender.append([line(len(seen[0]) + 1, kinds[len(seen[0])])])
                if not is_paused:
                    members[rank].leave()
                    break
                action = members[rank].wait_for_action(lambda: None)
            if len(seen[rank]) == len(kinds):
                return

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [kind for _, kind in seen[0]] == kinds
    assert seen[1] == seen[2] == seen[0]


SCRIPT = """
import hopyard as hop
from hopyard.sdk.command_file import CommandFile
p = hop.params(lr=0.1, sizes=[8, 8], epochs=6)

class Optimizer:
    def __init__(self):
        self.param_groups = [
            {"params": [], "lr": p.lr, "weight_decay": 0.0},
            {"params": [], "lr": p.lr * 10, "weight_decay": 0.0},
        ]
    def state_dict(self):
        return {"groups": [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]}
    def load_state_dict(self, state):
        for group, saved in zip(self.param_groups, state["groups"]):
            group.update(saved)

optimizer = hop.bind(optimizer=Optimizer()).optimizer
sender = CommandFile(hop.run().folder)
sent = {commands}
for epoch in hop.loop(range(p.epochs)):
    print(epoch, p.lr, p["sizes"], [float(f"{group['lr']:.6g}") for group in optimizer.param_groups])
    sender.append(sent.get(epoch, []))
"""


def script(commands: dict[int, list[dict[str, Any]]]) -> str:
    return SCRIPT.replace("{commands}", repr(commands))


def test_set_changes_params_optimizer_and_recorded_values(replica: Replica) -> None:
    sent = {1: [line(1, lr=0.05, sizes="4,4")], 3: [line(2, lr=0.01)]}
    done = replica.run(script(sent))
    assert done.stdout.splitlines()[1:6:2] == [
        "1 0.1 [8, 8] [0.1, 1.0]",
        "3 0.05 [4, 4] [0.05, 0.5]",
        "5 0.01 [4, 4] [0.01, 0.1]",
    ]
    answers = [{k: v for k, v in each.items() if k != "t"} for each in replica.events_of("command")]
    assert [(each["number"], each["state"], each["step"]) for each in answers] == [
        (1, "applied", 2),
        (2, "applied", 4),
    ]
    assert answers[0]["changes"] == {"lr": [0.1, 0.05], "sizes": ["[8, 8]", "[4, 4]"]}
    assert "step 2: lr 0.1 -> 0.05; sizes [8, 8] -> [4, 4]; lr of `optimizer` 0.1 -> 0.05" in done.stderr
    assert replica.events_of("params")[-1]["values"] == {"lr": 0.01, "sizes": "[4, 4]", "epochs": 6}


def test_resumed_attempt_applies_a_change_once(replica: Replica) -> None:
    """Its script builds the optimizer with the new rate, and the checkpoint holds the changed one."""
    replica.run(script({0: [line(1, lr=0.05)]}).replace("epochs=6", "epochs=2"))
    done = replica.run(
        script({}),
        HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "2"),
        HOPYARD_PARAMS='{"lr": 0.05}',
    )
    assert done.stdout.splitlines()[0] == "2 0.05 [8, 8] [0.05, 0.5]"


def test_process_that_starts_again_begins_with_the_set_values(replica: Replica) -> None:
    replica.run(script({0: [line(1, lr=0.05)]}), HOPYARD_GANG_DIR=str(replica.folder))
    done = replica.run(
        "import hopyard as hop; print(hop.params(lr=0.1).lr)", HOPYARD_GANG_DIR=str(replica.folder)
    )
    assert done.stdout == "0.05\n"


def test_restarted_process_answers_what_the_killed_one_had_to_answer(replica: Replica) -> None:
    """The gang had agreed on the second change; the process was killed before its answer."""
    environ = {"HOPYARD_GANG_DIR": str(replica.folder)}
    replica.run(script({0: [line(1, lr=0.05)]}), **environ)
    file = CommandFile(str(replica.folder))
    file.append([line(2, lr=0.01)])
    file.agree(7, 2)
    done = replica.run(script({}), **environ, HOPYARD_RESTART_COUNT="1")
    assert [row.split()[1] for row in done.stdout.splitlines()] == ["0.05", *["0.01"] * 5]
    answers = [(each["number"], each["step"], each["changes"]) for each in replica.events_of("command")]
    assert answers == [(1, 1, {"lr": [0.1, 0.05]}), (2, 1, {"lr": [0.05, 0.01]})]


def test_process_that_is_late_applies_what_the_others_have_agreed_on(replica: Replica) -> None:
    agreed = "sender.append([{'number': 1, 'kind': 'set', 'arguments': {'lr': 0.05}, 'user': 'a'}])\n"
    late = script({}).replace("for epoch", f"{agreed}sender.agree(1, 1)\nfor epoch")
    done = replica.run(late, HOPYARD_GANG_DIR=str(replica.folder))
    assert [row.split()[1] for row in done.stdout.splitlines()] == ["0.1", *["0.05"] * 5]
    (answer,) = replica.events_of("command")
    assert (answer["number"], answer["step"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"lrr": 1.0}, "the script has no parameter `lrr`; did you mean `lr`?"),
        ({"lr": "fast", "sizes": "1"}, "lr=fast: `lr` is a float"),
    ],
)
def test_refused_change_changes_nothing(replica: Replica, arguments: dict[str, Any], reason: str) -> None:
    done = replica.run(script({0: [line(1, **arguments)]}))
    assert done.stdout.splitlines()[-1] == "5 0.1 [8, 8] [0.1, 1.0]"
    (answer,) = replica.events_of("command")
    assert (answer["state"], answer["answer"]) == ("refused", reason)


def test_loop_keeps_its_length_when_its_parameter_changes(replica: Replica) -> None:
    done = replica.run(script({0: [line(1, epochs=3)]}))
    assert len(done.stdout.splitlines()) == 6
    (answer,) = replica.events_of("command")
    assert "the current loop `epoch` keeps its 6 iterations" in answer["answer"]


def test_change_that_a_batch_rule_refuses_changes_nothing() -> None:
    live, params = LiveParams(), Params({"name": "x", "lr": 0.1, "batch_size": 64})
    live.add(params, dict(params))
    scaled = params.per_batch(32)
    with pytest.raises(SpecError, match="`batch_size` is 0"):
        live.change({"lr": 0.5, "batch_size": 0, "name": "y"})
    assert (dict(params), scaled.lr) == ({"name": "x", "lr": 0.1, "batch_size": 64}, 0.2)
    assert live.change({"lr": 0.5}) == {"lr": (0.1, 0.5)}
    assert scaled.lr == 1.0


def test_optimizer_that_refuses_a_value_does_not_end_the_training() -> None:
    class Group(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            raise RuntimeError("read-only")

    class Optimizer:
        param_groups = [Group(lr=0.1)]

    params = Params({"lr": 0.1})
    control = LiveControl(BoundObjects(), {}, lambda *_, **__: None)
    control.params.add(params, {"lr": 0.1})
    control.follow({"optimizer": Optimizer()})
    answer, fields = control._set({"lr": 0.5}, [])
    assert answer == "lr 0.1 -> 0.5; an optimizer could not be changed: RuntimeError: read-only"
    assert (params.lr, fields) == (0.5, {"changes": {"lr": [0.1, 0.5]}})


def test_processes_that_left_their_loop_or_died_are_not_waited_for(tmp_path: Path) -> None:
    members = [SafePoints(str(tmp_path / str(rank)), str(tmp_path), rank, 3) for rank in range(3)]
    sender = CommandFile(str(tmp_path))
    for member in members:
        for _ in range(3):
            assert member.reach() is None
    members[0].leave_loop()  # it does other work now
    members[2].close()
    sender.append([line(1)])
    assert members[1].reach() is SafePointAction.COMMANDS
    assert [each["number"] for each in members[1].take_commands()] == [1]
    assert members[1].answers, "rank 0 may never reach another safe point"
    members[1].leave()
    members[0].begin_loop()
    assert members[0].reach() is SafePointAction.COMMANDS
    assert [each["number"] for each in members[0].take_commands()] == [1]
    members[0].leave()
    sender.append([line(2)])
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(members[1].reach()))
    thread.start()
    assert members[0].reach() is SafePointAction.COMMANDS, "the other one waits again"
    thread.join(PATIENCE_S)
    assert results == [SafePointAction.COMMANDS]
    assert not members[1].answers


def test_process_with_a_loop_does_not_wait_for_one_that_only_logs(tmp_path: Path) -> None:
    """An evaluator beside a trainer may not log for a long time."""
    evaluator = SafePoints(str(tmp_path / "1"), str(tmp_path), 1, 2, by_log=True)
    trainer = SafePoints(str(tmp_path / "0"), str(tmp_path), 0, 2)
    for _ in range(3):
        assert trainer.reach() is None
    assert evaluator.reach() is None
    CommandFile(str(tmp_path)).append([line(1)])
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(trainer.reach()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert results == [SafePointAction.COMMANDS]
    assert evaluator.reach() is SafePointAction.COMMANDS
    assert [each["number"] for each in evaluator.take_commands()] == [1]


@pytest.mark.parametrize("by_log", [False, True])
def test_independent_process_holds_up_no_other(
    tmp_path: Path, by_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 is a server that never has a safe point, and rank 3 an evaluator with a slow loop."""
    monkeypatch.setattr(safe_points, "_PEER_TIMEOUT_S", 10 * PATIENCE_S)

    def join(rank: int, *, by_log: bool) -> SafePoints:
        return SafePoints(
            str(tmp_path / str(rank)), str(tmp_path), rank, 4, by_log=by_log, independent={0, 3}
        )

    evaluator, workers = join(3, by_log=False), [join(rank, by_log=by_log) for rank in (1, 2)]
    sender = CommandFile(str(tmp_path))
    for _ in range(4):
        assert evaluator.reach() is None
    sender.append([line(1)])
    assert evaluator.reach() is None, "it begins no agreement"
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda each=each: results.append(each.reach()), daemon=True)
        for each in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert results == [SafePointAction.COMMANDS] * 2
    assert [each.answers for each in workers] == [True, False]
    assert evaluator.reach() is SafePointAction.COMMANDS
    assert [[each["number"] for each in member.take_commands()] for member in (*workers, evaluator)] == [
        [1],
        [1],
        [1],
    ]


def test_script_does_not_wait_for_independent_processes(replica: Replica) -> None:
    environ = {"WORLD_SIZE": "2", "HOPYARD_INDEPENDENT_RANKS": "1", "HOPYARD_GANG_DIR": str(replica.folder)}
    done = replica.run(logging_script(replica, {0: [line(1, lr=0.05)]}), **environ)
    assert done.stdout.split()[1::2] == ["0.1", *["0.05"] * 4]


def test_killed_process_does_not_hold_up_the_others(replica: Replica) -> None:
    """Its parent has not read its exit state, as that of a launcher."""
    killed = "import os, signal\nimport hopyard as hop\nfor _ in hop.loop(range(9)):\n"
    killed += "    os.kill(os.getpid(), signal.SIGKILL)"
    process = replica.start(killed, HOPYARD_GANG_DIR=str(replica.folder), RANK="1", WORLD_SIZE="2")
    assert process.stdout is not None
    assert process.stdout.read() == ""
    done = replica.run(script({0: [line(1, lr=0.05)]}), WORLD_SIZE="2", HOPYARD_GANG_DIR=str(replica.folder))
    process.communicate()
    assert done.stdout.splitlines()[1].split()[1] == "0.05"


def test_refused_value_is_no_start_value_of_later_processes(replica: Replica) -> None:
    replica.run(script({0: [line(1, sizes="[[1"), line(2, lr=0.05)]}), HOPYARD_GANG_DIR=str(replica.folder))
    assert values_set_before(str(replica.folder)) == ({"lr": 0.05}, 2)
    done = replica.run(
        "import hopyard as hop; print(hop.params(lr=0.1, sizes=[8, 8]))",
        HOPYARD_GANG_DIR=str(replica.folder),
    )
    assert done.stdout == "Params(lr=0.05, sizes=[8, 8])\n"


LOGGING = """
import sys
import hopyard as hop
from hopyard.sdk.command_file import CommandFile
p = hop.params(lr=0.1)
sender = CommandFile({gang!r})
sent = {sent!r}
for step in range({steps}):
    if {logs}:
        hop.log(loss=1.0, step=step)
        hop.log(acc=0.5, step=step)
    print(step, p.lr)
    sender.append(sent.get(step, []))
"""


def logging_script(replica: Replica, sent: dict[int, Any], *, steps: int = 5, logs: str = "True") -> str:
    return LOGGING.format(gang=str(replica.folder), sent=sent, steps=steps, logs=logs)


def test_script_that_only_logs_is_changed_paused_and_resumed(replica: Replica) -> None:
    sent = {1: [line(1, lr=0.05), line(2, "pause"), line(3, "resume")]}
    done = replica.run(logging_script(replica, sent))
    assert done.stdout.split()[1::2] == ["0.1", "0.1", "0.05", "0.05", "0.05"]
    answers = [(each["number"], each["state"], each["step"]) for each in replica.events_of("command")]
    assert answers == [(1, "applied", 2), (2, "applied", 2), (3, "applied", 2)]
    assert replica.events_of("safe-points")


def test_paused_script_that_only_logs_ends_by_the_signal_of_a_stop(replica: Replica) -> None:
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('saves', flush=True))\n"
    text = handler + logging_script(replica, {0: [line(1, "pause")]}, steps=3)
    process = replica.start(text, HOPYARD_GANG_DIR=str(replica.folder))
    wait_until(lambda: has_answer(replica))
    assert process.poll() is None
    write_stop(replica.folder)
    done = finish(process)
    assert [row.split()[0] for row in done.stdout.splitlines()] == ["0", "1", "2"]


def test_gang_that_logs_in_one_process_refuses_a_change(replica: Replica) -> None:
    """The other process would train with another rate."""
    environ = {"WORLD_SIZE": "2", "HOPYARD_GANG_DIR": str(replica.folder)}
    done = replica.run(logging_script(replica, {0: [line(1, lr=0.05)]}, steps=6), **environ)
    assert done.stdout.split()[-1] == "0.1"
    (answer,) = replica.events_of("command")
    assert (answer["state"], "do not all log at the same steps" in answer["answer"]) == ("refused", True)


def test_gang_that_logs_acts_at_the_same_step(replica: Replica) -> None:
    """Each step begins when both processes are in it, as after a collective operation."""
    sent = {2: [line(1, lr=0.05)]}
    barrier = """
import os, pathlib, time
def meet(step):
    root = pathlib.Path(os.environ["HOPYARD_GANG_DIR"])
    (root / f"step-{step}-{os.environ['RANK']}").touch()
    while not (root / f"step-{step}-{1 - int(os.environ['RANK'])}").exists():
        time.sleep(0.001)
"""
    text = barrier + logging_script(replica, sent, steps=8).replace("    print", "    meet(step)\n    print")
    environ = {"WORLD_SIZE": "2", "HOPYARD_GANG_DIR": str(replica.folder)}
    processes = [replica.start(text, RANK=str(rank), **environ) for rank in range(2)]
    rows = [finish(process).stdout for process in processes]
    assert rows[0] == rows[1]
    assert rows[0].split()[-1] == "0.05"


PER_BATCH = """
import hopyard as hop
from hopyard.sdk.command_file import CommandFile
given = hop.params(lr=0.1, batch_size=64)
p = given.per_batch(64)

class Optimizer:
    def __init__(self, lr):
        self.param_groups = [{"params": [], "lr": lr, "initial_lr": lr}]
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        pass

bound = hop.bind(optimizer=Optimizer(p.lr), other=Optimizer(0.003))
sender = CommandFile(hop.run().folder)
for epoch in hop.loop(range(3)):
    bound.optimizer.param_groups[0]["lr"] *= 0.5  # a schedule
    rates = [each.param_groups[0]["lr"] for each in (bound.optimizer, bound.other)]
    print(p.batch_size, p.lr, *(f"{rate:.6g}" for rate in rates))
    if epoch == 0:
        sender.append([{"number": 1, "kind": "set", "arguments": {"batch_size": 128}, "user": "alice"}])
"""


def test_changed_batch_size_scales_the_rate_of_the_optimizer(replica: Replica) -> None:
    done = replica.run(PER_BATCH)
    assert done.stdout.splitlines() == ["64 0.1 0.05 0.003", "128 0.2 0.05 0.003", "128 0.2 0.025 0.003"]
    (answer,) = replica.events_of("command")
    assert answer["changes"] == {"batch_size": [64, 128]}
    assert "effective lr 0.1 -> 0.2; lr of `optimizer` 0.05 -> 0.1" in answer["answer"]
    assert "lr of `other` stays 0.003" in answer["answer"]
    assert replica.events_of("scaled")[-1]["values"]["lr.scaled"] == 0.2


def test_paused_process_is_stopped_at_its_time_limit(replica: Replica) -> None:
    """The clock of the limit continues in a pause: the run keeps its resources."""
    process = replica.start(script({0: [line(1, "pause")]}), HOPYARD_GANG_DIR=str(replica.folder))
    wait_until(lambda: has_answer(replica))
    write_stop(replica.folder, StopOrder.for_time_limit(60.0, "time limit of 1m reached"))
    _, err = process.communicate(timeout=180)
    assert process.returncode == SAFE_POINT_EXIT_CODE, err
    assert "the time limit is reached: the checkpoint of step 1 is saved" in err
    assert replica.checkpoints == [1]


def test_values_without_a_number_in_json_reach_the_script(replica: Replica) -> None:
    done = replica.run(script({0: [line(1, lr="-Infinity")], 1: [line(2, lr="NaN")]}))
    assert [row.split()[1] for row in done.stdout.splitlines()[:3]] == ["0.1", "-inf", "nan"]
    first, second = (each["changes"]["lr"] for each in replica.events_of("command"))
    assert (first, second) == ([0.1, "-Infinity"], ["-Infinity", "NaN"])
    assert replica.events_of("params")[-1]["values"]["lr"] == "NaN"
