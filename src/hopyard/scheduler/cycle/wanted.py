"""What those ask for that wait and run, in the shapes for which room is to be kept."""

from __future__ import annotations

from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.mix import Ask, Mix


class Wanted:
    """Kept up as gangs come and go; the mix is made anew only when it is another one."""

    def __init__(self) -> None:
        self._counts: dict[Ask, int] = {}
        self._mix: Mix | None = None

    def count(self, gang: Gang, times: int) -> None:
        """It came (1), or went (-1)."""
        for role in gang.roles:
            asked = role.resources
            if not (asked.gpus or asked.shares_gpu):
                continue
            key = asked, role.where
            before = self._counts.get(key, 0)
            after = before + times * role.replicas
            if after:
                self._counts[key] = after
            else:
                del self._counts[key]
            if before.bit_length() != after.bit_length():  # see `Mix.coarse`
                self._mix = None

    def mix(self) -> Mix:
        if self._mix is None:
            self._mix = Mix.of(self._counts).coarse()
        return self._mix
