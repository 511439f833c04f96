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
from hopyard.datasets.cache import TreeCache, remove_tree
from hopyard.datasets.transport import Fetch
from hopyard.domain.ids import Digest
from hopyard.domain.launch import Restore
from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError
from hopyard.private_files import make_folder, write_atomically
from hopyard.replica import preflight
from hopyard.replica.diary import say
from hopyard.replica.environment import Environments, Interpreter, packages_of
from hopyard.replica.failure import NodeFault, PrepareFailed, failure_of
from hopyard.replica.folder import Folder
from hopyard.replica.mounts import View
from hopyard.replica.rendezvous import sdk_folder
from hopyard.replica.server import ServerLine

_RETRY_S = (0.1, 2.0)
_WORTH_A_NOTE_S = 0.5
# what it asks for is wrong, gone or damaged
_OF_THE_RUN = (SpecError, NotFound, MissingBlobs, IntegrityError)
T = TypeVar("T")


def tree_cache(spec: ReplicaSpec, folder: Folder) -> TreeCache:
    """The node's cache of trees. What was changed in it is told in the run's log."""
    launch = spec.launch
    names = {ref.manifest: f"dataset {ref.name}" for ref in launch.datasets} | {launch.code: "the code"}

    def changed(manifest: Digest) -> None:
        folder.note(
            f"{names.get(manifest, 'a checkpoint')} had been changed on this node since it was put "
            "there: it is fetched again"
        )

    return TreeCache(Home(Path(spec.node.home)).trees, changed=changed)


@dataclass(frozen=True, slots=True)
class Prepared:
    interpreter: Interpreter
    datasets: dict[str, Path]
    restored: bool


