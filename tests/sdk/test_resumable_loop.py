"""Loops, checkpoints and resume, in real scripts; one script is killed within the training."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.metric_records import NO_STEP
from hopyard.errors import IntegrityError, SpecError
from hopyard.sdk import checkpoints
from hopyard.sdk.checkpoints import LoopPosition
from hopyard.sdk.resumable_loop import Loop, LoopExit, LoopStack
from tests.sdk.scripts import Replica


class Recorder:
    """A keeper that only keeps the trail."""

    def __init__(self, resume: list[LoopPosition] | None = None) -> None:
        self.trail, self.told = LoopStack(), []  # type: tuple[Trail, list[Any]]
        self.exits: list[LoopExit] = []
        self.trail.set_resume_positions(resume or [])

    def on_enter(self, loop: Loop[Any]) -> LoopPosition | None:
        return self.trail.push(loop)

    def on_caught_up(self, loop: Loop[Any]) -> None:
        self.told.append(("skipped", loop.name, loop.iterations))

    def on_replay(self, loop: Loop[Any], position: LoopPosition) -> None:
        self.told.append(("replay", position.name))

    def on_iteration(self, loop: Loop[Any]) -> None:
        self.trail.record_iteration(loop)

    def on_exit(self, loop: Loop[Any], how: LoopExit) -> None:
        self.trail.pop(loop, how)
        self.exits.append(how)


def script(keeper: Recorder) -> Iterator[tuple[str, int, int]]:
    """Two consecutive loops. The second has two inner loops, one of them entered twice."""
    for a in Loop(range(3), keeper, save_every=1, name="a"):
        yield ("a", a, 0)
    for b in Loop(range(4), keeper, save_every=1, name="b"):
        for k in range(2):
            for c in Loop(list("xyz"), keeper, save_every=1, name="c"):
                yield ("c", b, k * 10 + "xyz".index(c))
        for d in Loop((i for i in range(2)), keeper, save_every=1, name="d"):
            yield ("d", b, d)


def test_loop_position_resumes_from_any_recorded_point() -> None:
    keeper = Recorder()
    whole, trails = [], []
    for turn in script(keeper):
        trails.append(keeper.trail.positions())  # recorded within the iteration, which is repeated
        whole.append(turn)
    assert keeper.trail.positions() == [LoopPosition("a", 0, 3, 1), LoopPosition("b", 0, 4, 1)]
    for at, trail in enumerate(trails):
        assert list(script(Recorder(trail))) == whole[at:]
    assert list(script(Recorder(keeper.trail.positions()))) == []


def run_two_loops(keeper: Recorder, first: int, second: int, *, lazy: bool = False) -> list[tuple[str, int]]:
    """Returns the iterations of two consecutive loops of the given lengths."""
    turns: list[tuple[str, int]] = []
    for name, total in (("a", first), ("b", second)):
        items = (i for i in range(total)) if lazy else range(total)
        turns += [(name, turn) for turn in Loop(items, keeper, save_every=1, name=name)]
    return turns


@pytest.mark.parametrize("lazy", [False, True])
def test_last_completed_loop_continues_when_total_grows(lazy: bool) -> None:
    keeper = Recorder()
    run_two_loops(keeper, 2, 3, lazy=lazy)
    resumed = Recorder(keeper.trail.positions())
    assert run_two_loops(resumed, 2, 5, lazy=lazy) == [("b", 3), ("b", 4)]
    assert resumed.trail.positions() == [LoopPosition("a", 0, 2, 1), LoopPosition("b", 0, 5, 1)]
    assert run_two_loops(Recorder(keeper.trail.positions()), 2, 1, lazy=lazy) == []


def test_earlier_loop_is_not_extended() -> None:
    """The state belongs to the later loop. More iterations of the earlier loop would come at the wrong
    time."""
    keeper = Recorder()
    run_two_loops(keeper, 2, 3)
    assert run_two_loops(Recorder(keeper.trail.positions()), 9, 4) == [("b", 3)]
    twice = Recorder()
    for total in (2, 3):
        list(Loop(range(total), twice, save_every=1, name="epoch"))
    resumed = Recorder(twice.trail.positions())
    assert [list(Loop(range(total), resumed, save_every=1, name="epoch")) for total in (2, 6)] == [
        [],
        [3, 4, 5],
    ]


def test_changed_script_is_detected() -> None:
    keeper = Recorder([LoopPosition("other", 0, 2)])
    with pytest.raises(LookupError, match="`a` begins where the checkpoint was in `other`"):
        list(script(keeper))
    assert not keeper.trail.is_resuming


def left_by_break(begin: Callable[[], Iterable[Any]]) -> None:
    for _ in begin():
        try:
            break
        finally:
            sum(())


def left_by_return(begin: Callable[[], Iterable[Any]]) -> object:
    for turn in begin():
        with suppress(ValueError):
            return [turn]
    return None


def left_by_exception(begin: Callable[[], Iterable[Any]]) -> None:
    with suppress(ZeroDivisionError):
        for _ in begin():
            str(1 / 0)


def held_by_a_variable(begin: Callable[[], Iterable[Any]]) -> None:
    iterator = iter(begin())
    for _ in iterator:
        break


def held_at_an_exception(begin: Callable[[], Iterable[Any]]) -> None:
    def train() -> None:
        iterator = iter(begin())
        for _ in iterator:
            str(1 / 0)

    with suppress(ZeroDivisionError):
        train()
    try:
        train()
    except ZeroDivisionError as error:
        str(error)


def test_variable_that_held_a_loop_gets_another_value() -> None:
    keeper = Recorder()
    iterator: Any = iter(Loop(range(3), keeper, save_every=1, name="a"))
    next(iterator)
    iterator = None
    assert (iterator, keeper.exits) == (None, [LoopExit.STOPPED])
    next(iter(Loop(range(3), keeper, save_every=1, name="b")))  # is no loop that was left
    assert keeper.exits == [LoopExit.STOPPED, LoopExit.FAILED]


def exhausted(begin: Callable[[], Iterable[Any]]) -> None:
    list(begin())


class Bar:
    """As a progress bar does."""

    def __init__(self, turns: Iterable[Any]) -> None:
        self.turns = turns

    def __iter__(self) -> Iterator[Any]:
        try:
            for turn in self.turns:
                yield turn, 1
        finally:
            sum(())


@pytest.mark.parametrize("wrapper", [iter, enumerate, Bar, lambda turns: zip(turns, "abcd", strict=False)])
@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        (left_by_break, LoopExit.STOPPED),
        (left_by_return, LoopExit.STOPPED),
        (left_by_exception, LoopExit.FAILED),
        (held_by_a_variable, LoopExit.STOPPED),
        (held_at_an_exception, LoopExit.FAILED),
        (exhausted, LoopExit.EXHAUSTED),
    ],
)
def test_way_of_leaving_a_loop_is_recognised(wrapper: Any, leave: Any, expected: LoopExit) -> None:
    keeper = Recorder()
    leave(lambda: wrapper(Loop(range(3), keeper, save_every=1, name="a")))
    iterations = {LoopExit.STOPPED: 1, LoopExit.EXHAUSTED: 3}
    assert set(keeper.exits) == {expected} and keeper.trail.active == []
    assert keeper.trail.positions() == [
        LoopPosition("a", 0, iterations[how], 1, stopped=how is LoopExit.STOPPED)
        for how in [expected]
        if how is not LoopExit.FAILED
    ]


@pytest.mark.parametrize(("is_other_run", "remaining"), [(False, []), (True, [2, 3])])
def test_loop_left_by_break_is_continued_by_a_fork_only(is_other_run: bool, remaining: list[int]) -> None:
    keeper = Recorder()
    for turn in Loop(range(4), keeper, save_every=1, name="a"):
        if turn == 1:
            break
    resumed = Recorder()
    for _ in range(2):  # an attempt that resumes from a later checkpoint skips it, too
        resumed.trail.set_resume_positions(keeper.trail.positions(), is_other_run=is_other_run)
        assert list(Loop(range(4), resumed, save_every=1, name="a")) == remaining
        if is_other_run:
            return
        keeper, resumed = resumed, Recorder()


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_counts_iterations(every: Any) -> None:
    with pytest.raises(SpecError, match="every"):
        Loop(range(3), Recorder(), save_every=every, name="a")


def test_loop_length_equals_iterable_length() -> None:
    assert len(Loop(range(3), Recorder(), save_every=1, name="a")) == 3
    with pytest.raises(TypeError):
        len(Loop(iter([1]), Recorder(), save_every=1, name="a"))


COUNT = """
import hopyard as hop
seen = hop.bind(turns=[], best=0.0)
for epoch in hop.loop(range(5), every=2):
    seen.turns.append(epoch)
    seen.best = float(epoch)
    hop.log(loss=1.0 / (epoch + 1), step=epoch)
    print("turn", epoch)
