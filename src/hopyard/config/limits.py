"""The largest and smallest values of a request: the one statement of each, for files, options and the API.

Imports nothing, because `hop run` reads it before it starts a run.
"""

from __future__ import annotations

MAX_CPU_MILLI = 10**9  # more than any node has: placement names the shortfall
MAX_MEMORY_BYTES = 2**60
MAX_GPUS = 999_999
MAX_PROCESSES = 4096  # that a launcher starts in each replica
MAX_EXTRAS = 10**9  # of one countable resource
MAX_SECONDS = 10 * 365 * 86400.0  # ten years
MIN_PRIORITY, MAX_PRIORITY = 0, 100
MIN_STREAM_BYTES, MAX_STREAM_BYTES = 2**20, 2**53
MAX_DATASET_VERSION = 10**9
MAX_TRIALS = 10**6
MAX_EPOCHS = 10**6  # of one request; a fork adds its own to those of the study
MAX_CHOICES = 100_000  # values of one parameter, and points of a grid in its range
MAX_PARAMETERS = 1000  # of one space
MAX_PIECES = 4096  # of one reservation