@dataclass(slots=True)
class Preparation:
    """say: told what takes longer than nothing. `stack` keeps cached trees and environments in use until it
    closes."""

    folder: Folder
    spec: ReplicaSpec
    server: ServerLine
    stack: ExitStack
    say: Callable[[str], None]

    def run(self) -> Prepared:
        """Raises PrepareFailed. Waits for a server that is away, however long."""
        try:
            return self._run()
        except HopyardError as failed:
            raise _failure(failed) from failed
        except OSError as failed:
            raise failure_of(
                failed,
                "the run's files could not be put in place",
                of_node=Path(self.spec.node.home) / "cache",
            ) from failed

    def _run(self) -> Prepared:
        launch = self.spec.launch
        began = time.monotonic()
        self.folder.create()
        self.folder.reserve_stop()
        preflight.check(self.spec, self.folder.root)
        if launch.study is not None:
            self.folder.write_study(launch.study, launch.secret)
        cache = tree_cache(self.spec, self.folder)
        if launch.code is not None:
            self._checkout(cache, launch.code)
        datasets = {}
        for ref in launch.datasets:
            if ref.manifest is None:
                raise PrepareFailed(f"the server did not say which version of dataset {ref.name} to use")
            datasets[ref.name] = self._tree(cache, ref.manifest, f"dataset {ref.name}")
            self._hold(ref.manifest, datasets[ref.name])
        if launch.restore is not None:
            tree = self._checkpoint(cache, launch.restore)
            self.folder.restore.unlink(missing_ok=True)
            self.folder.restore.symlink_to(tree)
        interpreter = self._interpreter()
        took = time.monotonic() - began
        if took > _WORTH_A_NOTE_S:
            self.folder.note(f"code, data and environment ready in {took:.1f} s")
        return Prepared(interpreter, datasets, launch.restore is not None)

    def _checkout(self, cache: TreeCache, code: Digest) -> None:
        def fill() -> None:
            if any(self.folder.work.iterdir()):  # a try that the server's end broke off
                remove_tree(self.folder.work)
                make_folder(self.folder.work, below=self.folder.root)
            cache.checkout(code, self.folder.work, self._fetch("code"))

        self._patiently(fill, "code")

    def _tree(self, cache: TreeCache, manifest: Digest, what: str) -> Path:
        return self._patiently(lambda: self.stack.enter_context(cache.use(manifest, self._fetch(what))), what)

    def _checkpoint(self, cache: TreeCache, restore: Restore) -> Path:
        """Where it cannot be had, all ranks of the next attempt start from the one before: the server decides
        that, for all of them."""
        try:
            return self._tree(cache, restore.manifest, f"checkpoint of step {restore.step}")
        except NodeFault:
            raise
        except PrepareFailed as failed:
            path = f"/attempts/{self.spec.launch.attempt}/checkpoints/{restore.step}/verify"
            found = self._patiently(
                lambda: self.server.client.post(path), f"checkpoint of step {restore.step}"
            )
            if found["own"]:
                then = (
                    "the next attempt starts from the one before"
                    if found["damaged"]
                    else "it is fetched again"
                )
                raise NodeFault(f"{failed.exit.reason.partition(' (')[0]}; {then}") from failed
            hint = "fork it with `--checkpoint STEP` of an earlier one: `hop info RUN` lists them"
            raise PrepareFailed(f"{failed.exit.reason.partition(' (')[0]}; {hint}") from failed

    def _fetch(self, what: str) -> Fetch:
        def fetch(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            self.say(f"fetching {what}")
            return self.server.client.fetch(manifest, digests)

        return fetch

    def _interpreter(self) -> Interpreter:
        launch = self.spec.launch
        environments = Environments(
            Home(Path(self.spec.node.home)).envs,
            self._blob,
            self.say,
            self._hold,
            self.folder.note,
            secrets=launch.secrets,
            user=launch.run_name.partition("/")[0],
            view=view_of_home(self.spec, self.folder),
        )
        found = environments.ready(launch.environment, self.stack, cwd=self.folder.work)
        if found.resolved and found.lock is not None and launch.rank == 0:
            lock = found.lock
            self._patiently(lambda: self._report_lock(lock))
        return found

    def _hold(self, key: Digest, path: Path) -> None:
        """Mark what the node's caches hold now, so that runs that want it are placed here (see
        `engines.local.held`)."""
        home = Home(Path(self.spec.node.home))
        marker = home.held / key
        with suppress(OSError):  # a full disk: others fetch it elsewhere
            if not marker.exists():
                write_atomically(marker, os.fsencode(path.relative_to(home.held.parent)))

    def _report_lock(self, lock: bytes) -> None:
        """So that a fork of this run gets the same packages, whatever the index offers then."""
        digest = blake3(lock).hexdigest()
        client, body = self.server.client, {"lock": digest, "packages": dict(packages_of(lock))}
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
                raise IntegrityError(f"blob {digest[:12]} came damaged")
            return data

        return self._patiently(fetch)

    def _patiently(self, ask: Callable[[], T], what: str = "") -> T:
        """Ask the server until it answers: the run was accepted, so it starts when the server is back.
        what: is named when its bytes turn out to be damaged or missing there."""
        pause = _RETRY_S[0]
        while True:
            try:
                return ask()
            except ServerUnavailable as away:
                say(f"prepare waits: {away}")
                if not self.folder.is_there():
                    raise NodeFault("the run's folder was removed") from away
                self.say("waiting for the server")
                if not self.server.look_again():
                    time.sleep(pause)
                    pause = min(pause * 2, _RETRY_S[1])
            except HopyardError as failed:
                if not what:
                    raise
                raise _failure(failed, f"{what}: ") from failed


def _failure(failed: HopyardError, what: str = "") -> PrepareFailed:
    reason = what + " ".join([failed.message, *(f"({hint})" for hint in failed.hints)])
    return PrepareFailed(reason) if isinstance(failed, _OF_THE_RUN) else NodeFault(reason)


def view_of_home(spec: ReplicaSpec, folder: Folder) -> View | None:
    """What the run's process sees of the home: caches and the way to the server, and its own folder, the only
    one that it may write to. What is made in the home later it does not see."""
    if not spec.node.namespaces:
        return None
    home = Home(Path(spec.node.home))
    sdk_folder(home.root)
    caches = home.trees.parent
    make_folder(home.address)
    read_only = [caches, home.address]
    if not (home.address / home.socket_file.name).exists():  # the server proves itself on its port
        read_only.append(home.identity_file)
    root = home.root.resolve()
    links = {
        root / file.name: Path(home.address.name, file.name) for file in (home.server_file, home.socket_file)
    }
    links |= {
        root / folder.name: folder.resolve() for folder in (caches, home.attempts) if folder.is_symlink()
    }
    return View(
        bare=[root],
        read_only=[path.resolve() for path in read_only if path.exists()],
        # what others fetched, and packed
        hidden=[path.resolve() for path in (caches / "uv", home.pack_cache) if path.exists()],
        # one mount: states of models are linked, not copied, from folder to folder
        writable=[Path(spec.node.gang_folder or folder.root).resolve()],
        links=links,
    )
