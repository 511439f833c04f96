"""All other file systems of Spark's Hadoop client (hdfs, viewfs, abfs, s3a …): Spark writes; executors fetch
with the same client.

A worker is a Python process, which cannot use its executor's client. It starts its own client while it
fetches a partition, with the same jars and the driver's configuration. That takes one more second, but
executors need no installation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError
from hopyard.spark.stores.store import PART, SPLIT, Chunk

_CLIENT = "org.apache.hadoop.fs.FsShell"
_CLASS_PATHS = ("HADOOP_CONF_DIR", "CLASSPATH", "SPARK_CLASSPATH", "SPARK_DIST_CLASSPATH")


@dataclass(frozen=True, slots=True)
class HadoopStore:
    """configuration: Hadoop's, as XML."""

    url: str
    configuration: str = field(repr=False)  # it may hold secrets

    def check(self, spark: Any, /) -> None:
        probe = f"{self.url}/{uuid.uuid4().hex}.empty"
        try:
            files, path = _open_filesystem(spark, probe)
            files.create(path).close()
            files.delete(path, False)
        except Exception as error:
            raise self._command_error("written", _first_cause(error)) from error

    def write(self, frame: Any, /) -> list[Chunk]:
        """Spark's own committer handles repeated tasks."""
        spark = frame.sparkSession
        frame.write.mode("overwrite").partitionBy(SPLIT, PART).parquet(self.url)
        written = spark.read.schema(frame.schema).parquet(
            self.url
        )  # without the schema, an empty result could not be read
        rows = {
            (row[SPLIT], row[PART]): int(row["count"])
            for row in written.groupBy(SPLIT, PART).count().collect()
        }
        return [
            Chunk(split, int(part), f"{SPLIT}={split}/{PART}={part}", count)
            for (split, part), count in rows.items()
        ]

    def tables(self, chunks: tuple[Chunk, ...], /) -> Iterator[tuple[str, Any]]:
        from pyarrow import parquet as pq

        for chunk in chunks:
            with tempfile.TemporaryDirectory(prefix="hopyard-fetched-") as name:
                folder = self._download(chunk.name, Path(name))
                for file in sorted(folder.glob("*.parquet")):
                    yield f"{self.url}/{chunk.name}/{file.name}", pq.ParquetFile(file).read()

    def remove(self, spark: Any, /) -> None:
        files, path = _open_filesystem(spark, self.url)
        files.delete(path, True)

    def create_file(self, spark: Any, name: str, /) -> None:
        files, path = _open_filesystem(spark, f"{self.url}/{name}")
        files.create(path).close()

    def list_files(self, spark: Any, /) -> list[str]:
        files, path = _open_filesystem(spark, self.url)
        return (
            [str(entry.getPath().getName()) for entry in files.listStatus(path) if entry.isFile()]
            if files.exists(path)
            else []
        )

    def delete_file(self, spark: Any, name: str, /) -> None:
        files, path = _open_filesystem(spark, f"{self.url}/{name}")
        files.delete(path, False)

    def _download(self, name: str, folder: Path) -> Path:
        settings_folder = folder / "conf"
        settings_folder.mkdir(mode=0o700)
        (settings_folder / "core-site.xml").write_text(
            self.configuration
        )  # Hadoop reads this file by default
        command = [
            _java(),
            "-Xmx256m",
            "-cp",
            os.pathsep.join([str(settings_folder), *_class_path()]),
            _CLIENT,
            "-get",
            f"{self.url}/{name}",
            str(folder),
        ]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if result.returncode:
            error_lines = [
                line
                for line in result.stderr.splitlines()
                if line.strip() and not line.startswith(("\t", "SLF4J", "WARNING"))
            ]
            raise self._command_error(
                "read", error_lines[-1] if error_lines else f"Hadoop's client ended with {result.returncode}"
            )
        return folder / name.rpartition("/")[2]

    def _command_error(self, action: str, reason: str) -> SpecError:
        hints = [("use file://, s3:// or gs://, or a URL that Spark's own Hadoop client supports")]
        if "No FileSystem for scheme" in reason or "ClassNotFound" in reason:
            hints.insert(
                0, "add its jar with spark.jars.packages or spark.jars before the session is created"
            )
        if self.url.startswith(("s3a:", "s3n:")):
            hints.insert(0, f"s3://{self.url.partition('://')[2]} needs no jars")
        return SpecError(f"store: {self.url} cannot be {action}: {reason}", hints=hints)


def qualify_path(spark: Any, path: str) -> str:
    """Returns a path without a scheme as Spark resolves it: on the default file system."""
    files, requested = _open_filesystem(spark, path)
    qualified = str(files.makeQualified(requested).toString())
    return (
        f"file://{qualified.removeprefix('file:')}"
        if qualified.startswith("file:/") and not qualified.startswith("file://")
        else qualified
    )


def configuration(spark: Any) -> str:
    """Returns this application's whole configuration (core-site.xml, spark.hadoop.…, later changes)."""
    writer = spark.sparkContext._jvm.java.io.StringWriter()
    spark.sparkContext._jsc.hadoopConfiguration().writeXml(writer)
    return str(writer.toString())


def _open_filesystem(spark: Any, url: str) -> tuple[Any, Any]:
    path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(url)
    return path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), path


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java_home_binary = f"{home}/bin/java" if home else ""
    java = java_home_binary if java_home_binary and Path(java_home_binary).exists() else shutil.which("java")
    if java is None:
        raise SpecError(
            "this executor has no Java on its PATH",
            hints=("set spark.executorEnv.JAVA_HOME", "use file://, s3:// or gs://, which need no Java"),
        )
    return java


def _class_path() -> list[str]:
    """Returns the class path of an executor: from its environment, and the jars that came with the
    application."""
    paths = [path for name in _CLASS_PATHS for path in os.environ.get(name, "").split(os.pathsep) if path]
    home = os.environ.get("SPARK_HOME")
    if home is None:
        with suppress(ImportError):
            import pyspark

            home = str(Path(pyspark.__file__).parent)
    return [*paths, *((f"{home}/jars/*",) if home else ()), f"{Path.cwd()}/*"]


def _first_cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
