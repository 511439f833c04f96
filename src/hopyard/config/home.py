"""Where Hopyard keeps the files of one user on this machine. Standard library only; nothing is created until
it is needed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.backports import dataclass
from hopyard.domain.text_decoding import decode_text
from hopyard.errors import SpecError
from hopyard.private_files import (
    GROUP_AND_OTHERS_BITS,
    make_folder,
    remove_other_access,
    remove_other_access_in_tree,
)

HOME_VARIABLE = "HOPYARD_HOME"
REPLICA_VARIABLE = "HOPYARD_REPLICA_DIR"  # the folder of the replica that a process inside a run belongs to
CONSOLE_VARIABLE = "HOPYARD_CONSOLE"  # marks the processes of a command beside the script of a run
RUN_PLACES_DIR = "run-folders"  # see `Home.run_places`
_LOST_AND_FOUND = "lost+found"  # belongs to root if the home is a mounted disk
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
        """Returns the home at `$HOPYARD_HOME`, or at `~/.hopyard`. Inside a run, it is a folder of the
        replica, because the user's home holds the user's tokens.

        Raises SpecError for a path that names no folder.
        """
        configured, replica = os.environ.get(HOME_VARIABLE), os.environ.get(REPLICA_VARIABLE)
        try:
            if configured:
                configured.encode()
                return cls(Path(configured).expanduser().absolute())
            return cls(Path(replica) / "home" if replica else Path.home() / ".hopyard")
        except UnicodeEncodeError as error:
            raise SpecError("the path of the home is not UTF-8", hints=(_OTHER_HOME_HINT,)) from error
        except RuntimeError as error:  # `~` of a user that this machine does not have
            raise SpecError(
                f"the home {configured or '~/.hopyard'} is that of no user of this machine",
                hints=(_OTHER_HOME_HINT,),
            ) from error

    @property
    def server_file(self) -> Path:
        return self.root / "server.json"

    @property
    def socket_file(self) -> Path:
        """The socket by which processes of this machine reach the server, see `api_client.home_socket`."""
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
        """The keys that sign the tokens of runs, see `server.signing_keys`."""
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
        """The file with a few random digits that distinguish this home from others on the same database."""
        return self.root / "mark"

    @property
    def database_id_file(self) -> Path:
        """The identity of the database that records the use of the blobs and streams of this home."""
        return self.root / "database-id"

    @property
    def login_file(self) -> Path:
        """`{"url","token"}` of a team's server, 0600; without the file, the embedded server is used."""
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
        """Held while blobs are removed, or while a backup needs all blobs."""
        return self.blobs / "sweep.lock"

    @property
    def restored_file(self) -> Path:
        """Names the backup from which the home was restored, until the first start has cordoned its nodes."""
        return self.root / "restored.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def run_places(self) -> Path:
        """The folder with a link to the files of the current attempt of each run, by the run's id. Processes
        of a run find their files there, at the same path in each attempt."""
        return self.root / RUN_PLACES_DIR

    @property
    def trees(self) -> Path:
        return self.root / "cache" / "trees"

    @property
    def envs(self) -> Path:
        return self.root / "cache" / "envs"

    @property
    def cached_keys(self) -> Path:
        """Markers of the content of the caches, see `engines.local.cached_keys`."""
        return self.root / "cache" / "held"

    @property
    def pack_cache(self) -> Path:
        """The cache of the packer: files that it has hashed."""
        return self.root / "cache" / "packed"

    @property
    def scratch(self) -> Path:
        """Files of single requests. A server that starts removes what an earlier one has left."""
        return self.root / "cache" / "scratch"

    @property
    def offline(self) -> Path:
        return self.root / "offline"

    @property
    def retained(self) -> Path:
        """By run, the results that could not be stored on the server."""
        return self.root / "kept"

    def retained_of(self, run: str) -> Path:
        """Returns the folder of the results that the replicas of a run could not store on the server."""
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
        except OSError as error:
            raise SpecError(
                f"the home {self.root} cannot be a folder: {error.strerror}", hints=(_OTHER_HOME_HINT,)
            ) from error
        if not stat.S_ISDIR(about.st_mode):
            raise SpecError(f"the home {self.root} is a file, not a folder", hints=(_OTHER_HOME_HINT,))
        return about

    def check(self) -> None:
        """Removes the rights of other users from the root folder, if it exists: its mode protects everything
        below. Raises SpecError if it is not a folder, if it belongs to another user, root included, or if its
        mode cannot be changed."""
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
        """Raises SpecError if an entry of the root folder, or the target of a link in it, belongs to another
        user. In that case a server of that user has run here, or the user created settings, a login address
        or links while the folder was open. The check costs a look at some twenty entries."""
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
        """Removes the rights of other users. All entries of the root folder are closed at once. Entries below
        folders that others could enter are closed one by one, as the caller iterates. Yields paths. The
        scripts' own files, in `work`, keep their modes. Of a folder elsewhere, behind a link of its owner,
        only that folder itself is closed. Raises SpecError if another user has created an entry."""
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
            content = json.loads(self.server_file.read_bytes())
        except PermissionError as error:
            check_owner(self.server_file, self.server_file.stat().st_uid)
            raise SpecError(
                f"{self.server_file} cannot be read: {error.strerror}",
                hints=(f"chmod 600 {self.server_file}",),
            ) from error
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) and "url" in content else None

    def read_restored(self) -> str | None:
        """Returns the time of the backup from which this home was restored; None if nothing must be held
        back."""
        try:
            return str(json.loads(self.restored_file.read_bytes())["created_at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown time"

    def read_token(self) -> str | None:
        """Returns the token of the home's own server, None without one.

        Raises SpecError for a file that is no text."""
        try:
            data = self.token_file.read_bytes()
        except OSError:
            return None
        return decode_text(data, str(self.token_file)).strip() or None


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
    """Returns the login name of a user of this machine, or the number if there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
