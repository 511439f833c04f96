"""What the replicas of a run can reach over the network, if they run in containers."""

from __future__ import annotations

from hopyard.backports import StrEnum


class RunNetwork(StrEnum):
    """NONE: only each other."""

    DEFAULT = "default"
    NONE = "none"
