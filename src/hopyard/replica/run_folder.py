"""Stores the run folder of a run, and the checkpoints that its script wrote to the working folder, and puts
them back for the next attempt.

The stored tree has two parts: `run`, the content of `$HOPYARD_RUN_DIR`, and `work`, files of the working
folder. While the script runs, only files are stored that have not changed between two scans and that no
process has open for writing; of a file that is being written, the earlier version stays. The files of one
checkpoint are stored together or not at all.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from blake3 import blake3

from hopyard.datasets.output_scan import scan_files
from hopyard.domain.checkpoint_files import is_kept
from hopyard.domain.checkpoint_units import order_by_step
from hopyard.domain.encoded_path import encode_path
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, LinkEntry, Manifest
from hopyard.domain.path_check import is_manifest_path, link_stays_inside
from hopyard.errors import Conflict, HopyardError, IntegrityError, SpecError, is_transient
from hopyard.private_files import make_folder, read_below, remove_tree, write_below
from hopyard.replica.checkpoint_uploads import RETRY_INTERVAL_S, RETRYABLE_ERRORS, UploadTimeout
from hopyard.replica.file_integrity import has_end
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.open_files import FileId, find_open_for_writing
from hopyard.replica.replica_log import log
from hopyard.replica.script_checkpoints import ScriptCheckpoints, Stamp, closed_files, incomplete_checkpoints
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.uploads import open_folder_below, stage_files, upload_folder

_RECORD_FILE = "run-folder.json"
_SCAN_INTERVAL_S = 10.0
_SETTLE_S = 2.0  # a changed file is looked at again after this time
# the interval is at least this many times the duration of a scan with its upload, so that the script keeps
# the disk and the network for itself. A crash of the node loses what was written since the last scan, so the
# interval has a limit
_SCAN_SHARE, _MAX_SCAN_INTERVAL_S = 10, 600.0
_RUN_PART, _WORK_PART = "run", "work"


class FolderRecord(msgspec.Struct):
    """What the server has. stamps: of the files with an entry in the manifest. checkpoints: as in
    `ScriptCheckpoints.recorded`."""

    manifest: str = ""
    stamps: dict[str, Stamp] = msgspec.field(default_factory=dict)
    checkpoints: dict[str, str] = msgspec.field(default_factory=dict)


_decode_record = msgspec.json.Decoder(FolderRecord).decode


@dataclass(frozen=True, slots=True)
class FileUpload:
    """An uploaded file. found: after the upload, the file that was read, and the one at its path if any."""

    entry: FileEntry
    found: Sequence[os.stat_result]


@dataclass(slots=True)
class RunFolder:
    """work: the working folder; None keeps no files of it. patterns: as in `RunSpec.checkpoint_files`.
    changed_work_files: returns the paths of the working folder that differ from the code.
    """

    gang: GangFolder
    work: Path | None
    server: ServerConnection
    is_stopping: Callable[[], bool]
    note: Callable[[str], None]
    changed_work_files: Callable[[], Collection[str]]
    checkpoints: ScriptCheckpoints
    _manifest: Manifest = field(default_factory=Manifest)
    _digest: Digest | None = None
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    _seen: dict[str, Stamp] = field(default_factory=dict)
    _odd_paths: list[str] = field(default_factory=list)  # of the last scan; a stored tree cannot name them
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    # -- for the next attempt --------------------------------------------------------------------------------

    def create(self) -> None:
        make_folder(self.gang.run, private_parent=self.gang.root)

    def restore(self, tree: Path, data: bytes) -> None:
        """Puts the files back, from a private copy of the stored tree. data: its manifest."""
        self.create()
        self._manifest, self._digest = Manifest.decode(data), Digest(blake3(data).hexdigest())
        for part, target in ((_RUN_PART, self.gang.run), (_WORK_PART, self.work)):
            if target is not None and (tree / part).is_dir():
                _move_files(tree / part, target)
        remove_tree(tree)
        entries = {file.path for file in self._manifest.files}
        self._stamps = {path: stamp for path, stamp in self._scan_files().items() if path in entries}
        self.checkpoints.mark_restored(self._manifest)
        self._write_record()

    @property
    def restored_work_files(self) -> frozenset[str]:
        """The paths of the working folder that were put back."""
        prefix = f"{_WORK_PART}/"
        paths = [file.path for file in self._manifest.files] + [link.path for link in self._manifest.links]
        return frozenset(path.removeprefix(prefix) for path in paths if path.startswith(prefix))

    def restored_checkpoints(self) -> list[str]:
        """Returns the paths of the checkpoints that were put back, the largest step first."""
        return order_by_step(self.checkpoints.group([file.path for file in self._manifest.files]))

    def complete_checkpoints(self, *, killed_at: float | None = None) -> list[str]:
        """Returns the checkpoints of this node that are complete after the end of a process, the newest
        first. Those that do not show their end, and were written shortly before `killed_at`, are the last."""
        stamps = self._scan_files()
        groups = self.checkpoints.group(stamps)
        ends = {path: has_end(self.location(path)) for files in groups.values() for path in files}
        damaged = [path for path, end in ends.items() if end is False]
        incomplete = set(incomplete_checkpoints(groups, stamps, damaged))
        settled_before = math.inf if killed_at is None else killed_at - _SETTLE_S
        unsettled = {
            path for path, end in ends.items() if end is None and _written_s(stamps[path]) > settled_before
        }

        def order(checkpoint: str) -> tuple[bool, float, str]:
            files = groups[checkpoint]
            is_unsettled = not unsettled.isdisjoint(files)
            return is_unsettled, -max(_written_s(stamps[path]) for path in files), checkpoint

        return sorted(groups.keys() - incomplete, key=order)

    def location(self, path: str) -> Path:
        """Returns where a path below `run/` or `work/` is on this node."""
        part, _, rest = path.partition("/")
        return dict(self._parts())[part] / rest

    def contains(self, path: str) -> bool:
        """Returns whether a path below `run/` or `work/` exists on this node. A replica with a working folder
        of its own has no `work/`."""
        part, _, rest = path.partition("/")
        return any(name == part and (folder / rest).exists() for name, folder in self._parts())

    def load_record(self) -> None:
        """Reads what an earlier replica of the attempt, or another one of the gang, has stored."""
        try:
            data = read_below(self.gang.root, _RECORD_FILE, max_bytes=256 * 2**20)
            record = _decode_record(data)
            self._manifest = Manifest.decode(record.manifest.encode())
            self._digest = Digest(blake3(record.manifest.encode()).hexdigest())
            self._stamps, self.checkpoints.recorded = record.stamps, record.checkpoints
        except (OSError, msgspec.MsgspecError, IntegrityError) as error:
            log(f"the files of the run folder are read again: {error}")

    def _write_record(self) -> None:
        record = FolderRecord(self._manifest.encode().decode(), self._stamps, self.checkpoints.recorded)
        try:
            write_below(self.gang.root, _RECORD_FILE, msgspec.json.encode(record))
        except OSError as error:  # a full disk: an adopted replica reads the files again
            log(f"the record of the run folder is not written: {error}")

    # -- while the script runs, and at its end ---------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread that stores changed files."""
        self._thread = threading.Thread(target=self._run_thread, name="run-folder", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run_thread(self) -> None:
        interval_s = _SCAN_INTERVAL_S
        while not self._closing.wait(interval_s):
            started_at = time.monotonic()
            is_settled = True
            try:
                is_settled = self._store()
            except (HopyardError, OSError) as error:
                log(f"the run folder is stored later: {error}")
            interval_s = _next_interval_s(time.monotonic() - started_at, is_settled=is_settled)

    def finish(self, *, is_failed: bool, killed_at: float | None = None) -> str:
        """Stores all files after the end of the processes. Returns why that failed, or "".

        is_failed: the processes did not succeed, so a file may be incomplete. killed_at: the Unix time of
        the end if they did not end by themselves. Then a checkpoint that does not show its end, and was
        written shortly before, counts as incomplete, if an earlier one is stored to continue from.
        """
        self.stop()
        timeout = UploadTimeout()
        while True:
            try:
                self._store_final(is_failed=is_failed, killed_at=killed_at)
                self._note_odd_paths()
                return ""
            except (HopyardError, OSError) as error:
                if isinstance(error, Conflict) or not self.gang.root.is_dir():
                    return ""  # a later attempt has begun
                if not isinstance(error, RETRYABLE_ERRORS) and not is_transient(error):
                    return str(error)
                log(f"the run folder waits: {error}")
                if timeout.is_expired(error, is_stopping=self.is_stopping()):
                    return str(error)
                if not self.server.rediscover():
                    time.sleep(RETRY_INTERVAL_S)

    def _store(self) -> bool:
        """Stores the changed files that are complete, while the script runs. Returns whether that were all
        changed files."""
        self._check_folders()
        stamps = self._scan_files()
        previous, self._seen = self._seen, stamps
        changed = self._changed(stamps)
        groups = self.checkpoints.group(stamps)
        recent = {path for path in changed if previous.get(path) != stamps[path]}
        # a checkpoint that is saved every second is never the same in two scans
        closed = closed_files(groups)
        unsettled = {
            path for path in recent if path not in closed or has_end(self.location(path)) is not True
        }
        unsettled |= self._open_files(changed - unsettled)
        written = incomplete_checkpoints(groups, changed, unsettled)
        files = {path: groups[path] for path in written}
        self._store_files(stamps, unsettled, files, log, is_final=False)
        return not unsettled

    def _store_final(self, *, is_failed: bool, killed_at: float | None) -> None:
        self._check_folders()
        stamps = self._scan_files()
        changed, groups = self._changed(stamps), self.checkpoints.group(stamps)
        unsettled: set[str] = set()
        written: list[str] = []
        if is_failed:
            checkpoint_files = {path for files in groups.values() for path in files}
            has_earlier = bool(self.checkpoints.group([file.path for file in self._manifest.files]))
            settled_before = killed_at - _SETTLE_S if has_earlier and killed_at is not None else math.inf
            for path in changed:
                end = has_end(self.location(path))
                is_recent = path in checkpoint_files and stamps[path][2] / 1e9 > settled_before
                if end is False or (end is None and is_recent):
                    unsettled.add(path)
            written = incomplete_checkpoints(groups, changed, unsettled)
            self._note_unsettled(unsettled, written, groups)
        files = {path: groups[path] for path in written}
        self._store_files(stamps, unsettled, files, self.note, is_final=not is_failed)

    def _note_unsettled(
        self, unsettled: Collection[str], written: Collection[str], groups: Mapping[str, Collection[str]]
    ) -> None:
        stored = {file.path for file in self._manifest.files}
        inside = {path for checkpoint in written for path in groups[checkpoint]}
        names = {checkpoint: stored.intersection(groups[checkpoint]) for checkpoint in written}
        names |= {path: stored & {path} for path in unsettled if path not in inside}
        for path, earlier in sorted(names.items()):
            consequence = "its earlier version is kept" if earlier else "it is not kept"
            self.note(f"`{path.partition('/')[2]}` was not written completely: {consequence}")

    def _changed(self, stamps: Mapping[str, Stamp]) -> set[str]:
        return {path for path, stamp in stamps.items() if self._stamps.get(path) != stamp}

    def _open_files(self, paths: Collection[str]) -> set[str]:
        """Returns the files that a process has open for writing."""
        ids: dict[str, FileId] = {}
        for path in paths:
            with suppress(OSError):
                ids[path] = _file_id(os.stat(self.location(path), follow_symlinks=False))
        opened = find_open_for_writing(set(ids.values()))
        return {path for path, file_id in ids.items() if file_id in opened}

    def _store_files(
        self,
        stamps: Mapping[str, Stamp],
        unsettled: Collection[str],
        written: Mapping[str, Collection[str]],
        report: Callable[[str], None],
        *,
        is_final: bool,
    ) -> None:
        """Uploads the changed files but the unsettled ones, and records the tree and its checkpoints.
        written: the files of checkpoints that are not complete; what is stored of them stays. is_final:
        whether the script needs no checkpoint any more. Else the newest one stays until another is stored,
        as some scripts remove a checkpoint before they save the next."""
        entries = {entry.path: entry for entry in self._manifest.files}
        excluded = {*unsettled, *(path for files in written.values() for path in files)}
        complete = sorted(self._changed(stamps) - excluded)
        uploaded = self._unchanged(self._upload_each(complete, report), stamps, complete) if complete else {}
        earlier = self.checkpoints.group(entries)
        retained = {path for checkpoint in written for path in earlier.get(checkpoint, ())}
        kept = {path: entry for path, entry in entries.items() if path in stamps or path in retained}
        if not is_final and earlier and not self.checkpoints.group({*kept, *uploaded}):
            newest = max(earlier, key=lambda path: (self._written_s(earlier[path]), path))
            kept |= {path: entries[path] for path in earlier[newest]}
        manifest = Manifest.build({**kept, **uploaded}.values(), self._scan_links({*kept, *uploaded}))
        data = manifest.encode()
        digest = Digest(blake3(data).hexdigest())
        # what the server does not have yet is uploaded again after an error
        stored = {path: stamp for path, stamp in self._stamps.items() if path in stamps}
        stored |= {path: stamps[path] for path in uploaded}
        is_same = digest == self._digest or (self._digest is None and not manifest.files)
        if not is_same:
            client = self.server.client
            client.put_blob(digest, data)
            client.record_run_folder(self.gang.spec.launch.attempt, {"manifest": digest})
            self._manifest, self._digest = manifest, digest
        self._stamps = stored
        if not is_same:
            self._write_record()
        if self.checkpoints.record(self._manifest, stamps):
            self._write_record()

    def _written_s(self, paths: Collection[str]) -> float:
        """Returns the Unix time of the newest of these files; 0 if the script has removed them."""
        return max((_written_s(self._stamps[path]) for path in paths if path in self._stamps), default=0.0)

    def _unchanged(
        self, uploaded: Mapping[str, FileUpload], stamps: Mapping[str, Stamp], paths: Collection[str]
    ) -> dict[str, FileEntry]:
        """Returns the uploaded ones of these files that the script did not write to meanwhile. A checkpoint
        with another file is left out."""
        opened = find_open_for_writing(
            {_file_id(found) for upload in uploaded.values() for found in upload.found}
        )
        unchanged = {
            path
            for path, upload in uploaded.items()
            if any(
                _stamp_of(found) == stamps[path] and _file_id(found) not in opened for found in upload.found
            )
        }
        for files in self.checkpoints.group(paths).values():
            if not unchanged.issuperset(files):
                unchanged.difference_update(files)
        return {path: upload.entry for path, upload in uploaded.items() if path in unchanged}

    def _upload_each(self, paths: Sequence[str], report: Callable[[str], None]) -> dict[str, FileUpload]:
        """Uploads files; those that cannot be read are reported and left out. Raises the errors that a later
        attempt may not have."""
        try:
            return self._upload(paths)
        except (HopyardError, OSError) as error:
            if isinstance(error, (Conflict, *RETRYABLE_ERRORS)) or is_transient(error):
                raise
            if not self.gang.root.is_dir():
                raise
            if len(paths) == 1:
                report(f"`{paths[0].partition('/')[2]}` of the run folder is not kept: {error}")
                return {}
        middle = len(paths) // 2
        return {
            **self._upload_each(paths[:middle], report),
            **self._upload_each(paths[middle:], report),
        }

    def _upload(self, paths: Collection[str]) -> dict[str, FileUpload]:
        uploads: dict[str, FileUpload] = {}
        for part, folder in self._parts():
            prefix = f"{part}/"
            own = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
            if not own:
                continue
            stage = stage_files(folder.parent, folder, {path: path for path in own})
            descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                files = Manifest.decode(upload_folder(self.server.client, descriptor).encoded).files
                # the file itself, also if the script has removed or replaced it at its path meanwhile; or a
                # copy, with the original at the path
                found = {file.path: _find_each(stage / file.path, folder / file.path) for file in files}
            finally:
                os.close(descriptor)
                shutil.rmtree(stage, ignore_errors=True)
            for file in files:
                entry = FileEntry(prefix + file.path, file.size, file.chunks, file.executable)
                uploads[entry.path] = FileUpload(entry, found[file.path])
        return uploads

    def _parts(self) -> list[tuple[str, Path]]:
        parts = [(_RUN_PART, self.gang.run)]
        return parts if self.work is None else [*parts, (_WORK_PART, self.work)]

    def _check_folders(self) -> None:
        """Raises SpecError if the script replaced a folder by a link. That is no error to retry: the folder
        will not come back."""
        for name, folder in self._parts():
            if folder.is_symlink():
                raise SpecError(f"the script replaced the folder `{name}` by a link")

    def _scan_files(self) -> dict[str, Stamp]:
        self._odd_paths.clear()
        stamps = {
            f"{_RUN_PART}/{path}": _stamp_of(found) for path, found in self._find_regular_files(self.gang.run)
        }
        if self.work is None:
            return stamps
        kept = {
            path: _stamp_of(found)
            for path, found in self._find_regular_files(
                self.work, lambda path: is_kept(path, self.gang.spec.launch.checkpoint_files)
            )
        }
        if kept:
            allowed = {*self.changed_work_files(), *self.restored_work_files}
            stamps |= {f"{_WORK_PART}/{path}": stamp for path, stamp in kept.items() if path in allowed}
        return stamps

    def _find_regular_files(
        self, folder: Path, is_wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the readable files with their paths, and records those with odd ones."""
        for path, found, obstacle in scan_files(folder):
            if obstacle is not None or not stat.S_ISREG(found.st_mode) or not is_wanted(path):
                continue
            if is_manifest_path(path):
                yield path, found
            else:
                self._odd_paths.append(path)

    def _note_odd_paths(self) -> None:
        if not self._odd_paths:
            return
        first, more = encode_path(min(self._odd_paths)), len(self._odd_paths) - 1
        others = f" and {more} other file{'s' * (more > 1)}" if more else ""
        self.note(
            f"`{first[:200]}`{others}: not kept for the next attempt, because the path is not UTF-8 or holds "
            "control characters or a backslash"
        )

    def _scan_links(self, files: Collection[str]) -> list[LinkEntry]:
        """Returns the links to kept files and folders, such as `last.ckpt`."""
        targets = {parent for path in files for parent in _with_parents(path)}
        links: list[LinkEntry] = []
        for part, folder in self._parts():
            top = os.path.realpath(folder)
            for path, found, obstacle in scan_files(folder):
                if obstacle is not None or not is_manifest_path(path) or not stat.S_ISLNK(found.st_mode):
                    continue
                if part == _WORK_PART and not is_kept(path, self.gang.spec.launch.checkpoint_files):
                    continue
                real = os.path.realpath(folder / path)
                target = f"{part}{real.removeprefix(top)}" if real.startswith(f"{top}/") else ""
                text = os.path.relpath(target, os.path.dirname(f"{part}/{path}")) if target else ""
                if target in targets and link_stays_inside(f"{part}/{path}", text):
                    links.append(LinkEntry(f"{part}/{path}", text))
        return links


def _next_interval_s(took_s: float, *, is_settled: bool) -> float:
    """Returns the seconds until the next scan. took_s: the duration of the last one with its upload.
    is_settled: whether that stored all changed files."""
    shortest_s = _SCAN_INTERVAL_S if is_settled else _SETTLE_S
    return max(shortest_s, min(_SCAN_SHARE * took_s, _MAX_SCAN_INTERVAL_S))


def _stamp_of(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _file_id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def _find_each(*paths: Path) -> list[os.stat_result]:
    """Returns the status of those that exist."""
    found = []
    for path in paths:
        with suppress(OSError):
            found.append(os.stat(path, follow_symlinks=False))
    return found


def _written_s(stamp: Stamp) -> float:
    """Returns the Unix time at which a file was written."""
    return stamp[2] / 1e9


def _with_parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _move_files(source: Path, target: Path) -> None:
    """Moves files and links into a folder, over files of the same names."""
    for current, folders, names in os.walk(source):
        links = [name for name in folders if os.path.islink(f"{current}/{name}")]
        relative = os.path.relpath(current, source)
        with open_folder_below(target, "" if relative == "." else relative) as folder:
            for name in (*names, *links):
                try:
                    os.replace(f"{current}/{name}", name, dst_dir_fd=folder)
                except IsADirectoryError as error:
                    log(f"{relative}/{name} is not put back: {error}")