print(seen.turns, seen.best)
"""


def test_loop_records_checkpoints_progress_and_events(replica: Replica) -> None:
    replica.run(COUNT)
    assert replica.checkpoints == [2, 4, 5]
    saved = replica.events_of("checkpoint")
    assert [(e["step"], e["folder"]) for e in saved] == [
        (2, "checkpoints/2"),
        (4, "checkpoints/4"),
        (5, "checkpoints/5"),
    ]
    assert saved[0]["metrics"] == {"loss": 0.5} and saved[1]["metrics"] == {"loss": 0.25}
    sizes = [e["offsets"]["metrics"] for e in saved]
    assert 0 < sizes[0] < sizes[1] < sizes[2] == (replica.folder / "streams" / "metrics").stat().st_size
    progress = [(e["done"], e["total"], e["unit"]) for e in replica.events_of("progress")]
    assert progress[0] == (0, 5, "epoch") and (5, 5, "epoch") in progress
    assert not list((replica.folder / "checkpoints").glob(".*"))


EARLY = """
import hopyard as hop
seen = hop.bind(turns=[])
for epoch in hop.loop(range(10), every=4):
    seen.turns.append(epoch)
    if epoch == 5:
        break
print(seen.turns)
"""


def test_early_stop_is_saved_and_an_exception_is_not(replica: Replica, tmp_path: Path) -> None:
    replica.run(EARLY)
    assert replica.checkpoints == [4, 6]
    assert replica.events_of("progress")[-1]["done"] == 6
    checkpoint = str(replica.folder / "checkpoints" / "6")
    again = Replica(tmp_path, "again").run(EARLY, HOPYARD_RESTORE_DIR=checkpoint)
    assert again.stdout == "[0, 1, 2, 3, 4, 5]\n"
    fork = Replica(tmp_path, "fork").run(EARLY, HOPYARD_RESTORE_DIR=checkpoint, HOPYARD_RUN_ID="r2")
    assert fork.stdout == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
    failed = Replica(tmp_path, "failed")
    failed.run(EARLY.replace("break", "raise ValueError"), ok=False)
    assert failed.checkpoints == [4]


HELD = EARLY.replace(
    "for epoch in hop.loop(range(10), every=4)",
    "turns = iter(hop.loop(range(10), every=4))\nfor epoch in turns",
)


def test_early_stop_of_a_held_iterator_is_saved_at_the_end(replica: Replica, tmp_path: Path) -> None:
    replica.run(HELD)
    assert replica.checkpoints == [4, 6]
    failed = Replica(tmp_path, "failed")
    failed.run(HELD + "1 / 0\n", ok=False)
    assert failed.checkpoints == [4]


def test_early_stop_of_a_held_iterator_is_saved_before_sys_exit(replica: Replica, tmp_path: Path) -> None:
    replica.run(HELD + "import sys; sys.exit()\n")
    assert replica.checkpoints == [4, 6]
    inside = Replica(tmp_path, "inside")
    inside.run(HELD.replace("break", "import sys; sys.exit()"))
    assert inside.checkpoints == [4], "the iteration is not over"
    guarded = Replica(tmp_path, "guarded")
    within = textwrap.indent(HELD.replace("break", "import sys; sys.exit()"), "    ")
    guarded.run(f"try:\n{within}except KeyboardInterrupt:\n    pass\nfinally:\n    print()\n")
    assert guarded.checkpoints == [4], "the exit passes lines behind the loop"
    function = Replica(tmp_path, "function")
    in_function = "def main():\n" + textwrap.indent(HELD, "    ") + "    raise SystemExit\nmain()\n"
    assert "Exception ignored" not in function.run(in_function).stderr
    assert function.checkpoints == [4], "whether the loop was left is unknown"


def test_second_attempt_resumes(replica: Replica, tmp_path: Path) -> None:
    replica.run(COUNT)
    second_replica = Replica(tmp_path, "again")
    done = second_replica.run(
        COUNT, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "2"), HOPYARD_RESTORE_STEP="2"
    )
    assert done.stdout == "turn 2\nturn 3\nturn 4\n[0, 1, 2, 3, 4] 4.0\n"
    assert "resumed from the checkpoint of step 2" in done.stderr
    assert second_replica.checkpoints == [4, 5]
    ended = Replica(tmp_path, "ended")
    done = ended.run(COUNT, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "5"))
    assert done.stdout == "[0, 1, 2, 3, 4] 4.0\n" and ended.checkpoints == []


GROWING = """
import random
import hopyard as hop
p = hop.params(epochs=4, every=3)
random.seed(1)
class Shuffled:
    def __len__(self):
        return p.epochs * 2
    def __iter__(self):
        yield from random.sample(range(1000), len(self))
