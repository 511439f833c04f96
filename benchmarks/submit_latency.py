"""Seconds from `hop run` to its script's first line, above what the script takes by itself.

    python -m benchmarks.submit_latency [--repeats 15]

The script prints a line and goes on for 0.3 s, as one that trains would; only the time to the line counts.
Each round: the script alone (`python hello.py`), the same script by `hop run` on a warm local server, and by
Ray Jobs, once with `ray job submit` and once with Ray's Python client asking for the log every 10 ms (what
favours Ray most).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from benchmarks.harness import Arguments, Report, alternate, main, ratio
from benchmarks.local_server import first_line, hop_command, local_server, scratch_folder
from benchmarks.peers.find import PeerPython
from benchmarks.peers.ray_jobs import ray_head

NAME = "submit_latency"
LINE = "hello from the script"
# It runs for a while, so that work after its end does not affect the time to its first line.
SCRIPT = f"import time\nprint({LINE!r}, flush=True)\ntime.sleep(0.3)\n"


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    report = Report(NAME, {"repeats": options.repeats})
    with scratch_folder() as folder, local_server(folder) as server, ray_head(folder, peers) as ray:
        project = folder / "project"
        project.mkdir()
        script = project / "hello.py"
        script.write_text(SCRIPT)
        environment = server.environment
        sides: dict[str, Callable[[], float]] = {
            "bare": lambda: first_line(
                [sys.executable, script.name], LINE.encode(), cwd=project, env=environment
            ),
            "hop": lambda: first_line(
                [*hop_command(), "run", script.name], LINE.encode(), cwd=project, env=environment
            ),
        }
        if ray is not None:
            report.peers = ray.version
            sides["ray_cli"] = lambda: ray.submit_by_command(script, LINE)
            sides["ray_client"] = lambda: ray.submit_by_client(script, LINE)
        found = alternate(options.repeats, sides, warm_up=2)
    bare, hop = found["bare"], found["hop"]
    report.add("bare", "s", bare, "bound", "`python hello.py` to its line")
    report.add(
        "hop_run", "s", hop, note="`hop run hello.py`, process start to the script's line on its stdout"
    )
    report.add(
        "above_bare",
        "s",
        [a - b for a, b in zip(hop, bare, strict=True)],
        note="hop_run - bare, round by round",
    )
    if ray is not None:
        report.add(
            "ray_job_submit",
            "s",
            found["ray_cli"],
            "peer",
            "`ray job submit -- python hello.py`, the same way",
        )
        report.add(
            "ray_client",
            "s",
            found["ray_client"],
            "peer",
            "JobSubmissionClient already imported and connected, log asked for every 10 ms",
        )
        report.measurements.append(ratio("ray_job_submit_over_hop", found["ray_cli"], hop))
        report.measurements.append(ratio("ray_client_over_hop", found["ray_client"], hop))
    return report


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, Arguments(__doc__ or "", repeats=15), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
