"""A worker's view of what `frames` wrote: its own partition's files only, from wherever the store is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

from hopyard.datasets.partitions.arrays import joined
from hopyard.datasets.partitions.arrow import as_array
from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.datasets.partitions.reader import ArrayReader
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from hopyard.on_spark.frames import Written

_SCHEMES = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names of it


class StoredPartitions:
    """Opens partitions of `written`; `label` is there as `y` too, several features of one number as the matrix `x`."""

    def __init__(self, written: Written, plan: PartitionPlan) -> None:
        self._written, self._plan = written, plan

    def open(self, index: int, kind: Kind = "train", /) -> Partition:
        """Reads the whole partition into memory. Raises SpecError where it is not there, or the store cannot be reached."""
        rows = self._written.train_rows if kind == "train" else self._written.validation_rows
        arrays: dict[str, list[Any]] = {}
        for path, table in self._tables(index, kind):
            for name in table.column_names:
                arrays.setdefault(name, []).append(as_array(table[name].combine_chunks(), path, name))
        reader = ArrayReader({name: joined(parts) for name, parts in arrays.items()})
        if reader.rows != rows[index]:
            raise SpecError(f"{self._written.url}: {kind} partition {index} has {reader.rows:,} rows, and {rows[index]:,} were written")
        whole = Partition(reader, index=index, peers=rows, kind=kind, key=f"{self._written.key}:{kind}:{index}")
        features = self._written.features
        return whole.view(x=features if len(features) > 1 else features[0], y=self._written.label)

    def _tables(self, index: int, kind: Kind) -> Iterator[tuple[str, Any]]:
        from pyarrow import ArrowInvalid, fs
        from pyarrow import parquet as pq

        url = _arrow_url(self._written.url)
        try:
            store, root = fs.FileSystem.from_uri(url)
            folder = f"{root.rstrip('/')}/split={kind}/part={index}"
            files = sorted(one.path for one in store.get_file_info(fs.FileSelector(folder)) if one.path.endswith(".parquet"))
        except (OSError, ArrowInvalid) as failed:
            hint = "workers read with pyarrow: file://, s3://, gs:// and hdfs:// (which needs libhdfs on the executors)"
            raise SpecError(f"store: {url} cannot be read: {failed}", hints=(hint,)) from failed
        for file in files:
            yield file, pq.ParquetFile(store.open_input_file(file)).read()


def _arrow_url(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    if not colon:
        return f"file://{url}"
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}" if urlparse(url).scheme else url
