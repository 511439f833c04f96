"""The functions of `import hopyard as hop`. Each works under `hop run` and, recorded offline, under plain
`python`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from hopyard.errors import SpecError
from hopyard.sdk import bound_objects as binding
from hopyard.sdk import session
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.data import find_dataset
from hopyard.sdk.gpu_share import limit_torch_memory
from hopyard.sdk.metrics import Number
from hopyard.sdk.params import Params
from hopyard.sdk.resumable_loop import Loop
from hopyard.sdk.run_context import RunContext

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

T = TypeVar("T")


def params(**defaults: ParamValue) -> Params:
    """Declare hyperparameters with their defaults; returns the values to use.

    `-p lr=0.1`, a study or a fork override a default; the override is converted to the type of the default.
    Raises SpecError where it cannot be (``-p lr=abc: `lr` is a float``).
    """
    return Params(session.current_session().declare_params(defaults))


def dataset_path(name: str | None = None) -> Path:
    """The local, read-only folder of a dataset of this run (`-d NAME`); its only one when no name is given.

    Under plain `python` the newest version is brought from the server when it is not on this machine yet.
    Raises NotFound.
    """
    return find_dataset(name, session.current_session())


def bind(**objects: Any) -> BoundObjects:
    """Say what a checkpoint holds: models, optimizers, schedulers, generators, plain values, under names of
    your choice.

    Functions (`infer=predict`) are kept aside for demos. Returns a namespace of all that is bound, through
    which plain values are kept up to date.
    """
    bound = session.current_session().bound
    limit_torch_memory()
    binding.bind_objects(bound, objects)
    return bound


def loop(iterable: Iterable[T], *, every: int = 1, name: str = "epoch") -> Loop[T]:
    """Iterate, going on where the checkpoint left off; each turn is a safe point.

    The bound objects are saved after every `every` turns and at the end. Loops may be nested and follow one
    another. name: what a turn is called.
    """
    return Loop(iterable, session.current_session(), save_every=every, name=name)


def log(
    values: Mapping[str, Number] | int | None = None,
    /,
    *,
    step: SupportsIndex | None = None,
    **metrics: Number,
) -> None:
    """Record metrics: `hop.log(loss=0.3, step=7)`, or `hop.log({"val/acc": 0.9}, step=7)` for names that are
    no identifiers.

    Values are numbers, scalars of NumPy, or tensors of one element; NaN and infinity are kept. Without `step`
    the points of a metric are counted. Takes about two microseconds and never waits for the network. Raises
    SpecError for a value that is not a number; a full disk is told once on stderr and raises nothing.
    """
    opened = session._session or session.current_session()
    if values is not None:
        if isinstance(values, Mapping):
            metrics = {**values, **metrics}
        elif step is None:
            step = values
        else:
            raise SpecError("hop.log: two steps are given")
    opened.metrics.write(step, metrics)


def save(step: SupportsIndex | None = None, **metrics: Number) -> Path | None:
    """Save a checkpoint of the bound objects now. Returns its folder; None in processes of a rank other than
    0.

    step: what it is called; by default the turns of the loop so far. metrics: recorded with it beside the
    latest logged ones.
    """
    return session.current_session().save(step, metrics)


def load() -> int | None:
    """Restore the bound objects from the checkpoint that this run starts from, if there is one; returns its
    step.

    `hop.loop` does this by itself; call it in scripts that have a loop of their own.
    """
    return session.current_session().load()


def summary(values: Mapping[str, Number] | None = None, /, **more: Number) -> None:
    """Record results of the whole run: what leaderboards rank by.
    A name said again replaces what was said before."""
    opened = session.current_session()
    opened.check_overrides()
    opened.record_summary({**(values or {}), **more})


def run() -> RunContext:
    """The run that this process is part of: id, name, rank, world_size, folder, params, tags."""
    return session.current_session().this_run()
