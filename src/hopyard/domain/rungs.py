"""Rungs: the budgets at which trials are compared."""

from __future__ import annotations

from hopyard.errors import SpecError


def rung_budgets(max_epochs: int, min_epochs: int, eta: int) -> tuple[int, ...]:
    """Returns the total epochs at each rung, lowest first, ending with `max_epochs`. Each rung is `eta` times
    the previous one (rounded down). Raises SpecError if there would be only one rung."""
    if min_epochs > max_epochs:
        raise SpecError(
            f"searcher.options.min_epochs: {min_epochs} epochs at the lowest rung exceed max_epochs "
            f"({max_epochs})",
            hints=("choose a smaller min_epochs, or a larger max_epochs",),
        )
    last = 0
    while min_epochs * eta ** (last + 1) <= max_epochs:
        last += 1
    if last == 0:
        raise SpecError(
            f"max_epochs: with {max_epochs} and a lowest rung of {min_epochs} there is no rung to "
            "compare trials at before the end",
            hints=(
                (
                    f"set max_epochs to at least {min_epochs * eta} (min_epochs x eta), or use the "
                    "searcher `random`"
                ),
            ),
        )
    return tuple(max_epochs // eta ** (last - rung) for rung in range(last + 1))
