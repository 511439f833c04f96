"""The kinds of reasons for which a gang waits."""

from __future__ import annotations

from enum import StrEnum


class HoldReason(StrEnum):
    NO_CAPACITY = "no-capacity"  # fits the cluster, but not its free capacity
    BEHIND = "behind"  # would fit, but a gang ahead of it waits for the same resources
    NEVER_FITS = "never-fits"  # larger than every node (or set of nodes)
    NO_NODES = "no-nodes"  # no node is ready
    QUOTA = "quota"  # its queue, or an ancestor, is at its limit
    USER_LIMIT = "user-limit"  # its user is at the limit of the queue
    RESERVED = "reserved"  # the free capacity is reserved, or will be before it could end
    TOPOLOGY = "topology"  # enough is free, but not as close together (or as far apart) as requested
    PREEMPTING = "preempting"  # runs are preempted for it
    NO_QUEUE = "no-queue"  # its queue was removed
    # its node could not start it, or it was lost repeatedly: it is retried later
    PUT_BACK = "put-back"
