"""Runs every benchmark and compares the measurements with limits.json.

    python -m benchmarks.all [--only submit_latency,datasets] [--record] [--check]

Each benchmark is a separate process, one after another. Use an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Arguments, read_limits, record_limits, say, table

NAMES = (
    "footprint",
    "submit_latency",
    "throughput",
    "submissions",
    "log_calls",
    "series",
    "event_clients",
    "ui",
    "live_control",
    "preempted_run",
    "ddp_steps",
    "datasets",
    "store",
    "placements",
    "plan_scale",
    "starvation",
    "kueue",
    "mop_hops",
    "mop_study",
    "searchers",
)


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--only", metavar="NAME[,NAME…]", help=f"of: {', '.join(NAMES)}")
    parser.add_argument(
        "--record", action="store_true", help="write the figures beside their limits in limits.json"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is not reached")
    parser.set_defaults(repeats=None)  # each benchmark has its own
    return parser


def selected_names(parser: Arguments, only: str | None) -> list[str]:
    names = only.split(",") if only else list(NAMES)
    for name in names:
        if name not in NAMES:
            parser.error(f"no benchmark `{name}`; there are {', '.join(NAMES)}")
    return names


def measure(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the report of one benchmark, or None if it failed (its message is on stderr)."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    command += [] if options.peer is None else ["--peer" if options.peer else "--no-peer"]
    command += [] if options.peer_python is None else ["--peer-python", options.peer_python]
    command += [] if options.repeats is None else ["--repeats", str(options.repeats)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], check=False
    )
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


def verdicts(reports: Sequence[dict[str, Any]]) -> tuple[list[str], bool]:
    """A line for every limit of the benchmarks that ran, and whether all hold that were measured."""
    found = {f"{r['benchmark']}.{m['name']}": m for r in reports for m in r["measurements"]}
    ran = {r["benchmark"] for r in reports}
    lines, good = [], True
    for limit in read_limits().values():
        if limit.name.partition(".")[0] not in ran:
            continue
        m = found.get(limit.name)
        if m is None:
            lines.append(f"  {'-':6} {limit.name}: not measured (needs its peer)")
            continue
        holds = limit.holds(m["median"])
        good &= holds
        spread = f"median {m['median']:.4g} ({m['min']:.4g} to {m['max']:.4g}, n={m['n']})"
        lines.append(
            f"  {'ok' if holds else 'MISSED':6} {limit.name}: {spread} {limit.unit}, {limit.direction} "
            f"{limit.limit:g}"
        )
    return lines, good


def run(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    reports, broken = [], []
    for name in selected_names(parser, options.only):
        report = measure(name, options)
        if report is None:
            broken.append(name)
            say(f"{name} broke")
            continue
        reports.append(report)
        if not options.json:
            print(table(report), end="\n\n", flush=True)
    lines, good = verdicts(reports)
    if options.json:
        print(json.dumps({"reports": reports, "broken": broken, "all_hold": good and not broken}))
    else:
        print("limits:", *lines, *(f"  BROKE  {name}" for name in broken), sep="\n")
    if options.record:
        record_limits(reports)
    return 1 if broken or (options.check and not good) else 0


if __name__ == "__main__":
    raise SystemExit(run())
