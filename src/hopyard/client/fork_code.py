"""The parts of a fork that this machine knows: other code, and what the interpreter has installed by now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    if code is None:
        current = _current_environment(source, None, changes, notify)
        if current is not None:
            changes["environment"] = {**current, "links": _recorded_environment(source).get("links") or {}}
        return client, client.fork_run(source["id"], changes, plan=1)
    new = pack_new_code(client, source, code, notify=notify, on_progress=on_progress)
    current = None if new.metadata is not None else _current_environment(source, code, changes, notify)
    environment = new.environment(source, current)
    if environment is not None:
        changes["environment"] = environment
    changes["code"], changes["git"] = new.tree.digest, new.git
    return send_with_blobs(
        client,
        lambda client: client.fork_run(source["id"], changes, plan=1),
        new.tree,
        new.extras,
        on_progress=on_progress,
    )


@dataclass(frozen=True, slots=True)
class NewCode:
    """Code that replaces that of a run. git: its state. links: its links out of the folder. metadata: the
    environment of inline metadata that has changed. extras: blobs beside the tree."""

    tree: PackedTree
    git: api.GitIn | None
    links: dict[str, str]
    metadata: api.EnvironmentIn | None
    extras: dict[str, bytes]

    def environment(
        self, source: api.RunOut, current: api.EnvironmentIn | None = None
    ) -> api.EnvironmentIn | None:
        """Returns the environment of a run of this code that follows `source`; None for that of `source`.
        current: what the interpreter of `source` has by now."""
        recorded = _recorded_environment(source)
        changed = self.metadata or current
        if changed is None and self.links == (recorded.get("links") or {}):
            return None
        return {**(changed or recorded), "links": self.links}


def pack_new_code(
    client: Client, source: api.RunOut, code: Path, *, notify: Notify, on_progress: ProgressFactory
) -> NewCode:
    """Packs a folder as the code of a run that follows `source`. Raises SpecError for code that lacks a
    script of the run."""
    spec = source["spec"]
    extras: dict[str, bytes] = {}
    metadata = _changed_metadata(client, source, code, extras, notify)
    places = [ref.get("path") or "" for ref in spec.get("datasets") or ()]
    requirements = _recorded_environment(source).get("requirements")
    needed: set[str] = set()
    if requirements:
        data = b"".join(blob for _, blob in client.fetch(requirements, [requirements]))
        needed = recorded_archives(data.decode(errors="replace"), code)
    probe = GitProbe(code, notify=notify)
    try:
        tree = pack_code(
            code,
            probe,
            _commands(spec),
            needed=needed,
            notify=notify,
            on_progress=on_progress,
            omitted=places,
        )
        check_settings_files(tree)
        return NewCode(tree, git_json(probe, extras), kept_links(tree, places, notify), metadata, extras)
    finally:
        probe.close()


def _recorded_environment(source: api.RunOut) -> api.EnvironmentIn:
    return cast("api.EnvironmentIn", source["spec"].get("environment") or {})


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
        _recorded_environment(source),
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


def _current_environment(
    source: api.RunOut, code: Path | None, changes: api.ForkIn, notify: Notify
) -> api.EnvironmentIn | None:
    """Returns the environment of the run's interpreter as it is now; None for an environment that is built,
    and for an interpreter that is not on this machine."""
    recorded = _recorded_environment(source)
    interpreter = recorded.get("interpreter") or ""
    if recorded.get("lock"):
        count = sum(name != "python" for name in recorded.get("packages") or {})
        plural = "s" if count != 1 else ""
        notify(f"the fork uses the {count} package{plural} that {source['name']} installed")
    if recorded.get("requirements") or recorded.get("lock") or not os.access(interpreter, os.X_OK):
        return None
    folder = code or Path(recorded.get("folder") or os.devnull)
    variables = {**(source["spec"].get("env") or {}), **(changes.get("env") or {})}
    current = interpreter_environment(folder, interpreter, notify, variables.get("PYTHONPATH", ""))
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
