"""The functions of `import hopyard as hop`. Each works under `hop run` and, recorded offline, under plain
`python`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from hopyard.domain.notification import AlertLevel, check_alert
from hopyard.errors import SpecError
from hopyard.sdk import bound_objects as binding
from hopyard.sdk import session
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.data import find_dataset
from hopyard.sdk.gpu_share import limit_torch_memory
from hopyard.sdk.media import Audio as Audio
from hopyard.sdk.media import Figure as Figure
from hopyard.sdk.media import Histogram as Histogram
from hopyard.sdk.media import Image as Image
from hopyard.sdk.media import Table as Table
from hopyard.sdk.media import Text as Text
from hopyard.sdk.media import Video as Video
from hopyard.sdk.metrics import Loggable, Number
from hopyard.sdk.params import Params
from hopyard.sdk.resumable_loop import Loop
from hopyard.sdk.run_context import RunContext
from hopyard.sdk.warn_once import warn_once

if TYPE_CHECKING:
    from hopyard.sdk.run_checkpoints import RunCheckpoint

T = TypeVar("T")


def params(**defaults: Any) -> Params:
    """Declares hyperparameters with their defaults; returns the values to use.

    `-p lr=0.1`, a study or a fork overrides a default; the override is converted to the type of the default.
    A list, tuple or dict is overridden as JSON; a list also as `-p sizes=64,32`. Raises SpecError if the
    conversion fails (``-p lr=abc: `lr` is a float``).
    """
    return session.current_session().declare_params(defaults)


def dataset_path(name: str | None = None) -> Path:
    """Returns the local, read-only folder of a dataset of this run (`-d NAME`); the only one if no name is
    given.

    Under plain `python` the newest version is downloaded from the server if it is not on this machine yet.
    Raises NotFound.
    """
    return find_dataset(name, session.current_session())


def bind(**objects: Any) -> BoundObjects:
    """Declares what a checkpoint holds: models, optimizers, schedulers, generators, plain values, under names
    of your choice.

    Functions (`infer=predict`) are available to demos but are not saved. Returns a namespace of all bound
    objects, through which plain values are updated.
    """
    bound = session.current_session().bound
    limit_torch_memory()
    binding.bind_objects(bound, objects)
    return bound


def loop(
    iterable: Iterable[T], *, every: int = 1, name: str = "epoch", keep_best: str | None = None
) -> Loop[T]:
    """Iterates, resuming where the checkpoint was made; each iteration is a safe point.

    The bound objects are saved after every `every` iterations and at the end. Loops may be nested and follow
    one another. name: what an iteration is called. keep_best: the metric of the best checkpoint ("val_loss",
    "max:val_acc"), which is kept beside the newest. An iteration that improves it is saved.
    """
    current = session.current_session()
    if keep_best is not None:
        current.best_metric.request(keep_best)
    return Loop(iterable, current, save_every=every, name=name)


def log(
    values: Mapping[str, Loggable] | int | None = None,
    /,
    *,
    step: SupportsIndex | None = None,
    **metrics: Loggable,
) -> None:
    """Records metrics and media: `hop.log(loss=0.3, step=7)`, or `hop.log({"val/acc": 0.9}, step=7)` for
    names that are not identifiers.

    Values are numbers, scalars of NumPy, or tensors of one element; NaN and infinity are kept. Media are
    `hop.Image`, `hop.Audio`, `hop.Video`, `hop.Histogram`, `hop.Table`, `hop.Text`, `hop.Figure`, and lists
    of them. Any other value is reported once on stderr and skipped. Without `step` the points of a metric are
    counted. Takes about two microseconds for numbers and never waits for the network. A full disk causes one
    warning on stderr and no exception. In a script without `hop.loop` it is a safe point, at which commands
    such as `hop pause` are applied.
    """
    if values is not None:
        if isinstance(values, Mapping):
            metrics = {**values, **metrics}
        elif step is None:
            step = values
        else:
            raise SpecError("hop.log: two steps are given")
    if session.metric_sink is not None:
        session.metric_sink.write(step, metrics)
        return
    current = session._session or session.current_session()
    current.metrics.write(step, metrics)
    if current.acts_at_log:
        current.reach_log(step)


def alert(text: str, *, title: str = "", level: str = "warning") -> None:
    """Gives notice of something: `hop.alert("the loss is NaN", title="diverged", level="error")`.

    The targets of the run (`--on-end`) are notified within seconds, and `hop info` lists it. level: info,
    warning or error. Equal alerts within a minute are one, also of several processes; a run has at most 100.
    Never waits for the network. Another level is reported on stderr, and the alert is a warning; an alert
    without text is reported and left out.
    """
    if level not in list(AlertLevel):
        warn_once(
            f"hop.alert: `{level}` is no level (info, warning, error): it is a warning", kind="alert level"
        )
        level = AlertLevel.WARNING
    try:  # an alert is rare, often in the last hour of a training: a mistake in it must not end the script
        text, title = check_alert(text, title, level)
    except SpecError as error:
        warn_once(f"hop.{error.message}; it is left out", kind="alert text")
        return
    session.current_session().record_alert(text, title, level)


def checkpoints() -> Iterable[RunCheckpoint]:
    """Yields the checkpoints of the run that this one evaluates, in the order of saving, each once.

    For a script that was started with `hop evaluate`. Each has `step`, `path` and `metrics`. Bound objects
    are restored from it, and `hop.log` reports at its step, into the evaluated run. Ends when that run has
    ended and all of its checkpoints are evaluated. Raises SpecError in any other run.
    """
    from hopyard.sdk.run_checkpoints import RunCheckpoints

    return RunCheckpoints(session.current_session())


def save(step: SupportsIndex | None = None, *, keep: bool = False, **metrics: Number) -> Path | None:
    """Saves a checkpoint of the bound objects now. Returns its folder; None in processes of a rank other than
    0.

    step: the checkpoint's step; by default the number of loop iterations so far. keep: whether it stays as
    long as the run, beside the newest ones. metrics: stored with it beside the latest logged ones.
    """
    return session.current_session().save(step, metrics, keep=keep)


def load() -> int | None:
    """Restores the bound objects from the checkpoint that this run starts from, if any. Returns its step.

    `hop.loop` calls it. Call it in scripts with their own loop.
    """
    return session.current_session().load()


def summary(values: Mapping[str, Number] | None = None, /, **more: Number) -> None:
    """Records results of the whole run, which leaderboards rank by. A later value of the same name replaces
    the earlier one.
    """
    current = session.current_session()
    current.check_overrides()
    current.record_summary({**(values or {}), **more})


def run() -> RunContext:
    """Returns the run that this process belongs to: id, name, rank, world_size, folder, params, tags."""
    return session.current_session().this_run()


def peers() -> dict[str, str]:
    """Returns the address of each other replica of the gang by its name (`worker-1`, `ps-0`), in the order of
    ranks; empty for a single process. The names also resolve as host names, see `hop.run().hosts`.
    """
    this = session.current_session().this_run()
    return {name: address for name, address in this.hosts.items() if name != this.replica}