seen = hop.bind(turns=[])
for item in hop.loop(Shuffled() if p.every == 99 else range(p.epochs), every=p.every):
    seen.turns.append(item)
print(seen.turns)
"""


@pytest.mark.parametrize("every", [2, 3, 5])
def test_more_epochs_train_from_newest_checkpoint(replica: Replica, tmp_path: Path, every: int) -> None:
    replica.run(GROWING, HOPYARD_PARAMS=json.dumps({"every": every}))
    second_replica = Replica(tmp_path, "again")
    newest = {"HOPYARD_RESTORE_DIR": str(replica.folder / "checkpoints" / "4"), "HOPYARD_RESTORE_STEP": "4"}
    done = second_replica.run(GROWING, HOPYARD_PARAMS=json.dumps({"every": every, "epochs": 8}), **newest)
    assert done.stdout == "[0, 1, 2, 3, 4, 5, 6, 7]\n" and second_replica.checkpoints[-1] == 8


def test_random_order_resumes_at_its_position(replica: Replica, tmp_path: Path) -> None:
    first = json.loads(replica.run(GROWING, HOPYARD_PARAMS='{"every": 99}').stdout)
    second_replica = Replica(tmp_path, "again")
    newest = {"HOPYARD_RESTORE_DIR": str(replica.folder / "checkpoints" / str(len(first)))}
    done = json.loads(
        second_replica.run(GROWING, HOPYARD_PARAMS='{"every": 99, "epochs": 6}', **newest).stdout
    )
    assert done[:8] == first and len(done) == 12


def test_grown_earlier_loop_is_reported(replica: Replica, tmp_path: Path) -> None:
    code = "import hopyard as hop\np = hop.params(n=2)\nb = hop.bind(t=[])\n" + "".join(
        f"for i in hop.loop(range({total}), name='{name}'): b.t.append(i)\n"
        for name, total in (("warm", "p.n"), ("fit", "3"))
    )
    replica.run(code)
    second_replica = Replica(tmp_path, "again")
    newest = {"HOPYARD_RESTORE_DIR": str(replica.folder / "checkpoints" / str(replica.checkpoints[-1]))}
    done = second_replica.run(code, HOPYARD_PARAMS='{"n": 5}', **newest)
    assert "`warm` has 5 iterations now, 2 when it ended" in done.stderr


def test_loop_without_bound_state_neither_saves_nor_skips(replica: Replica, tmp_path: Path) -> None:
    replica.run(COUNT)
    other = Replica(tmp_path, "other")
    code = "import hopyard as hop\nhop.bind(infer=print)\nprint(list(hop.loop(range(3))))\n"
    done = other.run(code, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "2"))
    assert done.stdout == "[0, 1, 2]\n" and "nothing is bound" in done.stderr and other.checkpoints == []


def test_points_without_steps_continue_numbering_in_fork(replica: Replica, tmp_path: Path) -> None:
    code = (
        "import hopyard as hop\np = hop.params(n=3)\ns = hop.bind(n=0)\n"
        "for e in hop.loop(range(p.n)):\n    hop.log(loss=1.0)\n    hop.log(acc=1.0, step=10 * e)\n"
        "    hop.log(loss=0.5, lr=0.1)\n"
    )
    replica.run(code)
    checkpoint = str(replica.folder / "checkpoints" / "3")
    steps = {}
    for run in ("r1", "fork"):
        second_replica = Replica(tmp_path, run)
        second_replica.run(
            code, HOPYARD_RESTORE_DIR=checkpoint, HOPYARD_RUN_ID=run, HOPYARD_PARAMS='{"n": 5}'
        )
        steps[run] = {
            name: [p.step for n, p in second_replica.points if n == name] for name in ("loss", "acc", "lr")
        }
        assert json.loads((second_replica.folder / "checkpoints" / "5" / "hopyard.json").read_text())[
            "logged"
        ] == {
            "loss": 10,
            "lr": 5,
        }
    assert steps["r1"]["loss"] == [NO_STEP] * 4, "the readers of the run's own streams count"
    assert steps["fork"] == {"loss": [6, NO_STEP, NO_STEP, NO_STEP], "acc": [30, 40], "lr": [3, NO_STEP]}


def test_only_rank_0_saves_checkpoints(replica: Replica) -> None:
    replica.run(COUNT, RANK="1", WORLD_SIZE="2")
    assert replica.checkpoints == [] and replica.points


def test_save_and_load_work_without_loop(replica: Replica, tmp_path: Path) -> None:
    code = """
