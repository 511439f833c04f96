"""Runs under `hop run`: calls `hop.log` and prints its timings on stdout as JSON.

in_run.py calls COUNT              microseconds a call, with one metric and with three
in_run.py points CALLS             CALLS calls with three metrics; start time of the first
in_run.py history COUNT            COUNT points of one metric, to be read back
"""

from __future__ import annotations

import json
import sys
import time

import hopyard as hop


def calls(count: int) -> dict[str, float]:
    for i in range(1000):
        hop.log(one=0.5, step=i)
        hop.log(loss=0.5, accuracy=0.5, rate=0.5, step=i)
    started = time.perf_counter()
    for i in range(count):
        hop.log(one=0.5, step=i)
    middle = time.perf_counter()
    for i in range(count):
        hop.log(loss=0.5, accuracy=0.5, rate=0.5, step=i)
    ended = time.perf_counter()
    return {"one": (middle - started) / count * 1e6, "three": (ended - middle) / count * 1e6}


def points(count: int) -> dict[str, float]:
    started = time.time()
    for i in range(count):
        hop.log(loss=i * 0.5, accuracy=i * 0.25, rate=0.001, step=i)
    return {"started": started, "logged": time.time()}


def history(count: int) -> dict[str, float]:
    for i in range(count):
        hop.log(loss=1.0 / (i + 1), step=i)
    return {}


if __name__ == "__main__":
    print(json.dumps({"calls": calls, "points": points, "history": history}[sys.argv[1]](int(sys.argv[2]))))
