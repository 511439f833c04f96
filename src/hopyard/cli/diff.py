"""`hop diff`: the differences between two runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import json_option, run_argument
from hopyard.cli.run_text import fork_source_text, run_title
from hopyard.cli.terminal import console
from hopyard.client.run_commands import list_run_commands
from hopyard.client.run_files import read_stored_file
from hopyard.client.run_lookup import get_run
from hopyard.config.key_values import format_value
from hopyard.config.resource_requests import TopologyRequest, format_replicas, format_topology
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.text_decoding import decode_source

if TYPE_CHECKING:
    from hopyard.api_client import types as api

HIDDEN_TEXT = "***"  # the server's text for another user's values
_MAX_DIFF_BYTES = 1024 * 1024  # larger files are compared as a whole
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECTIONS = (
    *("params", "changes", "tags", "notes", "study", "packages", "datasets"),
    *("resources", "environment", "results"),
)


@dataclass(frozen=True, slots=True)
class FileChange:
    """diff: unified, as text; empty where the file is binary or too large to show."""

    path: str
    kind: str  # added, removed, changed
    diff: str = ""


@dataclass(frozen=True, slots=True)
class RunDifference:
    """`sections[name][key]` holds both sides; None for a missing value.

    hidden: variables whose values both belong to another user, so it is unknown whether they differ.
    """

    files: tuple[FileChange, ...]
    sections: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()


@click.command("diff")
@run_argument("left", metavar="RUN")
@run_argument("right", metavar="RUN")
@json_option
def diff(left: str, right: str, as_json: bool) -> None:
    """Compare two runs: code, parameters, packages, dataset versions, resources and results."""
    from hopyard.api_client.local_server import connect

    client = connect()
    left_run, right_run = (client.get_run(get_run(client, ref)["id"]) for ref in (left, right))
    difference = compare_runs(client, left_run, right_run)
    if as_json:
        files = [
            {"path": change.path, "kind": change.kind, "diff": change.diff} for change in difference.files
        ]
        sections = {
            name: {key: list(pair) for key, pair in rows.items()}
            for name, rows in difference.sections.items()
        }
        console.print_json(
            {
                "left": left_run["name"],
                "right": right_run["name"],
                "code": files,
                **sections,
                "hidden": list(difference.hidden),
            }
        )
        return
    console.print_lines(_section_lines(run_title(left_run), run_title(right_run), difference))


def compare_runs(client: Client, left: api.RunOut, right: api.RunOut) -> RunDifference:
    """All that differs between two runs."""
    sides = [{**_comparable_fields(run), "changes": _changes(client, run)} for run in (left, right)]
    sections = {name: _differing_keys(sides[0][name], sides[1][name]) for name in _SECTIONS}
    hidden = [
        name
        for name, value in (left["spec"].get("env") or {}).items()
        if value == (right["spec"].get("env") or {}).get(name) == HIDDEN_TEXT
    ]
    return RunDifference(
        tuple(_file_changes(client, left["spec"].get("code"), right["spec"].get("code"))),
        sections,
        tuple(hidden),
    )


def _changes(client: Client, run: api.RunOut) -> dict[str, str]:
    """Returns the parameters that users set while the run ran, with the step."""
    return {
        f"{name} at step {command['step']}": f"{format_value(before)} -> {format_value(after)}"
        for command in list_run_commands(client, run)
        for name, (before, after) in command["changes"].items()
    }


def _comparable_fields(run: api.RunOut) -> dict[str, dict[str, Any]]:
    spec = run["spec"]
    environment = spec.get("environment") or {}
    resources: dict[str, Any] = {}
    for role in spec["roles"]:
        import shlex

        resources[f"{role['name']} command"] = shlex.join(role["command"])
        resources[f"{role['name']} replicas"] = format_replicas(role["min_replicas"], role["replicas"])
        resources |= {
            f"{role['name']} {key}": value for key, value in {**role["resources"], **role["where"]}.items()
        }
        resources[f"{role['name']} topology"] = _topology_text(role)
    latest = {name: pair[1] for name, pair in (run.get("latest") or {}).items()}
    return {
        "params": dict(run.get("params") or {}),
        "tags": dict(spec.get("tags") or {}),
        "notes": {"note": run.get("note") or None},
        "study": _study_fields(spec.get("study")),
        "packages": dict(environment.get("packages") or {}),
        "datasets": {ref["name"]: ref["version"] for ref in spec.get("datasets") or ()},
        "resources": resources
        | {"time limit (s)": spec.get("time_limit_s"), "topology": _topology_text(spec)}
        | {key: spec.get(key) for key in ("queue", "priority", "preemptible")},
        "environment": {
            "interpreter": environment.get("interpreter") or None,
            "requirements": environment.get("requirements"),
            "lock": environment.get("lock"),
            **{f"editable {name}": source for name, source in (environment.get("editable") or {}).items()},
            **{f"link {path}": target for path, target in (environment.get("links") or {}).items()},
            **{f"env {key}": value for key, value in (spec.get("env") or {}).items()},
            **{f"machine env {key}": value for key, value in (run.get("machine_env") or {}).items()},
            "secrets": ", ".join(spec.get("secrets") or ()) or None,
        },
        "results": {"phase": run["phase"], **latest, **(run.get("summary") or {})},
    }


def _study_fields(study: api.StudyIn | None) -> dict[str, Any]:
    """Returns the fields of a study by their names in its file."""
    if study is None:
        return {}
    begin, mop = study.get("beginning"), study.get("mop")
    plan = mop.get("partitions") if mop else None
    space = {f"space.{parameter['name']}": _range_text(parameter) for parameter in study["space"]}
    plain = {key: study[key] for key in ("metric", "goal", "parallel", "trials", "concurrent", "seed")}
    partitions = {f"partitions.{key}": value for key, value in (dict(plan) if plan else {}).items()}
    return {
        **plain,
        "epochs": study["max_epochs"],
        "searcher": study["searcher"]["name"],
        **{f"searcher.{key}": value for key, value in study["searcher"]["options"].items()},
        "begins with": fork_source_text(begin, study) if begin else None,
        **space,
        **{
            key: value
            for key, value in (mop or {}).items()
            if key in ("trainable", "workers", "deterministic", "threads", "hybrid", "order")
        },
        **partitions,
    }


def _range_text(parameter: api.ChoiceIn | api.UniformIn | api.IntegerIn | api.ConstantIn) -> Any:
    if parameter["kind"] == "constant":
        return parameter["value"]
    own = {
        key: value
        for key, value in parameter.items()
        if key not in ("name", "kind") and value not in (None, [], False)
    }
    return f"{parameter['kind']} " + " ".join(
        f"{key}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for key, value in own.items()
    )


def _topology_text(spec: api.RunSpec | api.RoleSpec) -> str | None:
    topology = spec.get("topology")
    return (
        format_topology(TopologyRequest(topology["rule"], topology["level"], topology["slice"]))
        if topology
        else None
    )


def _differing_keys(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*left, *right])
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


# -- code ----------------------------------------------------------------------------------------------------


def _file_changes(client: Client, left: str | None, right: str | None) -> Iterator[FileChange]:
    if left == right:
        return
    left_manifest, right_manifest = _manifest(client, left), _manifest(client, right)
    old, new = {f.path: f for f in left_manifest.files}, {f.path: f for f in right_manifest.files}
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before != after:
            kind = "added" if before is None else "removed" if after is None else "changed"
            yield FileChange(
                path,
                kind,
                _unified_diff(
                    path, _file_lines(client, left, before), _file_lines(client, right, after), before, after
                ),
            )
    links = [{link.path: link.target for link in side.links} for side in (left_manifest, right_manifest)]
    for path, (was, now) in _differing_keys(links[0], links[1]).items():
        yield FileChange(
            path,
            "added" if was is None else "removed" if now is None else "changed",
            f"link: {was or 'none'} -> {now or 'none'}\n",
        )


def _manifest(client: Client, digest: str | None) -> Manifest:
    if digest is None:
        return Manifest()
    from hopyard.datasets.transfer import fetch_manifest
    from hopyard.domain.ids import Digest

    return fetch_manifest(Digest(digest), client)


def _file_lines(client: Client, manifest: str | None, entry: FileEntry | None) -> list[str] | None:
    """Returns the lines of a file: none for a missing file, None for a binary or large one."""
    if entry is None or manifest is None:
        return []
    if entry.size > _MAX_DIFF_BYTES:
        return None
    data = b"".join(read_stored_file(client, manifest, entry))
    if b"\0" in data:
        return None
    return decode_source(data).splitlines(keepends=True)


def _unified_diff(
    path: str, before: list[str] | None, after: list[str] | None, old: FileEntry | None, new: FileEntry | None
) -> str:
    import difflib

    if before is None or after is None:
        return ""
    mode = ""
    if old is not None and new is not None and old.executable != new.executable:
        mode = (
            f"mode: {'executable' if old.executable else 'plain'} -> "
            f"{'executable' if new.executable else 'plain'}\n"
        )
    names = (f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null")
    lines = [
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, *names)
    ]
    return mode + "".join(lines)


# -- text ----------------------------------------------------------------------------------------------------


def _section_lines(left: str, right: str, difference: RunDifference) -> Iterator[str]:
    yield console.paint(f"{left}  ->  {right}", "bold")
    if not difference.files and not any(difference.sections.values()):
        yield "no difference"
    if difference.hidden:
        yield f"not compared, since others' values are hidden: env {', '.join(difference.hidden)}"
    for name, rows in difference.sections.items():
        if rows:
            yield ""
            yield console.paint(name, "bold")
            texts = _version_texts(rows) if name == "packages" else _value_texts(rows)
            yield from (f"  {line}" for line in _side_by_side_table(texts))
    if difference.files:
        yield ""
        yield console.paint("code", "bold")
        for change in difference.files:
            yield f"  {change.kind} {change.path}" + ("" if change.diff else "  (binary or large)")
        for change in difference.files:
            if change.diff:
                yield ""
                yield from (_paint_diff_line(line.expandtabs()) for line in change.diff.splitlines())


def _side_by_side_table(rows: dict[str, tuple[str, str]]) -> list[str]:
    width = max(map(len, rows))
    return [f"{key:<{width}}  {before}  ->  {after}" for key, (before, after) in rows.items()]


def _value_texts(rows: dict[str, tuple[Any, Any]]) -> dict[str, tuple[str, str]]:
    return {key: (_value_text(a), _value_text(b)) for key, (a, b) in rows.items()}


def _version_texts(rows: dict[str, tuple[Any, Any]]) -> dict[str, tuple[str, str]]:
    """Returns versions without quotes, although some look like numbers."""
    return {key: (str(a or "-"), str(b or "-")) for key, (a, b) in rows.items()}


def _value_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:12]
    return format_value(value) if isinstance(value, (str, int, bool)) else str(value)


def _paint_diff_line(line: str) -> str:
    if line.startswith(("+++", "---")):
        return console.paint(line, "bold")
    return console.paint(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1]))