import hopyard as hop
state = hop.bind(n={"count": 0})
print(hop.load())
for step in range(state.n["count"], 4):
    state.n["count"] = step + 1
    hop.save(step=step + 1, acc=0.5) if step % 2 else None
folder = hop.save()
print(state.n, folder.name)
"""
    assert replica.run(code).stdout == "None\n{'count': 4} 5\n"
    assert replica.checkpoints == [2, 4, 5]
    assert replica.events_of("checkpoint")[0]["metrics"] == {"acc": 0.5}
    second_replica = Replica(tmp_path, "again")
    assert (
        second_replica.run(code, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "2")).stdout
        == "2\n{'count': 4} 5\n"
    )


def test_saving_same_step_replaces_checkpoint(tmp_path: Path) -> None:
    for value in (1, 2):
        checkpoints.write_checkpoint(str(tmp_path), 7, {"a": value}, [], {})
    assert checkpoints.read_checkpoint(str(tmp_path / "7")).state_of("a") == 2
    assert [f.name for f in tmp_path.iterdir()] == ["7"]


def test_failed_save_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`a` cannot be saved"):
        checkpoints.write_checkpoint(str(tmp_path), 7, {"a": (i for i in range(3))}, [], {})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = Path(checkpoints.write_checkpoint(str(tmp_path), 7, {"a": [1, 2, 3]}, [], {"loss": 1.0}))
    (folder / "a.pkl").write_bytes((folder / "a.pkl").read_bytes()[:5])
    with pytest.raises(IntegrityError, match=r"a\.pkl cannot be read"):
        checkpoints.read_checkpoint(str(folder)).state_of("a")
    (folder / checkpoints.INDEX_FILE).write_text(json.dumps({"format": 1}))
    with pytest.raises(IntegrityError, match="not a checkpoint"):
        checkpoints.read_checkpoint(str(folder))


def test_old_checkpoints_of_offline_run_are_removed(tmp_path: Path) -> None:
    for step in range(1, 6):
        checkpoints.write_checkpoint(str(tmp_path), step, {"a": step}, [], {})
        os.utime(tmp_path / str(step), (step, step))
    checkpoints.prune_checkpoints(str(tmp_path), 3)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["3", "4", "5"]


NOISE = """
import random, sys
import numpy as np
import hopyard as hop

