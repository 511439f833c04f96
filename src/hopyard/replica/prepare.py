"""Prepares code, data, environment and checkpoint, from the node's caches if they are there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blake3 import blake3

from hopyard.config.home import Home
from hopyard.datasets.transport import Fetch
from hopyard.datasets.tree_cache import TreeCache
from hopyard.domain.ids import Digest
from hopyard.domain.launch import RestorePoint
from hopyard.domain.replica import ReplicaSpec
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, NotFound, ServerUnavailable, SpecError
from hopyard.private_files import make_folder, remove_tree, write_atomically
from hopyard.replica.code_symlinks import place_links
from hopyard.replica.dataset_mounts import DatasetMounts
from hopyard.replica.errors import (
    NodeFault,
    PreflightFailed,
    PreparationInterrupted,
    PrepareFailed,
    prepare_error,
)
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.mount_namespace import MountView
from hopyard.replica.preflight import ReplicaPreflight
from hopyard.replica.process_env import make_sdk_folder
from hopyard.replica.python_environment import Environments, PythonInterpreter, locked_packages
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.replica_log import log
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.server_connection import ServerConnection

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_RETRY_DELAY_RANGE_S = (0.1, 2.0)
_SLOW_STEP_S = 0.5
IMAGE_PYTHON = "python3"  # on PATH of an image
# the run's inputs are invalid, deleted or damaged
_RUN_ERRORS = (SpecError, NotFound, MissingBlobs, IntegrityError)
T = TypeVar("T")


def open_tree_cache(spec: ReplicaSpec, folder: ReplicaDir) -> TreeCache:
    """Returns the node's cache of trees. A cached tree that was modified is reported in the run's events."""
    launch = spec.launch
    names = {ref.manifest: f"dataset {ref.name}" for ref in launch.datasets} | {launch.code: "the code"}

    def report_changed(manifest: Digest) -> None:
        folder.record_note(
            f"{names.get(manifest, 'a checkpoint')} was changed on this node: fetching it again"
        )

    return TreeCache(Home(Path(spec.node.home)).trees, on_changed=report_changed)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    interpreter: PythonInterpreter
    datasets: dict[str, Path]
    restored: bool
    mounts: dict[Path, Path]  # datasets, as in `MountView.mounts`
    restore: Path | None = None  # the tree of the checkpoint


@dataclass(slots=True)
class RunPreparation:
    """log: called with each slow step. `stack` keeps cached trees and environments in use until it closes."""

    folder: ReplicaDir
    spec: ReplicaSpec
    server: ServerConnection
    stack: ExitStack
    log: Callable[[str], None]
    run_folder: RunFolder
    preflight: ReplicaPreflight

    def run(self) -> PreparedRun:
        """Prepares the run. Raises PrepareFailed. Waits for an unavailable server without a time limit."""
        is_done = False
        try:
            prepared = self._run_or_fail()
            is_done = True
            return prepared
        except PreparationInterrupted as error:  # at most once, but also while another error is handled
            self.preflight.report(error.failure)
            raise PreflightFailed(error.failure) from error
        finally:
            if not is_done:
                self.preflight.close()

    def _run_or_fail(self) -> PreparedRun:
        """Prepares the run. Raises PrepareFailed and PreparationInterrupted; afterwards no failed check
        interrupts this thread."""
        try:
            return self._run()
        except PreflightFailed as error:
            self.preflight.report(error.failure)
            raise
        except HopyardError as error:
            raise _prepare_error(error) from error
        except OSError as error:
            raise prepare_error(
                error,
                "cannot create the files of the run",
                is_node_fault=Path(self.spec.node.home) / "cache",
            ) from error
        finally:
            self.preflight.disable_interrupt()

    def _run(self) -> PreparedRun:
        launch = self.spec.launch
        started_at = time.monotonic()
        self.folder.create()
        self.folder.reserve_stop_space()
        self.preflight.begin()
        if launch.study is not None:
            self.folder.write_study(launch.study, launch.secret)
        cache = open_tree_cache(self.spec, self.folder)
        self._prepare_folders(cache)
        datasets = {}
        for ref in launch.datasets:
            if ref.manifest is None:
                raise PrepareFailed(f"the server named no version of dataset {ref.name}")
            datasets[ref.name] = self._tree(cache, ref.manifest, f"dataset {ref.name}")
            self._record_cache_key(ref.manifest, datasets[ref.name])
        tree: Path | None = None
        if launch.restore is not None:
            tree = self._checkpoint(cache, launch.restore)
            self.folder.restore.unlink(missing_ok=True)
            self.folder.restore.symlink_to(tree)
        with self.run_folder.gang.locked():  # replicas that share a folder place the same links
            self._place_links()
            mounts = DatasetMounts(self.spec, self.folder.work, self.stack).place(datasets)
        interpreter = self._interpreter()
        manifests = {ref.name: ref.manifest for ref in launch.datasets if ref.manifest is not None}
        self.preflight.finish(interpreter, manifests, cache)
        elapsed_s = time.monotonic() - started_at
        if elapsed_s > _SLOW_STEP_S:
            self.folder.record_note(f"code, data and environment ready in {elapsed_s:.1f} s")
        return PreparedRun(interpreter, datasets, launch.restore is not None, mounts, tree)

    def _prepare_folders(self, cache: TreeCache) -> None:
        """Fills the working folder and the run folder, once for the replicas of the gang that share them."""
        launch, run_folder = self.spec.launch, self.run_folder
        with run_folder.gang.locked() as is_ready:
            run_folder.gang.make_place()
            is_shared = self.folder.shared_work is not None
            if launch.code is not None and not (is_shared and is_ready):
                self._checkout(cache, launch.code)
            if is_ready:
                run_folder.load_record()
                return
            if launch.run_folder is None:
                run_folder.create()
            else:
                self._restore_run_folder(cache, launch.run_folder)
            run_folder.gang.mark_ready()

    def _place_links(self) -> None:
        launch = self.spec.launch
        note = self.run_folder.note if self.spec.node.is_first else log
        place_links(self.folder.work, launch.environment.links, (ref.path for ref in launch.datasets), note)

    def _restore_run_folder(self, cache: TreeCache, manifest: Digest) -> None:
        tree = self.run_folder.gang.root / "restored"

        def fill() -> None:
            if tree.exists():
                remove_tree(tree)
            cache.checkout(manifest, tree, self._fetch("run folder"))

        self._call_with_retry(fill, "run folder")
        self.run_folder.restore(tree, self._blob(manifest))

    def _checkout(self, cache: TreeCache, code: Digest) -> None:
        def fill() -> None:
            if any(self.folder.work.iterdir()):  # an attempt that was interrupted when the server stopped
                remove_tree(self.folder.work)
                make_folder(self.folder.work, private_parent=self.folder.work.parent)
            cache.checkout(code, self.folder.work, self._fetch("code"))

        self._call_with_retry(fill, "code")

    def _tree(self, cache: TreeCache, manifest: Digest, subject: str) -> Path:
        return self._call_with_retry(
            lambda: self.stack.enter_context(cache.open_tree(manifest, self._fetch(subject))), subject
        )

    def _checkpoint(self, cache: TreeCache, restore: RestorePoint) -> Path:
        """Returns the restored checkpoint's tree. If it is unavailable, the server decides that all ranks of
        the next attempt start from the previous one."""
        try:
            return self._tree(cache, restore.manifest, f"checkpoint of step {restore.step}")
        except NodeFault:
            raise
        except PrepareFailed as error:
            verification = self._call_with_retry(
                lambda: self.server.client.verify_attempt_checkpoint(self.spec.launch.attempt, restore.step),
                f"checkpoint of step {restore.step}",
            )
            if verification["own"]:
                consequence = (
                    "the next attempt starts from the previous checkpoint"
                    if verification["damaged"]
                    else "it is fetched again"
                )
                raise NodeFault(f"{error.exit.reason.partition(' (')[0]}; {consequence}") from error
            hint = "fork it from an earlier checkpoint: `--checkpoint STEP`; `hop info RUN` lists the steps"
            raise PrepareFailed(f"{error.exit.reason.partition(' (')[0]}; {hint}") from error

    def _fetch(self, subject: str) -> Fetch:
        def fetch(manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            self.log(f"fetching {subject}")
            return self.server.client.fetch(manifest, digests)

        return fetch

    def _interpreter(self) -> PythonInterpreter:
        launch = self.spec.launch
        if launch.image:
            return self._image_python()
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
        return self._recorded(environments.prepare(launch.environment, self.stack, cwd=self.folder.work))

    def _image_python(self) -> PythonInterpreter:
        """Returns the interpreter of the image, which is built first if the run requests it."""
        launch = self.spec.launch
        if not launch.environment.container:
            return PythonInterpreter(IMAGE_PYTHON)
        # late: few runs have containers
        from hopyard.replica.container.engine_connection import connect_engine
        from hopyard.replica.container.environment_image import EnvironmentImages
        from hopyard.replica.container.package_container import PackageContainer
        from hopyard.replica.container.replica_container import checked

        home = Home(Path(self.spec.node.home))
        api = connect_engine(home.root, self.log).api
        images = EnvironmentImages(
            api,
            home.root,
            home.envs,
            self._blob,
            self.log,
            partial(
                PackageContainer,
                api,
                home=home.root,
                folder=self.folder.root / "image",
                code=self.folder.work,
                attempt=launch.attempt,
                rank=launch.rank,
                memory_bytes=launch.resources.memory_bytes,
            ),
            self._record_cache_key,
            secrets=launch.secrets,
            user=launch.run_name.partition("/")[0],
        )
        built = checked(
            lambda: images.prepare(launch.environment, launch.image, self.stack, cwd=self.folder.work),
            self.spec,
        )
        return self._recorded(
            PythonInterpreter(IMAGE_PYTHON, lock=built.lock, resolved=built.resolved, image=built.reference)
        )

    def _recorded(self, interpreter: PythonInterpreter) -> PythonInterpreter:
        """Sends a new lock to the server, once per gang."""
        launch = self.spec.launch
        if interpreter.resolved and interpreter.lock is not None and launch.rank == 0:
            lock = interpreter.lock
            self._call_with_retry(lambda: self._report_lock(lock))
        return interpreter

    def _record_cache_key(self, key: Digest, path: Path) -> None:
        """Records an entry of the node's caches, so that runs that need it are placed here (see
        `engines.local.cached_keys`)."""
        home = Home(Path(self.spec.node.home))
        marker = home.cached_keys / key
        with suppress(OSError):  # a full disk: other runs fetch it elsewhere
            if not marker.exists():
                write_atomically(marker, os.fsencode(path.relative_to(home.cached_keys.parent)))

    def _report_lock(self, lock: bytes) -> None:
        """Sends the lock file, so that a fork of this run gets the same packages even if the index has
        changed."""
        digest = blake3(lock).hexdigest()
        client = self.server.client
        body: api.LockIn = {"lock": digest, "packages": dict(locked_packages(lock))}
        client.put_blob(digest, lock)
        try:
            client.record_lock(self.spec.launch.attempt, body)
        except MissingBlobs:  # the server was restarted in between and does not have the blob
            client.put_blob(digest, lock)
            client.record_lock(self.spec.launch.attempt, body)

    def _blob(self, digest: Digest) -> bytes:
        def fetch() -> bytes:
            ((_, data),) = self.server.client.fetch(digest, [digest])
            if blake3(data).hexdigest() != digest:
                raise IntegrityError(f"blob {digest[:12]} arrived damaged")
            return data

        return self._call_with_retry(fetch)

    def _call_with_retry(self, call: Callable[[], T], subject: str = "") -> T:
        """Calls the server until it answers: the run was accepted, so it starts when the server is available
        again. what: named in the error if its bytes are damaged or missing there."""
        delay_s = _RETRY_DELAY_RANGE_S[0]
        while True:
            try:
                return call()
            except ServerUnavailable as error:
                log(f"prepare waits: {error}")
                if not self.folder.exists():
                    raise NodeFault("the run's folder was removed") from error
                self.log("waiting for the server")
                if not self.server.rediscover():
                    time.sleep(delay_s)
                    delay_s = min(delay_s * 2, _RETRY_DELAY_RANGE_S[1])
            except HopyardError as error:
                if not subject:
                    raise
                raise _prepare_error(error, f"{subject}: ") from error


def _prepare_error(error: HopyardError, subject: str = "") -> PrepareFailed:
    reason = subject + " ".join([error.message, *(f"({hint})" for hint in error.hints)])
    return PrepareFailed(reason) if isinstance(error, _RUN_ERRORS) else NodeFault(reason)


def home_view(spec: ReplicaSpec, folder: ReplicaDir) -> MountView | None:
    """Returns the view of the home for the run's process, or None without namespaces.

    The process sees the caches, the server's address files and its own folder, which is the only writable
    one. It does not see files created in the home later.
    """
    if not spec.node.namespaces:
        return None
    home = Home(Path(spec.node.home))
    make_sdk_folder(home.root)
    caches = home.trees.parent
    make_folder(home.address_dir)
    read_only = [caches, home.address_dir]
    if not (home.address_dir / home.socket_file.name).exists():  # the server proves its identity on its port
        read_only.append(home.identity_file)
    root = home.root.resolve()
    gang = GangFolder(Path(spec.node.gang_folder or folder.root), spec)
    own = gang.root.resolve()
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
        # downloads and packs of other runs
        hidden=[path.resolve() for path in (caches / "uv", home.pack_cache) if path.exists()],
        # one mount: model states are hard-linked between folders, not copied
        writable=[own],
        places={
            root / home.run_places.name / run: own for run in (spec.launch.run, *spec.launch.continued_runs)
        },
        links=links,
    )
