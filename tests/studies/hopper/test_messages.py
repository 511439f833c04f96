"""Messages come back equal from the wire, and what is no message is refused by name."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from hopyard.studies.messages import (
    Acknowledge,
    Beat,
    Cancel,
    Doing,
    Drop,
    End,
    Evaluate,
    Evaluated,
    Failed,
    Finished,
    Hello,
    Member,
    Message,
    Named,
    Open,
    Prefetch,
    Progress,
    Ready,
    Train,
    from_head,
    to_head,
)

KINDS = (
    Hello,
    Ready,
    Finished,
    Named,
    Evaluated,
    Failed,
    Progress,
    Beat,
    Open,
    Train,
    Evaluate,
    Prefetch,
    Cancel,
    Drop,
    Acknowledge,
    End,
    Doing,
    Member,
)
st.register_type_strategy(
    PartitionPlan, st.builds(PartitionPlan, parts=st.integers(1, 99), columns=st.tuples(st.text()))
)
messages = st.one_of(*(st.builds(kind) for kind in KINDS[:-2]))


@given(messages)
def test_a_message_comes_back_equal(message: Message) -> None:
    back = from_head(json.loads(json.dumps(to_head(message))))
    assert json.dumps(to_head(back)) == json.dumps(to_head(message))
    assert type(back) is type(message)


def test_numbers_that_are_none_come_back() -> None:
    said = Evaluated("1.2", "3", 0, 1, "1.1", {"loss": math.inf, "score": math.nan}, 5, 0.0, 1.0)  # type: ignore[arg-type]
    back = from_head(json.loads(json.dumps(to_head(said))))
    assert isinstance(back, Evaluated)
    assert back.metrics["loss"] == math.inf and math.isnan(back.metrics["score"])


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"message": "sing"}, "`sing` is no kind of message"),
        ({}, "`None` is no kind of message"),
        ({"message": "beat", "pulse": 3}, "beat: unknown field `pulse`"),
        ({"message": "beat", "rss_bytes": "much"}, "beat.rss_bytes: expected int, not str"),
        ({"message": "cancel"}, "cancel: .*unit"),
        ({"message": "drop", "states": 3}, "drop.states: a list is expected"),
        ({"message": "drop", "states": [1]}, r"drop.states\[0\]: expected str, not int"),
    ],
)
def test_what_is_no_message_is_refused(head: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        from_head(head)
