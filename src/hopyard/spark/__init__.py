"""Model selection on Apache Spark: the same driver and workers, as the tasks of one barrier stage.

    from hopyard.spark import MopBackend, Study

The public names are imported at their first use: executors import modules of this package and need no driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopyard.spark.api import BestModel as BestModel
    from hopyard.spark.api import MopBackend as MopBackend
    from hopyard.spark.api import Study as Study
    from hopyard.spark.api import Summary as Summary

__all__ = ["BestModel", "MopBackend", "Study", "Summary"]


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module `hopyard.spark` has no attribute `{name}`")
        from importlib import import_module

        return getattr(import_module("hopyard.spark.api"), name)
