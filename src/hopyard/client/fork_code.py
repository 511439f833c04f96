"""The parts of a fork that this machine knows: other code, and what the interpreter has installed by now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hopyard.api_client.client import Client
from hopyard.client.build_environment import changed_metadata, interpreter_environment
from hopyard.client.code_symlinks import kept_links
from hopyard.client.feedback import Notify, ProgressFactory, no_progress, print_notice
from hopyard.client.git_state import GitProbe
from hopyard.client.local_requirements import recorded_archives
from hopyard.client.pack_code import pack_code
from hopyard.client.run_files import read_code_file
from hopyard.client.submit import check_settings_files, git_json, send_with_blobs

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.datasets.packed_tree import PackedTree

_MAX_NAMED_PACKAGES = 4


def fork_run(
    client: Client,
    source: api.RunOut,
    changes: api.ForkIn,
    *,
    code: Path | None = None,
    notify: Notify = print_notice,
    on_progress: ProgressFactory = no_progress,
) -> tuple[Client, api.RunOut]:
    """Submits a fork of `source`. Returns a client of the server that accepted it, and the run.

    code: a folder with the new code, in place of that of `source`. A fork runs with what its interpreter has
    installed by now, and records it; a difference to `source` is notified. An environment of requirements is
    built again as it was, except that of inline metadata that the new code changes.
    """
    recorded = source["spec"].get("environment") or cast("api.EnvironmentIn", {})
    extras: dict[str, bytes] = {}
    environment = None if code is None else _changed_metadata(client, source, code, extras, notify)
    if environment is None:
        environment = _current_environment(source, code, notify)
    if environment is not None:
        changes["environment"] = environment
        environment["links"] = recorded.get("links") or {}
    if code is None:
        return client, client.fork_run(source["id"], changes, plan=1)
    probe = GitProbe(code, notify=notify)
    try:
        tree, links = pack_new_code(client, source, code, probe, notify=notify, on_progress=on_progress)
        if links != (recorded.get("links") or {}):
            changes["environment"] = {**(environment or recorded), "links": links}
        changes["code"], changes["git"] = tree.digest, git_json(probe, extras)
    finally:
        probe.close()
    return send_with_blobs(
        client,
        lambda client: client.fork_run(source["id"], changes, plan=1),
        tree,
        extras,
        on_progress=on_progress,
    )


def pack_new_code(
    client: Client,
    source: api.RunOut,
    code: Path,
    probe: GitProbe,
    *,
    notify: Notify,
    on_progress: ProgressFactory,
) -> tuple[PackedTree, dict[str, str]]:
    """Packs a folder as the code of a run that follows `source`. Returns its tree, and its links out of the
    folder. Raises SpecError for code that lacks a script of the run."""
    spec = source["spec"]
    commands = _commands(spec)
    places = [ref.get("path") or "" for ref in spec.get("datasets") or ()]
    requirements = (spec.get("environment") or {}).get("requirements")
    needed: set[str] = set()
    if requirements:
        data = b"".join(blob for _, blob in client.fetch(requirements, [requirements]))
        needed = recorded_archives(data.decode(errors="replace"), code)
    tree = pack_code(
        code, probe, commands, needed=needed, notify=notify, on_progress=on_progress, omitted=places
    )
    check_settings_files(tree)
    return tree, kept_links(tree, places, notify)


def _commands(spec: Any) -> list[Sequence[str]]:
    """Returns the commands of a run and of its trials."""
    trial = (spec.get("study") or {}).get("trial") or {}
    return [role["command"] for role in (*spec["roles"], *(trial.get("roles") or ()))]


def _changed_metadata(
    client: Client, source: api.RunOut, code: Path, extras: dict[str, bytes], notify: Notify
) -> api.EnvironmentIn | None:
    """Returns the environment of the inline metadata that the new code has changed, None without a change."""
    spec = source["spec"]
    name, environment = changed_metadata(
        cast("api.EnvironmentIn", spec.get("environment") or {}),
        _commands(spec),
        code,
        lambda path: read_code_file(client, source, os.path.normpath(path)),
        extras,
    )
    if environment is not None:
        notify(
            f"the environment is built from the inline metadata of {name}, which has changed since "
            f"{source['name']}"
        )
    return environment


def _current_environment(source: api.RunOut, code: Path | None, notify: Notify) -> api.EnvironmentIn | None:
    """Returns the environment of the run's interpreter as it is now; None for an environment that is built,
    and for an interpreter that is not on this machine."""
    recorded = source["spec"].get("environment") or cast("api.EnvironmentIn", {})
    interpreter = recorded.get("interpreter") or ""
    if recorded.get("lock"):
        count = sum(name != "python" for name in recorded.get("packages") or {})
        plural = "s" if count != 1 else ""
        notify(f"the fork uses the {count} package{plural} that {source['name']} installed")
    if recorded.get("requirements") or recorded.get("lock") or not os.access(interpreter, os.X_OK):
        return None
    folder = code or Path(recorded.get("folder") or os.devnull)
    current = interpreter_environment(folder, interpreter, notify)
    if not current.get("packages"):
        return None
    changed = changed_packages(recorded.get("packages") or {}, current["packages"])
    if changed:
        more = f" and {len(changed) - _MAX_NAMED_PACKAGES} more" if len(changed) > _MAX_NAMED_PACKAGES else ""
        notify(
            f"note: {interpreter} has changed since {source['name']}: "
            f"{', '.join(changed[:_MAX_NAMED_PACKAGES])}{more}; the fork uses what is installed now"
        )
    return current


def changed_packages(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns a text for each package with another version; none if the packages before are unknown."""
    if not before:
        return []
    return [
        f"{name} {before.get(name, 'absent')} → {now.get(name, 'absent')}"
        for name in sorted({*before, *now} - {"python"})  # the version of Python is known at the start only
        if before.get(name) != now.get(name)
    ]
