"""Local files, S3 and Google Cloud Storage through Arrow's clients. Executors write the files themselves, so
Spark needs no jars.

A task writes files with unique names and returns the names. Spark keeps the result of exactly one attempt of
each task, so files of lost, repeated or speculative attempts are never read.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hopyard.errors import SpecError
from hopyard.spark.stores.executor_errors import executor_error
from hopyard.spark.stores.store import PART, SPLIT, Chunk

SETTINGS = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint_url")
_RESULT_SCHEMA = f"{SPLIT} string, {PART} int, name string, rows long"
_GROUP_BYTES = 64 << 20  # of a row group in Arrow's memory


@dataclass(frozen=True, slots=True)
class ArrowStore:
    """settings: for S3, with the names in SETTINGS."""

    url: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # it holds a secret

    def check(self, spark: Any, /) -> None:
        del spark
        name = f"{uuid.uuid4().hex}.empty"
        self._put(name, b"")
        files, root = self._open()
        files.delete_file(f"{root}/{name}")

    def write(self, frame: Any, /) -> list[Chunk]:
        try:
            rows = frame.mapInArrow(self._written, _RESULT_SCHEMA).collect()
        except Exception as error:
            cause = executor_error(error)
            raise error if cause is None else cause from error
        return [Chunk(row[SPLIT], int(row[PART]), row["name"], int(row["rows"])) for row in rows]

    def tables(self, chunks: tuple[Chunk, ...], /) -> Iterator[tuple[str, Any]]:
        from pyarrow import parquet as pq

        files, root = self._open()
        for chunk in chunks:
            path = f"{root}/{chunk.name}"
            try:
                yield path, pq.ParquetFile(files.open_input_file(path), pre_buffer=True).read()
            except OSError as error:
                raise self._write_error("read", error) from error

    def remove(self, spark: Any, /) -> None:
        del spark
        files, root = self._open()
        with suppress(FileNotFoundError):
            files.delete_dir(root)

    def create_file(self, spark: Any, name: str, /) -> None:
        del spark
        self._put(name, b"")

    def list_files(self, spark: Any, /) -> list[str]:
        from pyarrow import fs

        del spark
        files, root = self._open()
        return [
            entry.base_name
            for entry in files.get_file_info(fs.FileSelector(root, allow_not_found=True))
            if entry.type == fs.FileType.File
        ]

    def delete_file(self, spark: Any, name: str, /) -> None:
        del spark
        files, root = self._open()
        files.delete_file(f"{root}/{name}")

    # -- files -----------------------------------------------------------------------------------------------

    def _written(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Runs in a task: writes its rows to files, and yields a row about each file."""
        import pyarrow as pa

        schema = pa.schema(
            [(SPLIT, pa.string()), (PART, pa.int32()), ("name", pa.string()), ("rows", pa.int64())]
        )
        current: _PartitionFile | None = None
        for batch in batches:
            for split, part, rows in _split_by_partition(batch):
                if current is None or (current.split, current.part) != (split, part):
                    if current is not None:
                        yield pa.RecordBatch.from_pylist([current.close()], schema)
                    current = _PartitionFile(self, split, part)
                current.add(rows)
        if current is not None:
            yield pa.RecordBatch.from_pylist([current.close()], schema)

    def stream(self, name: str) -> Any:
        """Returns a stream that writes one file."""
        files, root = self._open()
        path = f"{root}/{name}"
        try:
            if self._scheme == "file":
                files.create_dir(path.rpartition("/")[0], recursive=True)
            return files.open_output_stream(path)
        except OSError as error:
            raise self._write_error("written", error) from error

    def close(self, stream: Any) -> None:
        try:
            stream.close()
        except OSError as error:  # S3 reports errors of the last part only now
            raise self._write_error("written", error) from error

    def _put(self, name: str, content: bytes) -> None:
        stream = self.stream(name)
        try:
            stream.write(content)
        finally:
            self.close(stream)

    @property
    def _scheme(self) -> str:
        return urlsplit(self.url).scheme

    def _open(self) -> tuple[Any, str]:
        """Returns a client, and the folder's path in it."""
        from pyarrow import ArrowInvalid, fs

        try:
            if self._scheme == "s3":
                url_parts = urlsplit(self.url)
                return self._s3(url_parts.netloc), f"{url_parts.netloc}{url_parts.path}".rstrip("/")
            files, root = fs.FileSystem.from_uri(self.url)
        except (OSError, ArrowInvalid) as error:
            raise self._write_error("reached", error) from error
        return files, str(root).rstrip("/")

    def _s3(self, bucket: str) -> Any:
        from pyarrow import fs

        settings = self.settings
        endpoint, region = settings.get("endpoint_url"), settings.get("region")
        if region is None and endpoint is None:
            region = fs.resolve_s3_region(bucket)
        scheme, _, host = endpoint.rpartition("://") if endpoint else ("", "", None)
        return fs.S3FileSystem(
            access_key=settings.get("access_key_id"),
            secret_key=settings.get("secret_access_key"),
            session_token=settings.get("session_token"),
            region=region or "us-east-1",
            endpoint_override=host.rstrip("/") if host else None,
            scheme=scheme or "https",
            background_writes=False,
        )

    def _write_error(self, action: str, error: Exception) -> SpecError:
        hints: tuple[str, ...] = ("choose a folder that this machine can write to",)
        if self._scheme == "file":
            if action == "read":
                hints = ("for executors on several machines, use a shared folder or s3://…",)
        elif self._scheme == "s3":
            setting_text = ", ".join(
                f"{name}={value}" for name in ("endpoint_url", "region") if (value := self.settings.get(name))
            )
            key = (
                "a key of your own"
                if "access_key_id" in self.settings
                else "no key: that of the machine's role, or ~/.aws of the executors"
            )
            hints = (
                f"used: {setting_text + ', ' if setting_text else ''}{key}",
                (
                    "override with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL "
                    "of the driver's process, or with MopBackend(storage={…})"
                ),
            )
        return SpecError(f"store: {self.url} cannot be {action}: {error}", hints=hints)


