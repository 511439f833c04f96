"""`hop lineage`: the tree of runs that a run belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run
from hopyard.config.key_values import format_value
from hopyard.domain.text import escape

if TYPE_CHECKING:
    from hopyard.client.lineage import LineageNode

_MAX_TRIALS = 20  # of a study that are shown
_MAX_VALUE = 40  # characters
_MARK = "<- this run"


@click.command("lineage")
@last_run_argument()
@json_option
def lineage(ref: str, as_json: bool) -> None:
    """Show the tree of RUN: its sources, and the runs that were forked from them.

    Forks, continued runs and runs from a checkpoint are below the run that they come from, the trials of a
    search below the search. Each line has the parameters that differ from those of the run above.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.lineage import MAX_LINEAGE, find_lineage

    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    found = find_lineage(client, run)
    if as_json:
        console.print_json({"run": run["name"], "cut": found.is_cut, "tree": _to_json(found.root, run["id"])})
        return
    for line in _tree_lines(found.root, run["id"], "", ""):
        console.print_line(line)
    if found.is_cut:
        console.print_message(f"note: the tree has more than {MAX_LINEAGE} runs; the youngest are left out")


def _to_json(node: LineageNode, asked: str) -> dict[str, Any]:
    return {
        "id": node.run["id"],
        "name": node.run["name"],
        "label": node.run["spec"].get("label") or None,
        "phase": node.run["phase"],
        "relation": node.relation or None,
        "step": node.step,
        "changes": {name: list(pair) for name, pair in node.changes.items()},
        "is_asked": node.run["id"] == asked,
        "children": [_to_json(child, asked) for child in node.children],
    }


def _tree_lines(node: LineageNode, asked: str, first: str, rest: str) -> Iterator[str]:
    """Yields the lines of a tree. first: what precedes the first line; rest: the others."""
    yield first + _node_text(node, asked)
    shown, hidden = _shown_children(node, asked)
    for position, child in enumerate(shown):
        is_last = position == len(shown) - 1 and not hidden
        yield from _tree_lines(
            child, asked, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  ")
        )
    if hidden:
        name = escape(node.run["name"])
        yield f"{rest}└─ … and {hidden} more trials: `hop search show {name}` lists them"


def _shown_children(node: LineageNode, asked: str) -> tuple[list[LineageNode], int]:
    """Returns the children to show: of many trials the first, and those with the asked run or forks."""
    trials = [child for child in node.children if child.relation == "trial"]
    plain = [child for child in trials if not child.children and child.run["id"] != asked]
    hidden = {child.run["id"] for child in plain[_MAX_TRIALS:]}
    return [child for child in node.children if child.run["id"] not in hidden], len(hidden)


def _node_text(node: LineageNode, asked: str) -> str:
    run = node.run
    label = run["spec"].get("label")
    parts = [
        escape(run["name"]) + (f" ({escape(label)})" if label else ""),
        _relation_text(node),
        run["phase"],
    ]
    parts.append(", ".join(_change_text(name, *pair) for name, pair in node.changes.items()))
    parts.append(_MARK if run["id"] == asked else "")
    return "  ".join(part for part in parts if part)


def _relation_text(node: LineageNode) -> str:
    match node.relation:
        case "checkpoint":
            return f"from step {node.step}"
        case "files":
            return "from its files"
        case "removed":
            return "from a run that was removed"
        case relation:
            return relation


def _change_text(name: str, before: Any, after: Any) -> str:
    old, new = ("unset" if value is None else _value_text(value) for value in (before, after))
    return f"{escape(name)} {old} -> {new}"


def _value_text(value: Any) -> str:
    text = escape(format_value(value))
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
