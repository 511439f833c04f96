"""The checks of `hop doctor --node`: those that a replica makes before its script starts, by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from hopyard.cli.terminal import console
from hopyard.config.home import Home
from hopyard.domain.preflight import Check
from hopyard.errors import HopyardError, NotFound

_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """Result of one check of a node. warn: new runs do not start there now."""

    node: str
    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


def check_nodes(name: str, *, as_json: bool) -> int:
    """Checks the nodes of this machine, or the one with this name, and prints the findings. Returns the exit
    code: 1 if a check failed. Raises NotFound for a node that is not part of this machine."""
    from hopyard.app import declared_nodes

    home = Home.default()
    nodes, is_reported = declared_nodes(home)
    chosen = [node for node in nodes if name in ("", node.id)]
    if not chosen:
        raise NotFound(
            f"`{name}` is no node of this machine",
            hints=(
                f"its nodes are {', '.join(node.id for node in nodes)}",
                "run `hop doctor --node` on the machine of the node",
            ),
        )
    states = _server_states()
    findings: list[NodeFinding] = []
    for node in chosen:
        gpus = [gpu.index for gpu in node.gpus] if is_reported else []
        findings += [
            *_check_machine(home, node.id, gpus),
            *_check_prepared(home, node.id),
            *_check_connection(node.id),
            *_check_state(node.id, states),
        ]
    if as_json:
        console.print_json([asdict(finding) for finding in findings])
    else:
        _print_table(findings)
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _print_table(findings: Sequence[NodeFinding]) -> None:
    rows = [[finding.node, finding.check, finding.level, finding.text] for finding in findings]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    head, *lines = console.format_table(["NODE", "CHECK", "RESULT", "FOUND"], rows, width=width)
    console.print_line(head)
    for finding, line in zip(findings, lines, strict=True):
        console.print_line(console.paint(line, _STYLE[finding.level]) if finding.level != "ok" else line)
    for finding in findings:
        if finding.hint:
            console.print_line(f"hint: {finding.hint} ({finding.node}, {finding.check})")


def _check_machine(home: Home, node: str, gpus: Sequence[int]) -> Iterator[NodeFinding]:
    from hopyard.config.node_checks import check_node

    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    for check, problem in check_node(folder, home, gpus):
        yield NodeFinding(node, check, "fail" if problem else "ok", problem or "no problem")
    if not gpus:
        yield NodeFinding(node, Check.GPU, "ok", "absent: no GPU that a driver reports")


def _check_prepared(home: Home, node: str) -> Iterator[NodeFinding]:
    """Checks what is prepared in the caches: environments, and a sample of the files of datasets."""
    from hopyard.datasets.tree_cache import TreeCache
    from hopyard.replica.preflight import find_python_problem
    from hopyard.replica.python_environment import is_complete

    environments = [path.parents[1] for path in home.envs.glob("*/bin/python")]
    problems = [
        problem
        for folder in environments
        if is_complete(folder) and (problem := find_python_problem(str(folder / "bin" / "python")))
    ]
    found = problems[0] if problems else f"{len(environments)} environments start"
    hint = "remove its folder to build it again" if problems else ""
    yield NodeFinding(node, Check.ENVIRONMENT, "fail" if problems else "ok", found, hint)
    cache, trees, damaged = TreeCache(home.trees), 0, ""
    for manifest in cache.list_manifests():
        trees += 1
        damaged = damaged or cache.find_damage(manifest)
    found = f"{damaged} has other bytes than were stored" if damaged else f"{trees} trees, a sample of each"
    hint = "the next run that uses it fetches it again; check the disk" if damaged else ""
    yield NodeFinding(node, Check.DATASET, "fail" if damaged else "ok", found, hint)


def _check_connection(node: str) -> Iterator[NodeFinding]:
    """Checks a connection as two replicas of this machine have it."""
    from hopyard.domain.pair_verdict import PairReport, judge_pairs
    from hopyard.replica.pair_checks import probe_this_machine

    probe = probe_this_machine()
    failure = judge_pairs([PairReport(0, {1: probe})], {0: node, 1: node}).failure
    if failure is not None:
        yield NodeFinding(node, failure.check, "fail", failure.found, failure.hint)
        return
    text = f"replicas here connect, {console.format_bytes(int(probe.bytes_per_s))}/s"
    yield NodeFinding(node, Check.PAIRS, "ok", text)


def _server_states() -> dict[str, tuple[bool, str]]:
    """Returns of each node whether it is cordoned, and why; nothing without a server."""
    from hopyard.api_client.local_server import connect

    try:
        nodes = connect(start=False).get_nodes()["nodes"]
    except HopyardError:
        return {}
    return {node["id"]: (node["cordoned"], node["cordon_reason"]) for node in nodes}


def _check_state(node: str, states: dict[str, tuple[bool, str]]) -> Iterator[NodeFinding]:
    is_cordoned, reason = states.get(node, (False, ""))
    if is_cordoned:
        hint = f"run `hop node uncordon {node}` when the cause is gone"
        yield NodeFinding(node, "cordon", "warn", reason or "cordoned", hint)
