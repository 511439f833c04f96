"""Authorization: the permissions of the server's owner, queue administrators and users of runs.

Every caller with a token may read.
"""

from __future__ import annotations

from hopyard.domain.effective_limits import effective_admins
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import Run, check_not_superseded
from hopyard.errors import Forbidden
from hopyard.interfaces.run_store import RunStore
from hopyard.server.authentication import Caller


def check_owner(caller: Caller, owner: str, subject: str) -> None:
    """Raises Forbidden unless the caller is the server's owner. subject: ends the sentence, as in `adds
    users`."""
    if caller.require_user() != owner:
        raise Forbidden(f"only the owner of this server, {owner}, {subject}", hints=("ask the owner",))


def check_may_stop(caller: Caller, run: Run, tree: QueueTree, *, owner: str) -> None:
    """Raises Forbidden unless the caller may stop the run.

    Allowed are the run's user, administrators of its queue or an ancestor, the server's owner, and the study
    whose trial it is.
    """
    if caller.run is not None and caller.run == run.spec.parent:
        return
    admins = effective_admins(tree, run.spec.queue) if run.spec.queue else ()
    if caller.require_user() not in (run.name.user, *admins, owner):
        allowed_users = ", ".join(dict.fromkeys([run.name.user, *admins, owner]))
        raise Forbidden(
            f"`{caller.user}` cannot end or delete run {run.name}; allowed users: {allowed_users}",
            hints=("ask one of them",),
        )


def check_may_change(caller: Caller, run: Run, tree: QueueTree, *, owner: str) -> None:
    """Raises Forbidden unless the caller is the run's user, an administrator of its queue or an ancestor, or
    the server's owner."""
    admins = effective_admins(tree, run.spec.queue) if run.spec.queue else ()
    if caller.require_user() not in (run.name.user, *admins, owner):
        allowed_users = ", ".join(dict.fromkeys([run.name.user, *admins, owner]))
        hints = ("ask one of them", "copy it to a run of your own with `hop fork`")
        raise Forbidden(
            f"`{caller.user}` cannot change run {run.name}; allowed users: {allowed_users}", hints=hints
        )


async def check_current_study_attempt(caller: Caller, runs: RunStore) -> None:
    """Raises Conflict for the driver of an attempt of a study that a later attempt superseded: it may start
    and stop no more trials."""
    if caller.run is not None and caller.attempt is not None:
        study = await runs.get(caller.run)
        check_not_superseded(
            caller.attempt, 0 if study.attempt is None else study.attempt.number, run=str(study.name)
        )


async def storage_user(caller: Caller, runs: RunStore) -> str:
    """Returns the user whose storage the caller uses. A run's own token uses that of the run's user."""
    return caller.user if caller.run is None else (await runs.get(caller.run)).name.user


def check_owns_run(caller: Caller, run: Run, *, owner: str) -> None:
    """Raises Forbidden unless the caller is the run itself (whose token was checked), its user, or the
    server's owner. Only they may change what a run wrote and saved."""
    if caller.run is None and caller.user not in (run.name.user, owner):
        allowed_users = ", ".join(dict.fromkeys([run.name.user, owner]))
        raise Forbidden(
            f"`{caller.user}` cannot change run {run.name}; allowed users: {allowed_users}",
            hints=("copy it to a run of your own with `hop fork`",),
        )
