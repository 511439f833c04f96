"""Local files, S3 and Google's storage through Arrow's clients: executors write their files themselves, so
Spark needs no jars for it.

A task writes files of names that nobody has used, and says which: Spark keeps the answer of exactly one
attempt of each task, so those of attempts that were lost, repeated or speculative are never read.
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
_GROUP_BYTES = 64 << 20  # of a row group, as Arrow holds it


@dataclass(frozen=True, slots=True)
class ArrowStore:
    """settings: of S3, by the names in SETTINGS."""

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
            said = frame.mapInArrow(self._written, _RESULT_SCHEMA).collect()
        except Exception as failed:
            why = executor_error(failed)
            raise failed if why is None else why from failed
        return [Chunk(row[SPLIT], int(row[PART]), row["name"], int(row["rows"])) for row in said]

    def tables(self, chunks: tuple[Chunk, ...], /) -> Iterator[tuple[str, Any]]:
        from pyarrow import parquet as pq

        files, root = self._open()
        for chunk in chunks:
            path = f"{root}/{chunk.name}"
            try:
                yield path, pq.ParquetFile(files.open_input_file(path), pre_buffer=True).read()
            except OSError as failed:
                raise self._write_error("read", failed) from failed

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
            one.base_name
            for one in files.get_file_info(fs.FileSelector(root, allow_not_found=True))
            if one.type == fs.FileType.File
        ]

    def delete_file(self, spark: Any, name: str, /) -> None:
        del spark
        files, root = self._open()
        files.delete_file(f"{root}/{name}")

    # -- parts -----------------------------------------------------------------------------------------------

    def _written(self, batches: Iterator[Any]) -> Iterator[Any]:
        """In a task: its rows as files, and a row about each."""
        import pyarrow as pa

        said = pa.schema(
            [(SPLIT, pa.string()), (PART, pa.int32()), ("name", pa.string()), ("rows", pa.int64())]
        )
        current: _PartitionFile | None = None
        for batch in batches:
            for split, part, rows in _split_by_partition(batch):
                if current is None or (current.split, current.part) != (split, part):
                    if current is not None:
                        yield pa.RecordBatch.from_pylist([current.close()], said)
                    current = _PartitionFile(self, split, part)
                current.add(rows)
        if current is not None:
            yield pa.RecordBatch.from_pylist([current.close()], said)

    def stream(self, name: str) -> Any:
        """To write one file with."""
        files, root = self._open()
        path = f"{root}/{name}"
        try:
            if self._scheme == "file":
                files.create_dir(path.rpartition("/")[0], recursive=True)
            return files.open_output_stream(path)
        except OSError as failed:
            raise self._write_error("written", failed) from failed

    def close(self, stream: Any) -> None:
        try:
            stream.close()
        except OSError as failed:  # S3 says only now whether it took the last part
            raise self._write_error("written", failed) from failed

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
        """A client, and the folder as it calls it."""
        from pyarrow import ArrowInvalid, fs

        try:
            if self._scheme == "s3":
                where = urlsplit(self.url)
                return self._s3(where.netloc), f"{where.netloc}{where.path}".rstrip("/")
            files, root = fs.FileSystem.from_uri(self.url)
        except (OSError, ArrowInvalid) as failed:
            raise self._write_error("reached", failed) from failed
        return files, str(root).rstrip("/")

    def _s3(self, bucket: str) -> Any:
        from pyarrow import fs

        known = self.settings
        endpoint, region = known.get("endpoint_url"), known.get("region")
        if region is None and endpoint is None:
            region = fs.resolve_s3_region(bucket)
        scheme, _, host = endpoint.rpartition("://") if endpoint else ("", "", None)
        return fs.S3FileSystem(
            access_key=known.get("access_key_id"),
            secret_key=known.get("secret_access_key"),
            session_token=known.get("session_token"),
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
            named = ", ".join(
                f"{name}={known}" for name in ("endpoint_url", "region") if (known := self.settings.get(name))
            )
            key = (
                "a key of your own"
                if "access_key_id" in self.settings
                else "no key: that of the machine's role, or ~/.aws of the executors"
            )
            hints = (
                f"used: {named + ', ' if named else ''}{key}",
                (
                    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL of the "
                    "driver's process say otherwise, or MopBackend(storage={…})"
                ),
            )
        return SpecError(f"store: {self.url} cannot be {action}: {error}", hints=hints)


class _PartitionFile:
    """One Parquet file in the making."""

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
        if sum(one.nbytes for one in self._pending) > _GROUP_BYTES:
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
    """Stretches of a batch that belong to one partition, without the columns that say so."""
    import numpy as np
    from pyarrow import compute

    split, part = batch.column(SPLIT), batch.column(PART)
    places = np.stack([compute.index_in(split, compute.unique(split)).to_numpy(), part.to_numpy()])
    begins = np.flatnonzero(np.any(places[:, 1:] != places[:, :-1], axis=0)) + 1
    rows = batch.select([name for name in batch.schema.names if name not in (SPLIT, PART)])
    for begin, end in zip([0, *begins.tolist()], [*begins.tolist(), batch.num_rows], strict=True):
        if end > begin:
            yield split[begin].as_py(), part[begin].as_py(), rows.slice(begin, end - begin)


def s3_settings(options: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What was given, else what AWS_… of this process says; executors get it with their tasks.
    Raises SpecError for unknown names, and for half a key."""
    for name in options:
        if name not in SETTINGS:
            raise SpecError(
                f"storage: `{name}` is not a setting of s3://", hints=(f"they are {', '.join(SETTINGS)}",)
            )
    said = {name: environ.get(f"AWS_{name.upper()}", "") for name in SETTINGS}
    said["endpoint_url"] = environ.get("AWS_ENDPOINT_URL_S3") or said["endpoint_url"]
    said["region"] = said["region"] or environ.get("AWS_DEFAULT_REGION", "")
    if "access_key_id" in options:  # a key is of one origin
        said |= {"secret_access_key": "", "session_token": ""}
    found = {name: value for name, value in (said | dict(options)).items() if value}
    if ("access_key_id" in found) != ("secret_access_key" in found):
        there, lacks = (
            ("access_key_id", "secret_access_key")
            if "access_key_id" in found
            else ("secret_access_key", "access_key_id")
        )
        raise SpecError(
            f"storage: {there} is set, but {lacks} is missing",
            hints=(f"AWS_{lacks.upper()}, or storage={{'{lacks}': …}}",),
        )
    endpoint = found.get("endpoint_url")
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise SpecError(
            f"storage: endpoint_url `{endpoint}` is not a URL",
            hints=("use a URL such as http://127.0.0.1:8333",),
        )
    return found
