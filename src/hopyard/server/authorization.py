"""Who may do what to whom: the server's owner, administrators of queues, and whose a run is.
Everybody with a token may read."""

from __future__ import annotations

from hopyard.domain.effective_limits import effective_admins
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import Run, check_not_superseded
from hopyard.errors import Forbidden
from hopyard.interfaces.run_store import RunStore
from hopyard.server.authentication import Caller


def check_owner(caller: Caller, owner: str, subject: str) -> None:
    """Raises Forbidden unless it is the server's owner. subject: ends the sentence, as in `adds users`."""
    if caller.require_user() != owner:
        raise Forbidden(f"only the owner of this server, {owner}, {subject}", hints=("ask them",))


def check_may_stop(caller: Caller, run: Run, tree: QueueTree, *, owner: str) -> None:
    """Raises Forbidden unless the run is the caller's, or the caller administers its queue or one above it,
    owns the server, or is the study whose trial's run it is."""
    if caller.run is not None and caller.run == run.spec.parent:
        return
    above = effective_admins(tree, run.spec.queue) if run.spec.queue else ()
    if caller.require_user() not in (run.name.user, *above, owner):
        who = ", ".join(dict.fromkeys([run.name.user, *above, owner]))
        raise Forbidden(
            f"`{caller.user}` cannot end or delete run {run.name}; allowed users: {who}",
            hints=("ask one of them",),
        )


def check_may_change(caller: Caller, run: Run, tree: QueueTree, *, owner: str) -> None:
    """Raises Forbidden unless the run is the caller's, or the caller administers its queue or one above it,
    or owns the server."""
    above = effective_admins(tree, run.spec.queue) if run.spec.queue else ()
    if caller.require_user() not in (run.name.user, *above, owner):
        who = ", ".join(dict.fromkeys([run.name.user, *above, owner]))
        hints = ("ask one of them", "copy it to a run of your own with `hop fork`")
        raise Forbidden(f"`{caller.user}` cannot change run {run.name}; allowed users: {who}", hints=hints)


async def check_current_study_attempt(caller: Caller, runs: RunStore) -> None:
    """Raises Conflict for the driver of an attempt of a study that a later one has taken the place of: it
    starts and ends no trials any more."""
    if caller.run is not None and caller.attempt is not None:
        study = await runs.get(caller.run)
        check_not_superseded(
            caller.attempt, 0 if study.attempt is None else study.attempt.number, run=str(study.name)
        )


async def storage_user(caller: Caller, runs: RunStore) -> str:
    """The user with the storage that the caller fills: a run's own token fills that of the run's user."""
    return caller.user if caller.run is None else (await runs.get(caller.run)).name.user


def check_owns_run(caller: Caller, run: Run, *, owner: str) -> None:
    """Raises Forbidden unless it is the run itself (whose token was checked), its user, or the server's
    owner: what a run wrote and saved is its user's alone to change."""
    if caller.run is None and caller.user not in (run.name.user, owner):
        who = ", ".join(dict.fromkeys([run.name.user, owner]))
        raise Forbidden(
            f"`{caller.user}` cannot change run {run.name}; allowed users: {who}",
            hints=("copy it to a run of your own with `hop fork`",),
        )
