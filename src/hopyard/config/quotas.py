"""`quotas` of `config.yaml`: limits of one user, or of one replica, for shared resources."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.config import units
from hopyard.config.yaml_section import YamlSection

QUOTA_KEYS = ("storage_per_user", "processes_per_replica")
DEFAULT_PROCESSES = 16_384  # far more than training needs, and fewer than a machine can have


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """storage_bytes: of the datasets, code, files and checkpoints that one user's pushes and runs refer to; 0
    sets no limit. processes: that one replica may have at once, threads included, where the machine lets us
    limit them; 0 sets no limit."""

    storage_bytes: int = 0
    processes: int = DEFAULT_PROCESSES


def read_quotas(section: YamlSection) -> QuotaSettings:
    """Raises SpecError naming the key."""
    section.check_keys(*QUOTA_KEYS)
    return QuotaSettings(
        storage_bytes=section.amount("storage_per_user", units.parse_memory) or 0,
        processes=section.integer("processes_per_replica", DEFAULT_PROCESSES, low=0, high=4_000_000),
    )
