"""A ratchet for plain English: words and long sentences that the style guide replaces only become fewer."""

from __future__ import annotations

import warnings

from tests.house.plain_english import counts, recorded

SLACK = 5  # so many below the record are no news
LOWER = "lower the record with `python -m tests.house.plain_english`"


def test_counts_do_not_rise_above_the_record() -> None:
    limits = recorded()
    above, below = [], 0
    for area, numbers in counts().items():
        for phrase, number in numbers.items():
            limit = limits[area][phrase]
            below += max(0, limit - number)
            if number > limit:
                above.append(f"{area}: `{phrase}` {number} times, at most {limit}")
    assert not above, "write it in plain English: a noun of the field as subject, at most 25 words a sentence"
    if below > SLACK:
        warnings.warn(f"{below} fewer than recorded: {LOWER}", stacklevel=1)
