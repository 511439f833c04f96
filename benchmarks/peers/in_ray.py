"""Runs in the peers' environment: submits Ray jobs for requests on stdin, lines of JSON, and prints seconds
on stdout."""

from __future__ import annotations

import json
import sys
import time

from ray.job_submission import JobSubmissionClient

ASK_EVERY_S = 0.01


def latency(client: JobSubmissionClient, script: str, line: str) -> float:
    started = time.perf_counter()
    job = client.submit_job(entrypoint=f"{sys.executable} {script}")
    while line not in client.get_job_logs(job):
        time.sleep(ASK_EVERY_S)
    seconds = time.perf_counter() - started
    while not client.get_job_status(job).is_terminal():
        time.sleep(ASK_EVERY_S)
    return seconds


def throughput(client: JobSubmissionClient, script: str, count: int) -> float:
    started = time.perf_counter()
    waiting = [client.submit_job(entrypoint=f"{sys.executable} {script}") for _ in range(count)]
    while waiting:
        time.sleep(0.1)
        states = {job: client.get_job_status(job) for job in waiting}
        bad = [
            f"{job}: {state}" for job, state in states.items() if state.is_terminal() and state != "SUCCEEDED"
        ]
        if bad:
            raise RuntimeError(", ".join(bad))
        waiting = [job for job, state in states.items() if not state.is_terminal()]
    return time.perf_counter() - started


def main() -> None:
    client = JobSubmissionClient(sys.argv[1])
    for order in sys.stdin:
        asked = json.loads(order)
        try:
            if asked["do"] == "latency":
                answer: dict[str, object] = {"seconds": latency(client, asked["script"], asked["line"])}
            else:
                answer = {"seconds": throughput(client, asked["script"], asked["count"])}
        except Exception as bad:  # reported to the benchmark, which ends
            answer = {"error": str(bad)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
