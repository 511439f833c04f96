"""The settings of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hopyard.config.cluster_reservations import ReservationSection
from hopyard.domain.cluster import Node
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """The cluster of a simulation. queues: None makes one leaf for each queue that the workload names, all
    alike. reservations: active reservations. requested_reservations: reservations of a cluster file, granted
    beside the active ones once the start of the workload is known."""

    nodes: tuple[Node, ...]
    queues: QueueTree | None = None
    reservations: tuple[Reservation, ...] = ()
    requested_reservations: tuple[ReservationSection, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeCosts:
    """The time that starts, checkpoints and losses take, in seconds.

    start_s: from a placement until the script runs. save_s: a checkpoint of a preempted run. restore_s:
    reading it in the next attempt. checkpoint_every_s: the interval at which runs save a checkpoint by
    themselves (at no cost); 0: never.
    """

    start_s: float = 0.0
    save_s: float = 0.0
    restore_s: float = 0.0
    checkpoint_every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """The progress of a simulation."""

    policy: str
    now: datetime
    ended: int
    runs: int
    running: int
    waiting: int
    used: float  # share of the cluster's GPUs (its CPUs if it has none), 0 to 1


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """seed: of node losses. mtbf_s: mean seconds between two losses of one node, 0: none is lost; repair_s:
    how long a lost node is away. know_time_limits: the policy gets the time limits of the trace. until_s: the
    end, in seconds of the workload's time. observe_interval_s: how often the controller observes the engine,
    beside the notifications. speed: seconds of the workload in one second of real time; 0: as fast as
    possible. store: `memory` or `sqlite`. on_progress: called now and then."""

    seed: int = 0
    costs: TimeCosts = field(default_factory=TimeCosts)
    mtbf_s: float = 0.0
    repair_s: float = 3600.0
    know_time_limits: bool = False
    until_s: float | None = None
    observe_interval_s: float = 3600.0
    speed: float = 0.0
    store: str = "memory"
    on_progress: Callable[[SimulationProgress], None] | None = None
    progress_interval: timedelta = timedelta(milliseconds=200)
