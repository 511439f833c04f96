"""The place of this process in its gang, or in its group of torch.distributed. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hopyard.domain.launcher import INDEPENDENT_RANKS_VARIABLE


class ProcessGroup:
    """Knows the rank and the number of the processes: from torch.distributed once it is set up, else from the
    launcher's variables."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def rank(self) -> int:
        distributed = _torch_distributed()
        return parse_int(self._environ.get("RANK"), 0) if distributed is None else int(distributed.get_rank())

    def world_size(self) -> int:
        distributed = _torch_distributed()
        if distributed is not None:
            return int(distributed.get_world_size())
        return parse_int(self._environ.get("WORLD_SIZE"), 1)

    def independent_ranks(self) -> list[int]:
        """Returns the ranks of processes for which this one does not wait; none in a group of
        torch.distributed, which has ranks of its own."""
        if _torch_distributed() is not None:
            return []
        ranks = self._environ.get(INDEPENDENT_RANKS_VARIABLE, "").split(",")
        return [int(rank) for rank in ranks if rank.isdecimal()]


def parse_int(text: str | None, default: int) -> int:
    """Returns the number of a variable."""
    return int(text) if text is not None and text.isdecimal() else default


def _torch_distributed() -> Any:
    """Returns the module once it is set up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None
