"""Shared by all benchmarks: alternated rounds, statistics, limits, and printed reports."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.peers.find import PeerPython, find_peers
from hopyard.errors import HopyardError, SpecError

Side = Literal["hopyard", "peer", "bound", "ratio"]
LIMITS_FILE = Path(__file__).with_name("limits.json")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure, measured once a round. `name` is unique in its benchmark; `note` states exactly what is
    timed."""

    name: str
    unit: str
    values: tuple[float, ...]
    side: Side = "hopyard"
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "side": self.side,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "mean": statistics.fmean(self.values),
            "n": len(self.values),
            "values": list(self.values),
            "note": self.note,
        }


def ratio(name: str, over: Sequence[float], under: Sequence[float], *, note: str = "") -> Measurement:
    """Returns `over / under` per round, so that a disturbance of one round affects both sides."""
    return Measurement(name, "x", tuple(a / b for a, b in zip(over, under, strict=True)), "ratio", note)


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a figure's median. measured: the last recorded value and its machine."""

    name: str  # "<benchmark>.<measurement>"
    limit: float
    direction: Literal["at most", "at least"]
    unit: str
    measured: Mapping[str, Any] | None = None

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.direction == "at most" else value >= self.limit


def read_limits(path: Path = LIMITS_FILE) -> dict[str, Limit]:
    return {entry["name"]: Limit(**entry) for entry in json.loads(path.read_text())["limits"]}


def record_limits(reports: Sequence[Mapping[str, Any]], path: Path = LIMITS_FILE) -> None:
    """Writes the current figures to the limits that they belong to; the limits themselves are unchanged."""
    seen = {f"{r['benchmark']}.{m['name']}": (r["machine"], m) for r in reports for m in r["measurements"]}
    body = json.loads(path.read_text())
    for entry in body["limits"]:
        if entry["name"] in seen:
            machine, found = seen[entry["name"]]
            entry["measured"] = {
                "median": round(found["median"], 6),
                "mean": round(found["mean"], 6),
                "min": round(found["min"], 6),
                "max": round(found["max"], 6),
                "n": found["n"],
                "on": datetime.now(UTC).date().isoformat(),
                "machine": machine["note"],
            }
    path.write_text(json.dumps(body, indent=2) + "\n")


@dataclass(slots=True)
class Report:
    """The measurements of one benchmark."""

    benchmark: str
    settings: Mapping[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peers: Mapping[str, str] = field(default_factory=dict)  # name of a peer -> its version

    def add(
        self, name: str, unit: str, values: Sequence[float], side: Side = "hopyard", note: str = ""
    ) -> None:
        self.measurements.append(Measurement(name, unit, tuple(values), side, note))

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "machine": machine(),
            "settings": dict(self.settings),
            "peers": dict(self.peers),
            "measurements": [m.as_json() for m in self.measurements],
            "limits": [
                {
                    "name": m.name,
                    "limit": limit.limit,
                    "direction": limit.direction,
                    "median": m.median,
                    "holds": limit.holds(m.median),
                }
                for m in self.measurements
                if (limit := read_limits().get(f"{self.benchmark}.{m.name}"))
            ],
            "notes": list(self.notes),
        }