class _PartitionFile:
    """One Parquet file that is being written."""

    def __init__(self, store: ArrowStore, split: str, part: int) -> None:
        self.split, self.part = split, part
        self._store, self._rows = store, 0
        self._name = f"{SPLIT}={split}/{PART}={part}/{uuid.uuid4().hex}.parquet"
        self._stream = store.stream(self._name)
        self._writer: Any = None
        self._pending: list[Any] = []

    def add(self, rows: Any) -> None:
        self._pending.append(rows)
        self._rows += rows.num_rows
        if sum(batch.nbytes for batch in self._pending) > _GROUP_BYTES:
            self._flush()

    def close(self) -> dict[str, Any]:
        self._flush()
        self._writer.close()
        self._store.close(self._stream)
        return {SPLIT: self.split, PART: self.part, "name": self._name, "rows": self._rows}

    def _flush(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet as pq

        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending)
        self._pending = []
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, table.schema)
        self._writer.write_table(table)


def _split_by_partition(batch: Any) -> Iterator[tuple[str, int, Any]]:
    """Yields ranges of a batch that belong to one partition, without the columns for split and partition."""
    import numpy as np
    from pyarrow import compute

    split, part = batch.column(SPLIT), batch.column(PART)
    partition_ids = np.stack([compute.index_in(split, compute.unique(split)).to_numpy(), part.to_numpy()])
    starts = np.flatnonzero(np.any(partition_ids[:, 1:] != partition_ids[:, :-1], axis=0)) + 1
    rows = batch.select([name for name in batch.schema.names if name not in (SPLIT, PART)])
    for start, end in zip([0, *starts.tolist()], [*starts.tolist(), batch.num_rows], strict=True):
        if end > start:
            yield split[start].as_py(), part[start].as_py(), rows.slice(start, end - start)


def s3_settings(options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the given settings, completed from AWS_… of this process; executors get them with their tasks.
    Raises SpecError for unknown names, and for an incomplete key."""
    for name in options:
        if name not in SETTINGS:
            raise SpecError(
                f"storage: `{name}` is not a setting of s3://", hints=(f"they are {', '.join(SETTINGS)}",)
            )
    from_environment = {name: environ.get(f"AWS_{name.upper()}", "") for name in SETTINGS}
    from_environment["endpoint_url"] = environ.get("AWS_ENDPOINT_URL_S3") or from_environment["endpoint_url"]
    from_environment["region"] = from_environment["region"] or environ.get("AWS_DEFAULT_REGION", "")
    if "access_key_id" in options:  # both parts of a key must have one origin
        from_environment |= {"secret_access_key": "", "session_token": ""}
    settings = {name: value for name, value in (from_environment | dict(options)).items() if value}
    if ("access_key_id" in settings) != ("secret_access_key" in settings):
        present, missing = (
            ("access_key_id", "secret_access_key")
            if "access_key_id" in settings
            else ("secret_access_key", "access_key_id")
        )
        raise SpecError(
            f"storage: {present} is set, but {missing} is missing",
            hints=(f"set AWS_{missing.upper()}, or storage={{'{missing}': …}}",),
        )
    endpoint = settings.get("endpoint_url")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise SpecError(
            f"storage: endpoint_url `{endpoint}` is not a URL",
            hints=("use a URL such as http://127.0.0.1:8333",),
        )
    return settings
