"""Real Spark: a local cluster (executors are processes of their own), and a standalone master with two workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SOURCES = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture(scope="session")
def java() -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")


@contextmanager
def session(master: str, folder: Path, **conf: str) -> Iterator[Any]:
    """A SparkSession that is ended, with the JVM behind it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("hopyard-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "spark"),
        "spark.executorEnv.PYTHONPATH": SOURCES,
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.log.level": "ERROR",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    gateway = SparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        if gateway is not None:
            process = gateway.proc
            gateway.shutdown()
            process.stdin.close()
            process.wait(60)
            SparkContext._gateway = SparkContext._jvm = None
        if before is None:
            os.environ.pop("PYSPARK_PYTHON", None)
        else:
            os.environ["PYSPARK_PYTHON"] = before


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with session("local-cluster[2,1,512]", tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture
def standalone(java: None, tmp_path: Path) -> Iterator[str]:
    """The address of a master that two workers have joined; all three are ended."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = _free_port()
    env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "work"), "PYSPARK_PYTHON": sys.executable}
    address = f"spark://127.0.0.1:{port}"
    log = (tmp_path / "spark.log").open("wb")

    def begin(*words: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), *words]
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    started = [begin("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    try:
        _until(lambda: b"I have been elected leader" in (tmp_path / "spark.log").read_bytes(), started)
        worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0", address)
        started += [begin(*worker), begin(*worker)]
        _until(lambda: (tmp_path / "spark.log").read_bytes().count(b"Registering worker") >= 2, started)
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(there: Any, started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert all(process.poll() is None for process in started), "a part of Spark ended"
        assert time.monotonic() < deadline, "Spark does not come up"
        time.sleep(0.05)
