"""The lineage of a run: the runs that it comes from, and the runs that come from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.errors import NotFound

if TYPE_CHECKING:
    from hopyard.api_client import types as api

MAX_LINEAGE = 1000  # runs
_SOURCES_PER_REQUEST = 100


@dataclass(slots=True)
class LineageNode:
    """A run with the runs that come from it, the oldest first.

    relation: how it comes from the one above: fork, checkpoint, files or trial; "" for the first one, or
    "removed" if that comes from a run that does not exist any more. step: of its checkpoint. changes: the
    parameters that differ from those of the run above, both values.
    """

    run: api.RunOut
    relation: str = ""
    step: int | None = None
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    children: list[LineageNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The tree from its first run. is_cut: it has more runs."""

    root: LineageNode
    is_cut: bool


def find_lineage(client: Client, run: api.RunOut) -> Lineage:
    """Returns the whole tree that contains the run."""
    root, is_orphan = _find_root(client, run)
    nodes = {root["id"]: LineageNode(root, "removed" if is_orphan else "")}
    level = [root]
    while level and len(nodes) < MAX_LINEAGE:
        found = {each["id"]: each for each in _runs_from(client, level) if each["id"] not in nodes}
        level = sorted(found.values(), key=lambda each: (each["submitted_at"], each["id"]))
        level = level[: MAX_LINEAGE - len(nodes)]
        for each in level:
            nodes[each["id"]] = _make_node(each)
        for each in level:
            node, source = nodes[each["id"]], nodes[_source_of(each) or ""]
            node.changes = _changed_params(source.run, each)
            source.children.append(node)
    return Lineage(nodes[root["id"]], is_cut=bool(level))


def _find_root(client: Client, run: api.RunOut) -> tuple[api.RunOut, bool]:
    """Returns the first run, and whether it comes from one that was removed."""
    seen = {run["id"]}
    while (source := _source_of(run)) is not None and source not in seen:
        seen.add(source)
        try:
            run = client.get_run(source)
        except NotFound:
            return run, True
    return run, False


def _runs_from(client: Client, level: list[api.RunOut]) -> Iterator[api.RunOut]:
    """Yields the runs that come from those of a level."""
    ids = [run["id"] for run in level]
    for start in range(0, len(ids), _SOURCES_PER_REQUEST):
        some = ids[start : start + _SOURCES_PER_REQUEST]
        for fork in client.iterate_runs(forked_from=some, max_rows=MAX_LINEAGE + 1):
            if _source_of(fork) in some:
                yield fork
    for study in level:
        if study["spec"].get("study") is not None:
            trials = client.iterate_runs(parent=study["id"], max_rows=MAX_LINEAGE + 1)
            yield from (trial for trial in trials if _source_of(trial) == study["id"])


def _source_of(run: api.RunOut) -> str | None:
    """Returns the run that this one comes from: that of its checkpoint, or the study of a trial."""
    spec = run["spec"]
    return spec.get("forked_from") or spec.get("parent")


def _make_node(run: api.RunOut) -> LineageNode:
    spec = run["spec"]
    if not spec.get("forked_from"):
        return LineageNode(run, "trial")
    resume = spec.get("resume")
    if resume is not None:
        return LineageNode(run, "checkpoint", resume["step"])
    return LineageNode(run, "files" if spec.get("initial_folder") else "fork")


def _changed_params(before: api.RunOut, after: api.RunOut) -> dict[str, tuple[Any, Any]]:
    """Returns the parameters that differ. Those that only one of the scripts declares count if they were
    given."""
    old, new = _params(before), _params(after)
    given = {*(before["spec"].get("params") or {}), *(after["spec"].get("params") or {})}
    return {
        name: (old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and (name in given or (name in old and name in new))
    }


def _params(run: api.RunOut) -> dict[str, Any]:
    return {**(run["spec"].get("params") or {}), **(run.get("params") or {})}
