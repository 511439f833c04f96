"""Optuna behind ask and tell: one study of its own, in memory, which learns what came of trials and proposes
the next.

Equal calls in equal order give equal proposals: the sampler's chance comes from the seed alone, and nothing
of it depends on hash order, clock or storage. Optuna is imported here and nowhere else in this room, and only
when a searcher asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.errors import SpecError
from hopyard.searchers.grid import combinations
from hopyard.searchers.optuna_space import axes, is_conditional, single_value
from hopyard.searchers.sampling import sample, sample_parameter, uniform

_RETRIES = 20  # proposals that were made before, until another way is tried
Params = dict[str, ParamValue]
MakeSampler = Callable[[Any, int], Any]  # optuna, seed -> sampler


class MissingPackage(SpecError):
    """A searcher needs a package that is not installed here; it may be installed where the study runs."""


def load_optuna(searcher: str, *others: str) -> Any:
    """The module `optuna`. Raises LacksPackage where it, or one of `others` that this searcher needs too, is
    not installed; those are not imported before they are used, for PyTorch takes seconds."""
    for name in ("optuna", *others):
        try:
            if name != "optuna" and find_spec(name) is None:
                raise ImportError(name)
            found = import_module("optuna")
        except ImportError as missing:
            hint = (
                "PyTorch for your machine: https://pytorch.org"
                if name == "torch"
                else "pip install 'hopyard[search]'"
            )
            where = "the study's driver needs it: add it to the study's requirements too"
            told = f"searcher.name: `{searcher}` needs the package {name}, which is not installed"
            raise MissingPackage(told, hints=(hint, where)) from missing
    return found


@contextmanager
def silence_logging(optuna: Any) -> Iterator[None]:
    """Without what Optuna says to people: they asked Hopyard. What the user's own code has set comes back."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def single_thread() -> Iterator[None]:
    """PyTorch on one thread: its small matrices gain nothing from more, lose much where trials keep the cores
    busy, and come out the same on every machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class OptunaModel:
    """startup: trials that must have completed before the model is asked; those before are drawn as by random
    search with the same seed. joint: all parameters are told to the sampler, also those that do not exist in
    a trial (for samplers that know no conditions); else only those that do.

    No proposal is made twice, where there is another: an equal seed would give an equal result. within: what
    the sampler is asked in. slow_start: its first proposal in a process takes much longer than the next ones.
    """

    def __init__(
        self,
        *,
        optuna: Any,
        space: Space,
        seed: int,
        startup: int,
        make: MakeSampler,
        joint: bool = False,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
        slow_start: bool = False,
    ) -> None:
        self._optuna, self._space, self._seed, self._startup = optuna, space, seed, startup
        self._axes = axes(space)
        self._distributions = {name: axis.distribution(optuna) for name, axis in self._axes.items()}
        self._context = within
        self._make_sampler, self._is_slow_start = make, slow_start
        self._joint = joint or not is_conditional(space)
        # trial -> Optuna's number of it, and where it lies
        self._pending: dict[int, tuple[int, dict[str, float]]] = {}
        self._proposed_params: set[tuple[Any, ...]] = set()
        self.completed = 0  # trials that the sampler learns from
        with silence_logging(optuna):
            sampler = make(optuna, int(uniform(seed, 0, "optuna", purpose="seed") * 2**32))
            self._study = optuna.create_study(direction="minimize", sampler=sampler)

    def propose(self, number: int) -> Params | None:
        """The params of the trial of that number, for which `finish` is called later; None where every
        configuration of the space was proposed already."""
        if self._is_slow_start:
            self._warm_up_sampler()
        if self.completed < self._startup or not self._axes:
            return self._sample_unseen(number)
        with silence_logging(self._optuna), self._context():
            for _ in range(_RETRIES):
                trial = self._study.ask()
                params, places = self._suggest(trial)
                if _key(params) not in self._proposed_params:
                    return self._record_pending(number, trial.number, params, places)
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return self._sample_unseen(number)

    def _warm_up_sampler(self) -> None:
        """A proposal that nobody wants, by another sampler: what is imported and compiled for the first one
        takes a second or more, for which trials that end would have to wait later. Now none has begun."""
        self._is_slow_start = False
        if not self._axes:
            return
        state = self._optuna.trial.TrialState.COMPLETE
        with silence_logging(self._optuna), self._context():
            study = self._optuna.create_study(
                direction="minimize", sampler=self._make_sampler(self._optuna, 0)
            )
            for number in range(max(self._startup, 2)):
                places = self._to_positions(number, sample(self._space, self._seed, number))
                known = {name: self._distributions[name] for name in places}
                study.add_trial(
                    self._optuna.trial.create_trial(
                        params=places, distributions=known, state=state, value=float(number)
                    )
                )
            self._suggest(study.ask())

    def finish(self, number: int, loss: float | None, *, stopped_at: int | None = None) -> None:
        """What came of it: its loss; None where it has none. stopped_at: the epoch at which it was stopped
        with that loss: it counts as worse than all that were not."""
        state = self._optuna.trial.TrialState
        begun, places = self._pending.pop(number)
        with silence_logging(self._optuna):
            if loss is None or stopped_at is not None:
                self._study.tell(begun, state=state.FAIL)
            else:
                self._study.tell(begun, loss)
                self.completed += 1
        if loss is not None and stopped_at is not None:
            self._add(places, state=state.PRUNED, intermediate_values={stopped_at: loss})
            self.completed += 1

    def add_result(self, number: int, params: Mapping[str, ParamValue], loss: float) -> None:
        """What came of a trial whose params another model proposed."""
        self._add(
            self._to_positions(number, params), state=self._optuna.trial.TrialState.COMPLETE, value=loss
        )
        self.completed += 1

    def _sample_unseen(self, number: int) -> Params | None:
        """As random search draws it, anew where that was proposed already; at last, the first of all that was
        not."""
        for attempt in range(_RETRIES):
            params = sample(self._space, self._seed, number, purpose=f"again{attempt}" if attempt else "draw")
            if _key(params) not in self._proposed_params:
                return self._add_running(number, params)
        try:
            others = combinations(self._space)
        except SpecError:  # far too many to have been proposed all
            return self._add_running(number, params)
        return next(
            (
                self._add_running(number, other)
                for other in others
                if _key(other) not in self._proposed_params
            ),
            None,
        )

    def _add_running(self, number: int, params: Params) -> Params:
        places = self._to_positions(number, params)
        return self._record_pending(
            number, self._add(places, state=self._optuna.trial.TrialState.RUNNING), params, places
        )

    def _add(self, places: Mapping[str, float], **outcome: Any) -> int:
        """A trial that Optuna did not propose; its number there."""
        known = {name: self._distributions[name] for name in places}
        with silence_logging(self._optuna):
            self._study.add_trial(
                self._optuna.trial.create_trial(params=dict(places), distributions=known, **outcome)
            )
        return len(self._study.get_trials(deepcopy=False)) - 1

    def _suggest(self, trial: Any) -> tuple[Params, dict[str, float]]:
        """Params and places, of every parameter in the order of the space."""
        places: dict[str, float] = {}
        chosen: Params = {}
        for parameter in self._space.parameters:
            name, axis = parameter.name, self._axes.get(parameter.name)
            exists = self._space.is_active(parameter, chosen)
            if axis is not None and (exists or self._joint):
                places[name] = axis.suggest(trial)
            if exists:
                chosen[name] = single_value(parameter.domain) if axis is None else axis.value_at(places[name])
        return chosen, places

    def _to_positions(self, number: int, params: Mapping[str, ParamValue]) -> dict[str, float]:
        """Where params lie; a parameter that does not exist lies where it would have been drawn, for samplers
        that know no conditions."""
        places: dict[str, float] = {}
        for parameter in self._space.parameters:
            axis = self._axes.get(parameter.name)
            if axis is not None and (parameter.name in params or self._joint):
                value = (
                    params[parameter.name]
                    if parameter.name in params
                    else sample_parameter(parameter, self._seed, number)
                )
                places[parameter.name] = axis.position_of(value)
        return places

    def _record_pending(self, number: int, begun: int, params: Params, places: dict[str, float]) -> Params:
        self._pending[number] = begun, places
        self._proposed_params.add(_key(params))
        return params


def _key(params: Mapping[str, ParamValue]) -> tuple[Any, ...]:
    return tuple(params.items())
