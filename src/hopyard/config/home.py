"""Where one user's Hopyard lives on this machine. Standard library only; nothing is created until it is
needed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError
from hopyard.private_files import (
    GROUP_AND_OTHERS_BITS,
    make_folder,
    remove_other_access,
    remove_other_access_in_tree,
)

HOME_VARIABLE = "HOPYARD_HOME"
REPLICA_VARIABLE = "HOPYARD_REPLICA_DIR"  # the folder of the replica that a process inside a run belongs to
_LOST_AND_FOUND = "lost+found"  # root's, where a home is a mounted disk
# on another disk, behind a link
_LINKABLE_ENTRIES = frozenset({"blobs", "streams", "attempts", "cache", "offline", "logs", "kept"})
_OTHER_HOME_HINT = (
    "set HOPYARD_HOME to a folder that is yours or does not exist yet; the default is ~/.hopyard"
)
ROOT_ERROR = "the server runs as root, and so do all runs: every token is a root shell on this machine"
ROOT_HINT = "start it as an ordinary user, with that user's home"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder. See docs/designs/0001-main-path.md, section 2."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """`$HOPYARD_HOME`, or `~/.hopyard`; inside a run a folder of its replica's, since the user's holds
        the user's tokens.

        Raises SpecError for a path that names no folder.
        """
        given, replica = os.environ.get(HOME_VARIABLE), os.environ.get(REPLICA_VARIABLE)
        try:
            if given:
                given.encode()
                return cls(Path(given).expanduser().absolute())
            return cls(Path(replica) / "home" if replica else Path.home() / ".hopyard")
        except UnicodeEncodeError as bad:
            raise SpecError("the path of the home is not UTF-8", hints=(_OTHER_HOME_HINT,)) from bad
        except RuntimeError as bad:  # `~`, for a user that this machine does not know
            raise SpecError(
                f"the home {given or '~/.hopyard'} is that of no user of this machine",
                hints=(_OTHER_HOME_HINT,),
            ) from bad

    @property
    def server_file(self) -> Path:
        return self.root / "server.json"

    @property
    def socket_file(self) -> Path:
        """Where processes of this machine reach the server, see `api_client.home_socket`."""
        return self.root / "server.sock"

    @property
    def address_dir(self) -> Path:
        """The folder with links to `server_file` and `socket_file`. Runs see only these links at the top of
        the home. They stay valid after a later server has replaced the files."""
        return self.root / "address"

    @property
    def identity_file(self) -> Path:
        """See `config.home_identity`."""
        return self.root / "identity.json"

    @property
    def signing_file(self) -> Path:
        """The keys that tokens of runs are signed with, see `server.signing_keys`."""
        return self.root / "signing-keys.json"

    @property
    def server_lock(self) -> Path:
        return self.root / "server.lock"

    @property
    def start_lock(self) -> Path:
        return self.root / "start.lock"

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def mark_file(self) -> Path:
        """The file of a few random digits that distinguish this home from others on the same database."""
        return self.root / "mark"

    @property
    def database_id_file(self) -> Path:
        """Which database knows what the blobs and streams of this home are for."""
        return self.root / "database-id"

    @property
    def login_file(self) -> Path:
        """`{"url","token"}` of a team's server, 0600; where it is missing, the embedded one serves."""
        return self.root / "login.json"

    @property
    def settings_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def database(self) -> Path:
        return self.root / "hopyard.db"

    @property
    def server_log(self) -> Path:
        return self.root / "logs" / "server.log"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def gc_lock(self) -> Path:
        """Held while blobs are removed, or while a backup needs that none is."""
        return self.blobs / "sweep.lock"

    @property
    def restored_file(self) -> Path:
        """Of which backup the home was made: until the first start has cordoned its nodes."""
        return self.root / "restored.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def trees(self) -> Path:
        return self.root / "cache" / "trees"

    @property
    def envs(self) -> Path:
        return self.root / "cache" / "envs"

    @property
    def cached_keys(self) -> Path:
        """Markers of what the caches hold, see `engines.local.cached_keys`."""
        return self.root / "cache" / "held"

    @property
    def pack_cache(self) -> Path:
        """The cache of the packer: files that it has hashed."""
        return self.root / "cache" / "packed"

    @property
    def offline(self) -> Path:
        return self.root / "offline"

    @property
    def retained(self) -> Path:
        """By run, what could not be stored on the server."""
        return self.root / "kept"

    def retained_of(self, run: str) -> Path:
        """Returns the folder of what the replicas of a run could not store on the server."""
        return self.retained / run

    def create(self) -> Home:
        """Makes the root folder, readable by its owner only; one that exists is checked as `check` does.
        Idempotent."""
        self.find_folder()
        self.root.parent.mkdir(parents=True, exist_ok=True)
        make_folder(self.root)
        self.check()
        return self

    def find_folder(self) -> os.stat_result | None:
        """Returns the status of the root folder, None if it does not exist. Raises SpecError if it cannot
        exist because another file has its name, or that of a folder above."""
        try:
            about = self.root.stat()
        except FileNotFoundError:
            return None
        except OSError as bad:
            raise SpecError(
                f"the home {self.root} cannot be a folder: {bad.strerror}", hints=(_OTHER_HOME_HINT,)
            ) from bad
        if not stat.S_ISDIR(about.st_mode):
            raise SpecError(f"the home {self.root} is a file, not a folder", hints=(_OTHER_HOME_HINT,))
        return about

    def check(self) -> None:
        """Removes the rights of other users from the root folder, where it exists: its mode protects
        everything below.

        Raises SpecError where it is no folder or belongs to another user, root included, or where its mode
        cannot be changed.
        """
        about = self.find_folder()
        if about is None:
            return
        check_owner(self.root, about.st_uid)
        if about.st_mode & GROUP_AND_OTHERS_BITS:
            try:
                self.root.chmod(0o700)
                about = self.root.stat()
            except OSError:
                pass
        if about.st_mode & GROUP_AND_OTHERS_BITS:
            hint = "set HOPYARD_HOME to a folder on a file system with permissions"
            raise SpecError(
                f"other users can read {self.root}, and its mode cannot be changed", hints=(hint,)
            )
        self.check_entries()

    def check_entries(self) -> None:
        """Raises SpecError where an entry of the root folder, or what a link there leads to, belongs to
        another user: a server of theirs has been at work here, or they left settings, an address to log in
        at, or links here while the folder was open. It costs a look at some twenty entries."""
        for entry in os.scandir(self.root):
            if entry.name == _LOST_AND_FOUND:
                continue
            try:
                check_owner(Path(entry.path), entry.stat(follow_symlinks=False).st_uid)
                if entry.is_symlink():
                    check_owner(Path(entry.path), entry.stat().st_uid)
            except FileNotFoundError:
                continue

    def make_entries_private(self) -> Iterator[str]:
        """Removes the rights of other users: from every entry of the root folder at once, then one by one, as
        the caller iterates, from entries below folders that others could enter. Yields paths. The scripts'
        own files, in `work`, keep their modes. Of a folder elsewhere, behind a link of its owner, only that
        folder itself is closed. Raises SpecError where another user has created an entry.
        """
        opened = []
        for entry in os.scandir(self.root):
            linked = entry.is_symlink()
            if linked and entry.name not in _LINKABLE_ENTRIES:
                continue
            try:
                about = entry.stat()
            except FileNotFoundError:
                continue
            if (
                about.st_uid == os.geteuid()
                and remove_other_access(entry.path, about.st_mode)
                and entry.is_dir()
                and not linked
            ):
                opened.append(entry.path)
        for folder in opened:
            yield folder
            for path in remove_other_access_in_tree(folder, excluded=frozenset({"work"})):
                with suppress(FileNotFoundError):
                    check_owner(Path(path), os.lstat(path).st_uid)
                yield path

    def read_server(self) -> dict[str, Any] | None:
        """Returns the content of `server.json`, None if it is absent or incomplete. Raises SpecError if it
        may not be read."""
        try:
            found = json.loads(self.server_file.read_bytes())
        except PermissionError as refused:
            check_owner(self.server_file, self.server_file.stat().st_uid)
            raise SpecError(
                f"{self.server_file} cannot be read: {refused.strerror}",
                hints=(f"chmod 600 {self.server_file}",),
            ) from refused
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "url" in found else None

    def read_restored(self) -> str | None:
        """When the backup was made that this home was made of; None where nothing is to be held back for
        that."""
        try:
            return str(json.loads(self.restored_file.read_bytes())["created_at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown time"

    def read_token(self) -> str | None:
        try:
            return self.token_file.read_text().strip() or None
        except OSError:
            return None


def check_owner(path: Path, uid: int) -> None:
    """Raises SpecError unless `uid`, the owner of `path`, is the user of this process."""
    me = os.geteuid()
    if uid != me:
        hint = (
            f"run this as {user_name(uid)}, or choose another home: HOPYARD_HOME=FOLDER; to hand the "
            f"home over: `chown -R {me} FOLDER` as root"
        )
        planted = (
            "check it, and remove it if it is not yours: its owner may have put it there for this "
            "server to read"
        )
        raise SpecError(
            f"{path} belongs to {user_name(uid)} (uid {uid}), and this is {user_name(me)} (uid {me})",
            hints=(hint, planted),
        )


def user_name(uid: int) -> str:
    """The login name of a user of this machine, or the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