class Shuffled:  # like a data loader: its order is drawn as it begins, and it draws more while it goes
    def __len__(self):
        return 6
    def __iter__(self):
        order = np.random.permutation(6)
        for i in order:
            yield int(i), random.random()

own = random.Random(3)
numbers = np.random.default_rng(5)
random.seed(1), np.random.seed(2)
bound = hop.bind(own=own, numbers=numbers, trace=[])
stop = int(sys.argv[1]) if len(sys.argv) > 1 else -1
for epoch in hop.loop(range(3)):
    for item, noise in hop.loop(Shuffled(), name="batch", every=2):
        drawn = random.random(), np.random.rand(), own.random(), numbers.random()
        bound.trace.append((epoch, item, noise, *drawn))
        print(hash(tuple(bound.trace)))
print("end", hash(tuple(bound.trace)))
"""


def test_random_numbers_continue_after_resume(replica: Replica, tmp_path: Path) -> None:
    """In the middle of an epoch too, with an order of items that is drawn as the epoch begins."""
    expected = replica.run(NOISE).stdout.splitlines()
    steps = replica.checkpoints
    assert len(steps) > 9
    for step in random.Random(0).sample(steps, 4):
        second_replica = Replica(tmp_path, f"again{step}")
        done = second_replica.run(
            NOISE, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / str(step))
        ).stdout.splitlines()
        assert done[-1] == expected[-1] and done == expected[-len(done) :]


TRAIN = """
import sys, time
import torch
import hopyard as hop

