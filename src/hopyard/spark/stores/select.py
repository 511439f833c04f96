"""Selects the store of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.errors import SpecError
from hopyard.spark.stores import arrow, hadoop
from hopyard.spark.stores.store import Store

_ARROW_SCHEMES = ("file", "gs")


def select_store(spark: Any, url: str, settings: Mapping[str, str]) -> Store:
    """Returns the store of a URL. file, s3 and gs use Arrow's clients, on executors too; other schemes use
    Spark's Hadoop client.

    settings: for S3 (`arrow.SETTINGS`). Raises SpecError for an invalid URL, or for settings that the store
    does not use.
    """
    if ":" not in url:
        url = hadoop.qualify_path(spark, url)
    scheme = url.partition(":")[0]
    if scheme == "s3":
        return arrow.ArrowStore(url, arrow.s3_settings(settings))
    if settings:
        raise SpecError(
            f"storage: {scheme}:// takes no settings",
            hints=(
                "remove `storage`: it applies to s3:// only",
                "set Hadoop's own with spark.hadoop.… before the session is created",
            ),
        )
    if scheme in _ARROW_SCHEMES:
        return arrow.ArrowStore(url, {})
    return hadoop.HadoopStore(url, hadoop.configuration(spark))
