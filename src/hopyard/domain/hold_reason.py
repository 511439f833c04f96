"""The kinds of reasons for which a gang waits."""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    NO_CAPACITY = "no-capacity"  # fits the cluster, not what is free now
    BEHIND = "behind"  # would fit, but a gang ahead of it waits for the same resources
    NEVER_FITS = "never-fits"  # larger than any node (set) there is
    NO_NODES = "no-nodes"  # no node is ready
    QUOTA = "quota"  # its queue, or one above it, may use no more
    USER_LIMIT = "user-limit"  # its user may use no more of the queue
    RESERVED = "reserved"  # what is free is reserved, or will be before it could end
    TOPOLOGY = "topology"  # enough is free, but not close together (or not far apart) as it asks
    PREEMPTING = "preempting"  # runs were asked to stop for it
    NO_QUEUE = "no-queue"  # its queue was removed
    # its node could not start it, or it was lost again and again: it is tried again later
    PUT_BACK = "put-back"
