"""Messages round-trip through the wire format, and invalid messages are refused with a reason."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from hopyard.mop_runtime.messages import (
    Acknowledge,
    Cancel,
    DigestComputed,
    DropStates,
    EvaluateUnit,
    EvaluationResult,
    Heartbeat,
    Hello,
    HopResult,
    Message,
    OpenPartitions,
    PrefetchState,
    Ready,
    Shutdown,
    TrainUnit,
    UnitAssignment,
    UnitFailure,
    UnitInProgress,
    UnitProgress,
    from_head,
    to_head,
)

KINDS = (
    Hello,
    Ready,
    HopResult,
    DigestComputed,
    EvaluationResult,
    UnitFailure,
    UnitProgress,
    Heartbeat,
    OpenPartitions,
    TrainUnit,
    EvaluateUnit,
    PrefetchState,
    Cancel,
    DropStates,
    Acknowledge,
    Shutdown,
    UnitInProgress,
    UnitAssignment,
)
st.register_type_strategy(
    PartitionPlan, st.builds(PartitionPlan, parts=st.integers(1, 99), columns=st.tuples(st.text()))
)
messages = st.one_of(*(st.builds(kind) for kind in KINDS[:-2]))


@given(messages)
def test_message_round_trip_is_equal(message: Message) -> None:
    back = from_head(json.loads(json.dumps(to_head(message))))
    assert json.dumps(to_head(back)) == json.dumps(to_head(message))
    assert type(back) is type(message)


def test_non_finite_numbers_round_trip() -> None:
    message = EvaluationResult("1.2", "3", 0, 1, "1.1", {"loss": math.inf, "score": math.nan}, 5, 0.0, 1.0)  # type: ignore[arg-type]
    back = from_head(json.loads(json.dumps(to_head(message))))
    assert isinstance(back, EvaluationResult)
    assert back.metrics["loss"] == math.inf and math.isnan(back.metrics["score"])


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"message": "sing"}, "`sing` is not a message type"),
        ({}, "`None` is not a message type"),
        ({"message": "heartbeat", "pulse": 3}, "heartbeat: unknown field `pulse`"),
        ({"message": "heartbeat", "rss_bytes": "much"}, "heartbeat.rss_bytes: expected int, not str"),
        ({"message": "cancel"}, "cancel: .*unit"),
        ({"message": "dropstates", "states": 3}, "dropstates.states: a list is expected"),
        ({"message": "dropstates", "states": [1]}, r"dropstates.states\[0\]: expected str, not int"),
    ],
)
def test_invalid_message_is_refused(head: dict[str, object], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        from_head(head)
