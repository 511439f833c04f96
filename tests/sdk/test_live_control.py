"""Commands are applied at a safe point: once, by all processes of a gang at the same iteration."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.errors import SpecError
from hopyard.sdk.command_file import CommandFile, values_set_before
from hopyard.sdk.live_params import LiveParams
from hopyard.sdk.params import Params
from hopyard.sdk.safe_points import SafePointAction, SafePoints
from tests.sdk.scripts import Replica

PATIENCE_S = 60.0


def line(number: int, kind: str = "set", **arguments: Any) -> dict[str, Any]:
    return {"number": number, "kind": kind, "arguments": arguments, "user": "alice"}


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
                action = members[rank].wait_for_action()
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
