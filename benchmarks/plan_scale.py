"""A plan for a large cluster with a long queue: the first one, and one after a single change.

    python -m benchmarks.plan_scale [--nodes 10000] [--waiting 100000] [--full 0.95] [--queues 30] [--users
        300] [--scripts 4]

Nodes of 8 GPUs; runs of 1 to 64 GPUs in many shapes hold `--full` of them; gangs of the same users and
scripts wait in a tree of two levels whose queues have guarantees, limits and users' limits. Then the same
with nothing running, where most can start: those that the server starts before it looks for others, and all
in one go. Each round begins in a process of its own, so that its memory is that of one plan; the snapshots
are made before the clock starts.
Python looks for garbage as it does in the server: between plans.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from benchmarks.harness import Arguments, Report, main, say
from benchmarks.peers.find import PeerPython
from hopyard.controller.gc_schedule import collect_young
from hopyard.controller.scheduling_loop import INITIAL_PLACEMENT_LIMIT
from hopyard.domain.cluster import Node, Plan, Running, Snapshot
from hopyard.domain.duration_keys import history_keys
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, Version
from hopyard.domain.persistent_sequence import PersistentMap
from hopyard.domain.queue import GPU, PastUsage, Queue, QueueTree
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.cycle.planner import Planner

NAME = "plan_scale"
STEP = timedelta(milliseconds=20)  # between two turns
SETTLED = 200  # turns, at most, before a single change is measured
NOW = datetime(2030, 1, 1, tzinfo=UTC)
GIB = 1024**3
CARDS = tuple(Gpu(index, "A100", 80 * GIB) for index in range(8))
# (replicas, GPUs of each): how often
SIZES = {(1, 1): 120, (1, 2): 30, (1, 4): 24, (1, 8): 16, (2, 8): 6, (4, 8): 3, (8, 8): 1}


@dataclass(frozen=True)
class Script:
    """A script that one user runs repeatedly."""

    user: str
    queue: QueueName
    name: str
    priority: int
    replicas: int
    resources: Resources
    limit_s: float | None
    takes_s: float

    def gang(self, name: str, at: datetime) -> Gang:
        role = Role("worker", self.replicas, replace(self.resources))
        return Gang(
            GangId(name),
            (role,),
            at,
            self.queue,
            self.priority,
            self.user,
            time_limit_s=self.limit_s,
            script=self.name,
        )


def tree(queues: int, gpus: int) -> QueueTree:
    """Returns the queue tree in groups of five. The guarantees add up to the cluster, and each queue may
    borrow up to three times its guarantee."""
    groups = -(-queues // 5)
    found = [Queue(QueueName("all"))]
    for group in range(groups):
        name = QueueName(f"group{group}")
        found.append(Queue(name, QueueName("all"), guarantee={GPU: 1000 * gpus // groups}))
    for number in range(queues):
        sure = 1000 * gpus // queues
        parent = QueueName(f"group{number // 5}")
        found.append(
            Queue(
                QueueName(f"queue{number}"),
                parent,
                guarantee={GPU: sure},
                maximum={GPU: 3 * sure},
                user_limit={GPU: sure // 2},
            )
        )
    return QueueTree({queue.name: queue for queue in found}, found[-1].name)


def scripts(options: argparse.Namespace, random: Random) -> list[Script]:
    found = []
    for number in range(options.users * options.scripts):
        user = number % options.users
        replicas, gpus = random.choices(list(SIZES), list(SIZES.values()))[0]
        asked = Resources(1000 * random.randint(1, 8) * gpus, random.choice((16, 32, 48)) * GIB * gpus, gpus)
        limit_s = random.choice((None, 3600.0, 14400.0, 86400.0))
        takes_s = min(random.lognormvariate(8, 1.5), limit_s or 1e6)
        queue = QueueName(f"queue{(user * 7 + number // (2 * options.users)) % options.queues}")
        found.append(
            Script(
                f"user{user}",
                queue,
                f"train{number}.py",
                random.choice((40, 50, 50, 60)),
                replicas,
                asked,
                limit_s,
                takes_s,
            )
        )
    return found


def running(options: argparse.Namespace, kinds: Sequence[Script], random: Random) -> Iterator[Running]:
    """Fills node after node to its last GPU; a gang of several nodes takes the next completely free ones."""
    node, free, count = 0, 8, 0
    while node < int(options.nodes * options.full):
        kind = random.choice(kinds)
        gpus = kind.resources.gpus
        if (kind.replicas > 1 and free < 8) or gpus > free or node + kind.replicas > options.nodes:
            continue
        at = NOW - timedelta(seconds=random.uniform(0, kind.takes_s))
        gang = kind.gang(f"run{count:06}", at - timedelta(hours=1))
        taken = tuple(range(8 - free, 8 - free + gpus))
        places = tuple(Assignment(rank, NodeId(f"n{node + rank:05}"), taken) for rank in range(kind.replicas))
        node, free = (node + kind.replicas, 8) if gpus == free else (node, free - gpus)
        saved = NOW - timedelta(seconds=random.uniform(0, 600)) if random.random() < 0.7 else None
        yield Running(
            Placement(gang, places),
            at,
            AttemptId(f"run{count:06}.1"),
            at,
            saved if saved and saved > at else None,
        )
        count += 1


class State:
    """The state of a store, in chunks like the stores, and its changes between cycles."""

    def __init__(self, options: argparse.Namespace, *, empty: bool = False) -> None:
        random = Random(options.seed)
        kinds = scripts(options, random)
        nodes = {
            (name := NodeId(f"n{number:05}")): Node(
                name, "local", 96000, 1024 * GIB, CARDS, labels={"rack": f"r{number // 32}"}
            )
            for number in range(options.nodes)
        }
        durations: dict[str, list[float]] = {}
        for kind in kinds:
            samples = [kind.takes_s * random.uniform(0.7, 1.3) for _ in range(10)]
            for key in history_keys(kind.gang("", NOW)):
                durations[key] = (durations.get(key, []) + samples)[-256:]
        self._pending, self._running = PersistentMap[GangId, Gang](), PersistentMap[GangId, Running]()
        for there in () if empty else running(options, kinds, random):
            self._running[there.gang.id] = there
        for number in range(options.waiting):
            waits = random.choice(kinds).gang(
                f"wait{number:06}", NOW - timedelta(seconds=options.waiting - number)
            )
            self._pending[waits.id] = waits
        used = {
            (kind.queue, kind.user): PastUsage(random.uniform(0, 1e4), NOW - timedelta(hours=3))
            for kind in kinds
        }
        self._rest = Snapshot(
            Version(1), NOW, nodes, queues=tree(options.queues, 8 * options.nodes), past_usage=used,
            durations={key: tuple(samples) for key, samples in durations.items()},
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        return replace(self._rest, pending=self._pending.to_sequence(), running=self._running.to_sequence())

    def next_turn(self) -> None:
        self._rest = replace(self._rest, now=self._rest.now + STEP, version=Version(self._rest.version + 1))

    def apply(self, wanted: Plan) -> None:
        """Applies the plan like a store: placed gangs run, evicted gangs are gone."""
        for one in wanted.preempt:
            del self._running[one.gang]
        for placement in wanted.place:
            name = placement.gang.id
            del self._pending[name]
            self._running[name] = Running(placement, self._rest.now, AttemptId(f"{name}.1"), self._rest.now)
        self._rest = replace(self._rest, promises={promise.gang: promise for promise in wanted.promises})

    def end(self) -> None:
        """One run ends, and its duration is known."""
        gone = self.snapshot().running[len(self._running) // 2]
        durations = dict(self._rest.durations)
        took_s = (self._rest.now - gone.placed_at).total_seconds()
        for key in history_keys(gone.gang):
            durations[key] = (*durations.get(key, ()), took_s)[-256:]
        del self._running[gone.gang.id]
        self._rest = replace(self._rest, durations=durations)

    def submit(self) -> None:
        new = replace(
            self.snapshot().pending[len(self._pending) // 3], id=GangId("new"), submitted_at=self._rest.now
        )
        self._pending[new.id] = new

    def lose_node(self) -> None:
        nodes = self._rest.nodes
        name = sorted(nodes)[len(nodes) // 2]
        self._rest = replace(self._rest, nodes={**nodes, name: replace(nodes[name], ready=False)})

    def change_nothing(self) -> None:
        pass


CHANGES: dict[str, Callable[[State], None]] = {
    "after_an_end": State.end, "after_a_submission": State.submit, "after_a_node_was_lost": State.lose_node,
    "after_nothing": State.change_nothing,
}  # fmt: skip


def one_round(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each plan, bytes of memory that the process held at most, and what the first plan says."""
    collect_young()  # as the server does
    state = State(options)
    found: dict[str, float] = {"of_snapshot": peak_bytes()}
    planner = Planner()

    def timed(name: str, before: Snapshot, by: Planner = planner) -> Plan:
        gc.disable()  # as in a turn of the server
        begun, worked = time.perf_counter(), time.process_time()
        wanted = by(before)
        found[name], found[f"{name}.cpu"] = time.perf_counter() - begun, time.process_time() - worked
        gc.enable()
        found[f"{name}.placed"] = len(wanted.place)
        return wanted

    wanted = timed("first", state.snapshot())
    found |= {"memory": peak_bytes(), "preempted": len(wanted.preempt), "promised": len(wanted.promises)}
    state.apply(wanted)
    turns = 0
    while turns < SETTLED and (turns < 3 or wanted.place or wanted.preempt):  # what can start has started
        turns += 1
        state.next_turn()
        wanted = timed("settling", state.snapshot())
        state.apply(wanted)
    say(f"settled after {turns} turns")
    for name, change in CHANGES.items():
        change(state)
        state.next_turn()
        wanted = timed(name, state.snapshot())
        state.apply(wanted)
    begun = time.perf_counter()
    told = sum(1 for _ in wanted.hold)
    found |= {"holds": time.perf_counter() - begun, "held": told}
    if options.empty:
        empty = State(options, empty=True).snapshot()
        timed("empty_first", replace(empty, max_placements=INITIAL_PLACEMENT_LIMIT), Planner())
        timed("empty", empty, Planner())
    return found


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# as every benchmark
def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:  # noqa: ARG001
    settings = {
        name: getattr(options, name)
        for name in ("nodes", "waiting", "full", "queues", "users", "scripts", "seed", "repeats")
    }
    report = Report(NAME, settings)
    rounds = []
    for number in range(options.repeats):
        command = [
            sys.executable,
            "-m",
            "benchmarks.plan_scale",
            "--round",
            *(f"--{name}={settings[name]}" for name in settings),
        ]
        command += [] if options.empty else ["--no-empty"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
        rounds.append(json.loads(done.stdout))
        say(
            f"round {number + 1}/{options.repeats}: "
            + ", ".join(f"{name} {value:.4g}" for name, value in rounds[-1].items())
        )

    def of(name: str) -> list[float]:
        return [one[name] for one in rounds]

    def told(name: str, more: str = "") -> str:
        cpu_s = statistics.median(of(f"{name}.cpu"))
        return f"{rounds[0][f'{name}.placed']:.0f} placed{more}; {cpu_s:.3g} s of it on the CPU"

    first = rounds[0]
    report.add(
        "first",
        "s",
        of("first"),
        note=told("first", f", {first['preempted']:.0f} preempted, {first['promised']:.0f} promised"),
    )
    report.add(
        "memory",
        "B",
        of("memory"),
        note=f"of the whole process, of which the snapshot {first['of_snapshot'] / 2**20:.0f} MiB",
    )
    for name in CHANGES:
        report.add(name, "s", of(name), note=told(name))
    report.add(
        "holds",
        "s",
        of("holds"),
        note=f"telling why each of {first['held']:.0f} waits, all at once; not part of a plan",
    )
    if options.empty:
        report.add(
            "empty_first",
            "s",
            of("empty_first"),
            note=f"nothing runs, as the server plans: {told('empty_first', ' at first')}",
        )
        report.add("empty", "s", of("empty"), note=f"nothing runs, and all in one go: {told('empty')}")
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "", repeats=3)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=100_000, help="gangs that wait")
    parser.add_argument("--full", type=float, default=0.95, help="part of the nodes that is in use")
    parser.add_argument("--queues", type=int, default=30)
    parser.add_argument("--users", type=int, default=300)
    parser.add_argument("--scripts", type=int, default=4, help="of each user, each with a shape of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--empty",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also a cluster on which nothing runs",
    )
    parser.add_argument("--round", action="store_true", help=argparse.SUPPRESS)
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    if options.round:
        print(json.dumps(one_round(options)))
        return 0
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
