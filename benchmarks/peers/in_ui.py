"""Runs in the peers' environment: `in_ui.py PEER FOLDER RUNS CURVES POINTS PORT` writes runs, prints the path
of the page that lists them, and serves it.

The runs are written straight into the peer's database: by its own calls that takes many minutes.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def values(runs: int, curves: int, points: int) -> Iterator[tuple[int, float, list[float]]]:
    """Yields each run's number, its accuracy, and its losses: many of those `curves` runs that are newest."""
    for number in range(runs):
        noise = random.Random(number)
        accuracy = 0.5 + noise.random() / 2
        count = points if number >= runs - curves else 1
        yield number, accuracy, [noise.random() / (step + 1) for step in range(count)]


def mlflow(folder: Path, runs: int, curves: int, points: int, port: int) -> None:
    from mlflow import MlflowClient

    file = folder / "mlflow.db"
    address = f"sqlite:///{file}"
    experiment = MlflowClient(address).create_experiment("bench", str(folder / "artifacts"))
    base = int(time.time() * 1000) - runs * 1000
    with sqlite3.connect(file) as database:
        for number, accuracy, losses in values(runs, curves, points):
            run, at = f"{number:032x}", base + number * 1000
            database.execute(
                "INSERT INTO runs (run_uuid, name, source_type, user_id, status, start_time, end_time, "
                "lifecycle_stage, artifact_uri, experiment_id) VALUES (?, ?, 'LOCAL', 'u', 'FINISHED', ?, ?, "
                "'active', ?, ?)",
                (run, f"trial-{number}", at, at + 60_000, f"{folder}/artifacts/{run}", experiment),
            )
            database.execute("INSERT INTO params (run_uuid, key, value) VALUES (?, 'lr', '0.1')", (run,))
            database.execute(
                "INSERT INTO tags (run_uuid, key, value) VALUES (?, 'mlflow.runName', ?)",
                (run, f"trial-{number}"),
            )
            rows = [("loss", loss, at + step, run, step, 0) for step, loss in enumerate(losses)]
            rows.append(("val_acc", accuracy, at, run, len(losses) - 1, 0))
            columns = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
            database.executemany(f"INSERT INTO metrics {columns}", rows)
            database.executemany(f"INSERT INTO latest_metrics {columns}", rows[-2:])
    print(f"/#/experiments/{experiment}/runs", flush=True)
    os.execv(
        sys.executable,
        [
            *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", address),
            *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        ],
    )


def trackio(folder: Path, runs: int, curves: int, points: int, port: int) -> None:
    os.environ.update(TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1", GRADIO_ANALYTICS_ENABLED="False")
    import trackio as peer
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.bulk_log("bench", "first", [{"loss": 1.0}])  # creates the tables
    at = time.strftime("%Y-%m-%dT%H:%M:%S")
    with sqlite3.connect(SQLiteStorage.get_project_db_path("bench")) as database:
        names = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
        for number, accuracy, losses in values(runs, curves, points):
            name = f"trial-{number}"
            row = {"timestamp": at, "run_name": name, "run_id": name}
            keys = [key for key in row if key in names]
            database.executemany(
                f"INSERT INTO metrics ({', '.join(keys)}, step, metrics) VALUES "
                f"({', '.join('?' * len(keys))}, ?, ?)",
                [
                    (*(row[key] for key in keys), step, json.dumps({"loss": loss, "val_acc": accuracy}))
                    for step, loss in enumerate(losses)
                ],
            )
    print("/?project=bench", flush=True)
    peer.show("bench", open_browser=False, block_thread=True, host="127.0.0.1", server_port=port)


if __name__ == "__main__":
    peer, folder, *numbers = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    {"mlflow": mlflow, "trackio": trackio}[peer](Path(folder), *map(int, numbers))