def machine() -> dict[str, Any]:
    """Returns the properties of the machine that the figures depend on, without its name."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    total = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": model,
        "cores": cores,
        "memory_gib": round(total / 2**20, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
        "note": f"{model}, {cores} cores, Python {platform.python_version()}",
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def alternate(
    rounds: int, sides: Mapping[str, Callable[[], float]], *, warm_up: int = 1
) -> dict[str, tuple[float, ...]]:
    """Calls every side once a round, in turn (A B C A B C …), after `warm_up` rounds that do not count."""

    def named(name: str, measure: Callable[[], float]) -> Callable[[], dict[str, float]]:
        return lambda: {name: measure()}

    return alternate_many(rounds, [named(name, measure) for name, measure in sides.items()], warm_up=warm_up)


def alternate_many(
    rounds: int, sides: Sequence[Callable[[], Mapping[str, float]]], *, warm_up: int = 1
) -> dict[str, tuple[float, ...]]:
    """Like `alternate`, for sides that measure several values at once; all their names are different."""
    found: dict[str, list[float]] = {}
    for number in range(-warm_up, rounds):
        for measure in sides:
            for name, value in measure().items():
                values = found.setdefault(name, [])
                if number >= 0:
                    values.append(value)
        told = ", ".join(f"{name} {values[-1]:.4g}" for name, values in found.items() if values)
        say(f"round {number + 1}/{rounds}: {told}" if number >= 0 else "warm-up done")
    return {name: tuple(values) for name, values in found.items()}


def say(text: str) -> None:
    """Prints progress to stderr."""
    print(text, file=sys.stderr, flush=True)


class Arguments(argparse.ArgumentParser):
    """The options that all benchmarks have."""

    def __init__(self, description: str, *, repeats: int = 5) -> None:
        super().__init__(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        self.add_argument("--repeats", type=_positive, default=repeats, help="rounds that count")
        self.add_argument(
            "--peer",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="measure the peers too (default: if there are any)",
        )
        self.add_argument(
            "--peer-python",
            metavar="PATH",
            help="the peers' interpreter or environment (default: $HOPYARD_BENCH_PEERS)",
        )
        self.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main(
    benchmark: str,
    parser: Arguments,
    measure: Callable[[argparse.Namespace, PeerPython | None], Report],
    argv: Sequence[str] | None,
) -> int:
    """Parses the arguments, measures and prints. Returns 0, or 2 for invalid input. A missed limit is
    reported and does not change the exit status."""
    options = parser.parse_args(argv)
    # so that servers and folders are removed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    peers = None
    if options.peer is not False:
        peers = find_peers(options.peer_python)
        if peers is None:
            if options.peer:
                parser.error(
                    "no peers: make them with `python -m benchmarks.peers install VENV`, then set "
                    "HOPYARD_BENCH_PEERS=VENV"
                )
            say(
                "no peers found: Hopyard is measured alone (docs/internals/benchmarks.md says how to "
                "get them)"
            )
    say(f"== {benchmark}")
    try:
        report = measure(options, peers).as_json()
    except SpecError as wrong:
        return print_error(wrong)
    print(json.dumps(report) if options.json else table(report), flush=True)
    return 0


def print_error(error: HopyardError) -> int:
    """Prints the error in two lines and returns the exit status."""
    print(f"error: {error}", *(f"hint: {hint}" for hint in error.hints), sep="\n", file=sys.stderr)
    return 2


def table(report: Mapping[str, Any]) -> str:
    """Returns a report as a text table."""
    limits = {entry["name"]: entry for entry in report["limits"]}
    rows: list[tuple[str, ...]] = [("", "median", "min", "max", "n", "limit", "")]
    for m in report["measurements"]:
        limit = limits.get(m["name"])
        told = f"{limit['direction']} {limit['limit']:g}" if limit else ""
        verdict = ("ok" if limit["holds"] else "MISSED") if limit else ""
        rows.append(
            (
                f"{m['name']} ({m['unit']})",
                *(f"{m[k]:.4g}" for k in ("median", "min", "max")),
                str(m["n"]),
                told,
                verdict,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [f"{report['benchmark']}: {report['machine']['note']}, load {report['machine']['load_1m']}"]
    if report["peers"]:
        lines.append("peers: " + ", ".join(f"{name} {version}" for name, version in report["peers"].items()))
    lines += [_aligned(row, widths) for row in rows]
    lines += [f"  {m['name']}: {m['note']}" for m in report["measurements"] if m["note"]]
    lines += [f"  {note}" for note in report["notes"]]
    return "\n".join(lines)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
    return f"  {row[0].ljust(widths[0])}  {'  '.join(rest)}".rstrip()
