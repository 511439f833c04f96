"""The output of `hop why`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hopyard.cli.terminal.times import format_clock
from hopyard.cli.why import explanation_lines

WAITING = {"phase": "queued", "attempt": None, "spec": {"roles": []}}


def at(minutes: float) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def pending_run(**fields: Any) -> dict[str, Any]:
    return {
        "name": "ada/mnist/1",
        "queue": "default",
        "position": 1,
        "waiting": 1,
        "detail": "needs 2 GPUs",
        "reason": "no-capacity",
        "blocked_by": [],
        "what_if": [],
        "expected": None,
        "promised_at": None,
        **fields,
    }


@pytest.mark.parametrize(
    ("promised", "late", "end"),
    [
        (40, "", ""),
        (20, "", "; it will probably be later: its resources are in use for longer"),
        (20, "run a/b/7 goes before it", "; it will probably be later: run a/b/7 goes before it"),
    ],
)
def test_promise_likely_to_break_is_marked(promised: float, late: str, end: str) -> None:
    band = {"low_at": at(25), "mid_at": at(30), "high_at": at(50)}
    promised_at = at(promised)
    lines = explanation_lines(pending_run(expected=band, promised_at=promised_at, late=late), WAITING)
    assert lines[-2].startswith(f"expected start: {format_clock(band['mid_at'])} (in ")
    assert lines[-1] == f"promised: at the latest {format_clock(promised_at)}{end}"


@pytest.mark.parametrize(("seconds", "has_seconds"), [(0.5, False), (50, True)])
def test_short_estimate_shows_seconds(seconds: float, has_seconds: bool) -> None:
    band = {"low_at": at(2), "mid_at": at(2 + seconds / 120), "high_at": at(2 + seconds / 60)}
    low, mid, high = (format_clock(band[key], show_seconds=True) for key in ("low_at", "mid_at", "high_at"))
    line = explanation_lines(pending_run(expected=band), WAITING)[-1]
    assert line.startswith(f"expected start: {mid} (in ")
    assert line.endswith(f"), between {low} and {high}") is has_seconds


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "pool": "a",
        "labels": {"rack": "1"},
        "cordoned": True,
        "cordon_reason": "",
        "not_ready": "",
        **fields,
    }


def test_usable_cordoned_nodes_are_listed_with_the_command() -> None:
    def told(nodes: list[dict[str, Any]]) -> list[str]:
        where = {"pools": ["a"], "labels": [["rack", "1"]]}
        lines = explanation_lines(pending_run(), {**WAITING, "spec": {"roles": [{"where": where}]}}, nodes)
        return lines[lines.index("cordoned:") + 1 : -1] if "cordoned:" in lines else []

    others = [node("open", cordoned=False), node("other", pool="b"), node("far", labels={"rack": "2"})]
    assert told(others) == []
    assert told([node("n1", cordon_reason="dust"), *others]) == [
        "  node n1: dust",
        "  `hop node ls` lists the nodes; use `hop node uncordon n1` to let runs start there",
    ]
    many = told([node(f"n{i}") for i in range(7)])
    assert (len(many), many[-2]) == (7, "  and 2 more")
    assert "`hop node uncordon NODE`" in many[-1]


def test_servers_of_nodes_that_are_not_ready_are_named() -> None:
    away = "its server (two:/home) has been away since 2026-11-25 18:03:12 UTC"
    spec = {"roles": [{"where": {"pools": ["a"], "labels": []}}]}
    nodes = [
        node("n1", cordoned=False, not_ready=away),
        node("n2", cordoned=False),
        node("n3", pool="b", not_ready=away),
    ]
    lines = explanation_lines(pending_run(), {**WAITING, "spec": spec}, nodes)
    assert lines[lines.index("not ready:") + 1].startswith(
        "  node n1: its server (two:/home) has been away since "
    )
    assert not any("n2" in line or "n3" in line or "UTC" in line for line in lines)


def test_run_that_cannot_start_has_no_expected_start() -> None:
    assert explanation_lines(pending_run(), WAITING)[-1] == "expected start: never under present conditions"


@pytest.mark.parametrize(("hours", "is_wide"), [(3, False), (300, True)])
def test_wide_estimate_suggests_a_time_limit(hours: float, is_wide: bool) -> None:
    band = {"low_at": at(1), "mid_at": at(60), "high_at": at(60 * hours)}
    lines = explanation_lines(pending_run(expected=band), WAITING)
    assert any("Wide estimate" in line and "`hop run --time`" in line for line in lines) is is_wide


def test_blockers_are_listed_with_their_end() -> None:
    ways = [
        {"kind": "run", "name": "bob/bert/3", "until": at(5)},
        {"kind": "reservation", "name": "exam", "until": at(9)},
    ]
    lines = explanation_lines(pending_run(blocked_by=ways), WAITING)
    assert [
        line.partition(format_clock(way["until"]))[0] for line, way in zip(lines[3:5], ways, strict=True)
    ] == [
        "  run bob/bert/3, probably until ",
        "  reservation exam, until ",
    ]
