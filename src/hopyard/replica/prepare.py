"""Putting code, data, environment and checkpoint in place, from the node's caches where they are there
already."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from hopyard.config.home import Home
from hopyard.datasets.transport import Fetch
from hopyard.datasets.tree_cache import TreeCache, remove_tree
from hopyard.domain.ids import Digest
from hopyard.domain.launch import RestorePoint
from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError
from hopyard.private_files import make_folder, write_atomically
from hopyard.replica import preflight
from hopyard.replica.errors import NodeFault, PrepareFailed, prepare_error
from hopyard.replica.mount_namespace import MountView
from hopyard.replica.process_env import make_sdk_folder
from hopyard.replica.python_environment import Environments, PythonInterpreter, locked_packages
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection

_RETRY_DELAY_RANGE_S = (0.1, 2.0)
_SLOW_STEP_S = 0.5
# what it asks for is wrong, gone or damaged
_RUN_ERRORS = (SpecError, NotFound, MissingBlobs, IntegrityError)
T = TypeVar("T")


def open_tree_cache(spec: ReplicaSpec, folder: ReplicaDir) -> TreeCache:
    """The node's cache of trees. What was changed in it is told in the run's log."""
    launch = spec.launch
    names = {ref.manifest: f"dataset {ref.name}" for ref in launch.datasets} | {launch.code: "the code"}

    def changed(manifest: Digest) -> None:
        folder.record_note(
            f"{names.get(manifest, 'a checkpoint')} was changed on this node: fetching it again"
        )

    return TreeCache(Home(Path(spec.node.home)).trees, on_changed=changed)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    interpreter: PythonInterpreter
    datasets: dict[str, Path]
    restored: bool


@dataclass(slots=True)
class RunPreparation:
    """log: told what takes longer than nothing. `stack` keeps cached trees and environments in use until it
    closes."""

    folder: ReplicaDir
    spec: ReplicaSpec
    server: ServerConnection
    stack: ExitStack
    log: Callable[[str], None]

    def run(self) -> PreparedRun:
        """Raises PrepareFailed. Waits for a server that is away, however long."""
        try:
            return self._run()
        except HopyardError as failed:
            raise _prepare_error(failed) from failed
        except OSError as failed:
            raise prepare_error(
                failed,
                "cannot create the files of the run",
                is_node_fault=Path(self.spec.node.home) / "cache",
            ) from failed

    def _run(self) -> PreparedRun:
        launch = self.spec.launch
        began = time.monotonic()
        self.folder.create()
        self.folder.reserve_stop_space()
        preflight.check_node(self.spec, self.folder.root)
        if launch.study is not None:
            self.folder.write_study(launch.study, launch.secret)
        cache = open_tree_cache(self.spec, self.folder)
        if launch.code is not None:
            self._checkout(cache, launch.code)
        datasets = {}
        for ref in launch.datasets:
            if ref.manifest is None:
                raise PrepareFailed(f"the server named no version of dataset {ref.name}")
            datasets[ref.name] = self._tree(cache, ref.manifest, f"dataset {ref.name}")
            self._record_cache_key(ref.manifest, datasets[ref.name])
        if launch.restore is not None:
            tree = self._checkpoint(cache, launch.restore)
            self.folder.restore.unlink(missing_ok=True)
            self.folder.restore.symlink_to(tree)
        interpreter = self._interpreter()
        took = time.monotonic() - began
        if took > _SLOW_STEP_S:
            self.folder.record_note(f"code, data and environment ready in {took:.1f} s")
        return PreparedRun(interpreter, datasets, launch.restore is not None)

    def _checkout(self, cache: TreeCache, code: Digest) -> None:
        def fill() -> None:
            if any(self.folder.work.iterdir()):  # a try that the server's end broke off
                remove_tree(self.folder.work)
                make_folder(self.folder.work, private_parent=self.folder.root)
            cache.checkout(code, self.folder.work, self._fetch("code"))

        self._call_with_retry(fill, "code")

    def _tree(self, cache: TreeCache, manifest: Digest, what: str) -> Path:
        return self._call_with_retry(
            lambda: self.stack.enter_context(cache.open_tree(manifest, self._fetch(what))), what
        )

    def _checkpoint(self, cache: TreeCache, restore: RestorePoint) -> Path:
        """Where it cannot be had, all ranks of the next attempt start from the one before: the server decides
        that, for all of them."""
        try:
            return self._tree(cache, restore.manifest, f"checkpoint of step {restore.step}")
        except NodeFault:
            raise
        except PrepareFailed as failed:
            path = f"/attempts/{self.spec.launch.attempt}/checkpoints/{restore.step}/verify"
            found = self._call_with_retry(
                lambda: self.server.client.post(path), f"checkpoint of step {restore.step}"
            )
            if found["own"]:
                then = (
                    "the next attempt starts from the previous checkpoint"
                    if found["damaged"]
                    else "it is fetched again"
                )
                raise NodeFault(f"{failed.exit.reason.partition(' (')[0]}; {then}") from failed
            hint = "fork it from an earlier checkpoint: `--checkpoint STEP`; `hop info RUN` lists the steps"
            raise PrepareFailed(f"{failed.exit.reason.partition(' (')[0]}; {hint}") from failed

    def _fetch(self, what: str) -> Fetch:
        def fetch(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            self.log(f"fetching {what}")
            return self.server.client.fetch(manifest, digests)

        return fetch

    def _interpreter(self) -> PythonInterpreter:
        launch = self.spec.launch
        environments = Environments(
            Home(Path(self.spec.node.home)).envs,
            self._blob,
            self.log,
            self._record_cache_key,
            self.folder.record_note,
            secrets=launch.secrets,
            user=launch.run_name.partition("/")[0],
            view=home_view(self.spec, self.folder),
        )
        found = environments.prepare(launch.environment, self.stack, cwd=self.folder.work)
        if found.resolved and found.lock is not None and launch.rank == 0:
            lock = found.lock
            self._call_with_retry(lambda: self._report_lock(lock))
        return found

    def _record_cache_key(self, key: Digest, path: Path) -> None:
        """Mark what the node's caches hold now, so that runs that want it are placed here (see
        `engines.local.cached_keys`)."""
        home = Home(Path(self.spec.node.home))
        marker = home.cached_keys / key
        with suppress(OSError):  # a full disk: others fetch it elsewhere
            if not marker.exists():
                write_atomically(marker, os.fsencode(path.relative_to(home.cached_keys.parent)))

    def _report_lock(self, lock: bytes) -> None:
        """So that a fork of this run gets the same packages, whatever the index offers then."""
        digest = blake3(lock).hexdigest()
        client, body = self.server.client, {"lock": digest, "packages": dict(locked_packages(lock))}
        client.put_blob(digest, lock)
        try:
            client.post(f"/attempts/{self.spec.launch.attempt}/lock", body)
        except MissingBlobs:  # the server was started anew in between, and does not know what this run sent
            client.put_blob(digest, lock)
            client.post(f"/attempts/{self.spec.launch.attempt}/lock", body)

    def _blob(self, digest: Digest) -> bytes:
        def fetch() -> bytes:
            ((_, data),) = self.server.client.fetch(digest, [digest])
            if blake3(data).hexdigest() != digest:
                raise IntegrityError(f"blob {digest[:12]} arrived damaged")
            return data

        return self._call_with_retry(fetch)

    def _call_with_retry(self, call: Callable[[], T], what: str = "") -> T:
        """Ask the server until it answers: the run was accepted, so it starts when the server is back.
        what: is named when its bytes turn out to be damaged or missing there."""
        pause = _RETRY_DELAY_RANGE_S[0]
        while True:
            try:
                return call()
            except ServerUnavailable as away:
                log(f"prepare waits: {away}")
                if not self.folder.exists():
                    raise NodeFault("the run's folder was removed") from away
                self.log("waiting for the server")
                if not self.server.rediscover():
                    time.sleep(pause)
                    pause = min(pause * 2, _RETRY_DELAY_RANGE_S[1])
            except HopyardError as failed:
                if not what:
                    raise
                raise _prepare_error(failed, f"{what}: ") from failed


def _prepare_error(error: HopyardError, what: str = "") -> PrepareFailed:
    reason = what + " ".join([error.message, *(f"({hint})" for hint in error.hints)])
    return PrepareFailed(reason) if isinstance(error, _RUN_ERRORS) else NodeFault(reason)


def home_view(spec: ReplicaSpec, folder: ReplicaDir) -> MountView | None:
    """What the run's process sees of the home: caches and the way to the server, and its own folder, the only
    one that it may write to. What is made in the home later it does not see."""
    if not spec.node.namespaces:
        return None
    home = Home(Path(spec.node.home))
    make_sdk_folder(home.root)
    caches = home.trees.parent
    make_folder(home.address_dir)
    read_only = [caches, home.address_dir]
    if not (home.address_dir / home.socket_file.name).exists():  # the server proves itself on its port
        read_only.append(home.identity_file)
    root = home.root.resolve()
    links = {
        root / file.name: Path(home.address_dir.name, file.name)
        for file in (home.server_file, home.socket_file)
    }
    links |= {
        root / folder.name: folder.resolve() for folder in (caches, home.attempts) if folder.is_symlink()
    }
    return MountView(
        unmounted=[root],
        read_only=[path.resolve() for path in read_only if path.exists()],
        # what others fetched, and packed
        hidden=[path.resolve() for path in (caches / "uv", home.pack_cache) if path.exists()],
        # one mount: states of models are linked, not copied, from folder to folder
        writable=[Path(spec.node.gang_folder or folder.root).resolve()],
        links=links,
    )