p = hop.params(lr=0.05, epochs=6, slow=0.0)
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x @ torch.randn(8, 1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=p.lr)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
hop.bind(model=model, optimizer=optimizer, scheduler=scheduler, infer=lambda data: model(data))
for epoch in hop.loop(range(p.epochs)):
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    scheduler.step()
    hop.log(loss=loss, lr=scheduler.get_last_lr()[0], step=epoch)
    time.sleep(p.slow)
print(sum(w.double().sum() for w in model.parameters()).item().hex(), loss.item().hex())
"""


@pytest.mark.torch
def test_killed_training_reaches_weights_of_uninterrupted_training(replica: Replica, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    expected = replica.run(TRAIN).stdout
    assert expected
    killed = Replica(tmp_path, "killed")
    process = killed.start(TRAIN, HOPYARD_PARAMS='{"slow": 0.2}')
    deadline = time.monotonic() + 120
    while len(killed.checkpoints) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    newest = killed.folder / "checkpoints" / str(killed.checkpoints[-1])
    assert killed.checkpoints[-1] < 6
    moved = tmp_path / "restore"
    shutil.copytree(newest, moved)
    second_replica = Replica(tmp_path, "again")
    done = second_replica.run(TRAIN, HOPYARD_RESTORE_DIR=str(moved), HOPYARD_RESTORE_STEP=newest.name)
    assert done.stdout == expected
    assert [p.step for n, p in second_replica.points if n == "loss"] == list(range(int(newest.name), 6))


@pytest.mark.torch
def test_checkpoint_of_another_model_is_refused_with_message(replica: Replica, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch, hopyard as hop\nhop.bind(model=torch.nn.Linear({n}, 1))\n"
        "for _ in hop.loop(range(2)): pass\n"
    )
    replica.run(code.format(n=2))
    done = Replica(tmp_path, "other").run(
        code.format(n=3), ok=False, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "1")
    )
    assert "the checkpoint does not fit `model`" in done.stderr and "hint:" in done.stderr
