"""Optuna behind ask and tell: one in-memory study, which learns from the results of trials and proposes the
next.

Equal calls in equal order give equal proposals: the randomness of the sampler comes from the seed alone, and
does not depend on hash order, clock or storage. Only this module imports Optuna, and only when a searcher
needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space, contains
from hopyard.errors import Conflict, SpecError
from hopyard.searchers.grid import combinations
from hopyard.searchers.optuna_space import axes, is_conditional, single_value
from hopyard.searchers.sampling import sample, sample_parameter, uniform

_RETRIES = 20  # repeated proposals, before another method is tried
Params = dict[str, ParamValue]
MakeSampler = Callable[[Any, int], Any]  # optuna, seed -> sampler


class MissingPackage(SpecError):
    """A searcher needs a package that is not installed here. It may be installed where the study runs."""


def load_optuna(searcher: str, *others: str) -> Any:
    """Returns the module `optuna`. Raises MissingPackage if it, or one of `others` that this searcher also
    needs, is not installed. The others are imported when they are used, because PyTorch takes seconds."""
    for name in ("optuna", *others):
        try:
            if name != "optuna" and find_spec(name) is None:
                raise ImportError(name)
            module = import_module("optuna")
        except ImportError as error:
            install_hint = (
                "PyTorch for your machine: https://pytorch.org"
                if name == "torch"
                else "pip install 'hopyard[search]'"
            )
            requirements_hint = "the study's driver needs it: add it to the study's requirements too"
            message = f"searcher.name: `{searcher}` needs the package {name}, which is not installed"
            raise MissingPackage(message, hints=(install_hint, requirements_hint)) from error
    return module


@contextmanager
def silence_logging(optuna: Any) -> Iterator[None]:
    """Silences the messages of Optuna, which are not meant for the users of Hopyard. Restores the level that
    the user's own code has set."""
    previous_level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(previous_level)


@contextmanager
def single_thread() -> Iterator[None]:
    """Runs PyTorch on one thread. Its small matrices gain nothing from more threads, and lose much where
    trials keep the cores busy. The results are the same on every machine."""
    import torch

    previous_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


class OptunaModel:
    """startup: completed trials that the model needs before its first proposal; earlier trials are drawn as
    by random search with the same seed. joint: the sampler gets all parameters, also those that do not exist
    in a trial (for samplers without conditions); otherwise only those that exist.

    No proposal is repeated while there is another: an equal seed would give an equal result. within: the
    context in which the sampler runs. slow_start: its first proposal in a process takes much longer than the
    next ones. recalls: the state of the sampler is in the results alone, and each proposal is a function of
    them and of its number. So proposals of an earlier process need not be computed again.
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
        recalls: bool = False,
    ) -> None:
        self._recalls = recalls
        # params of trials that an earlier process has proposed, by number
        self._recalled: Mapping[int, Mapping[str, ParamValue]] = {}
        self._optuna, self._space, self._seed, self._startup = optuna, space, seed, startup
        self._axes = axes(space)
        self._distributions = {name: axis.distribution(optuna) for name, axis in self._axes.items()}
        self._context = within
        self._make_sampler, self._is_slow_start = make, slow_start
        self._joint = joint or not is_conditional(space)
        # trial -> its number in Optuna, and its positions
        self._pending: dict[int, tuple[int, dict[str, float]]] = {}
        self._proposed_params: set[tuple[Any, ...]] = set()
        self.completed = 0  # trials that the sampler learns from
        with silence_logging(optuna):
            self._study = optuna.create_study(direction="minimize", sampler=self._new_sampler(0))

    def recall(self, params: Mapping[int, Mapping[str, ParamValue]]) -> None:
        """params: of trials that an earlier process has proposed, by number. They are taken as proposals,
        except those that are drawn at random, which are drawn again at no cost."""
        if self._recalls:
            self._recalled = params

    def _new_sampler(self, number: int) -> Any:
        return self._make_sampler(
            self._optuna, int(uniform(self._seed, number, "optuna", purpose="seed") * 2**32)
        )

    def propose(self, number: int) -> Params | None:
        """Returns the params of the trial of that number, for which `finish` is called later. Returns None if
        every configuration of the space was proposed. Raises Conflict for a recalled trial that is not in
        the space."""
        if self.completed < self._startup or not self._axes:
            if self._is_slow_start and number not in self._recalled:
                self._warm_up_sampler()
            return self._sample_unseen(number)
        if number in self._recalled:
            return self._recall_params(number)
        if self._is_slow_start:
            self._warm_up_sampler()
        with silence_logging(self._optuna), self._context():
            if self._recalls:
                self._study.sampler = self._new_sampler(number)
            for _ in range(_RETRIES):
                trial = self._study.ask()
                params, positions = self._suggest(trial)
                is_new = _key(params) not in self._proposed_params
                if is_new and not self._recalls:
                    return self._record_pending(number, trial.number, params, positions)
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                if is_new:  # without what the sampler noted on the trial, as a recalled one
                    return self.add_running(number, params)
        return self._sample_unseen(number)

    def _recall_params(self, number: int) -> Params:
        params = dict(self._recalled[number])
        for parameter in self._space.parameters:
            name = parameter.name
            if self._space.is_active(parameter, params) != (name in params) or (
                name in params and not contains(parameter.domain, params[name])
            ):
                raise Conflict(f"`{name}` of trial {number} is not in the space")
        return self.add_running(number, params)

    def _warm_up_sampler(self) -> None:
        """Makes and discards a proposal with another sampler, before any trial has begun. The imports and the
        compilation for the first proposal take a second or more; ended trials would have to wait for them
        later."""
        self._is_slow_start = False
        if not self._axes:
            return
        state = self._optuna.trial.TrialState.COMPLETE
        with silence_logging(self._optuna), self._context():
            study = self._optuna.create_study(
                direction="minimize", sampler=self._make_sampler(self._optuna, 0)
            )
            for number in range(max(self._startup, 2)):
                positions = self._to_positions(number, sample(self._space, self._seed, number))
                distributions = {name: self._distributions[name] for name in positions}
                study.add_trial(
                    self._optuna.trial.create_trial(
                        params=positions, distributions=distributions, state=state, value=float(number)
                    )
                )
            self._suggest(study.ask())

    def finish(self, number: int, loss: float | None, *, stopped_at: int | None = None) -> None:
        """Records the result of a trial: its loss, or None if it has none. stopped_at: the epoch at which it
        was stopped with that loss; it counts as worse than all trials that were not stopped."""
        state = self._optuna.trial.TrialState
        optuna_number, positions = self._pending.pop(number)
        with silence_logging(self._optuna):
            if loss is None or stopped_at is not None:
                self._study.tell(optuna_number, state=state.FAIL)
            else:
                self._study.tell(optuna_number, loss)
                self.completed += 1
        if loss is not None and stopped_at is not None:
            self._add(positions, state=state.PRUNED, intermediate_values={stopped_at: loss})
            self.completed += 1

    def add_result(self, number: int, params: Mapping[str, ParamValue], loss: float) -> None:
        """Records the result of a trial whose params another model proposed."""
        self._add(
            self._to_positions(number, params), state=self._optuna.trial.TrialState.COMPLETE, value=loss
        )
        self.completed += 1

    def _sample_unseen(self, number: int) -> Params | None:
        """Samples as random search does, again if the params were proposed before. Finally returns the first
        of all combinations that was not proposed."""
        for attempt in range(_RETRIES):
            params = sample(self._space, self._seed, number, purpose=f"again{attempt}" if attempt else "draw")
            if _key(params) not in self._proposed_params:
                return self.add_running(number, params)
        try:
            candidates = combinations(self._space)
        except SpecError:  # too many combinations for all to have been proposed
            return self.add_running(number, params)
        return next(
            (
                self.add_running(number, candidate)
                for candidate in candidates
                if _key(candidate) not in self._proposed_params
            ),
            None,
        )

    def add_running(self, number: int, params: Params) -> Params:
        """Adds a trial with params that the model did not propose; `finish` is called later."""
        positions = self._to_positions(number, params)
        return self._record_pending(
            number, self._add(positions, state=self._optuna.trial.TrialState.RUNNING), params, positions
        )

    def _add(self, positions: Mapping[str, float], **outcome: Any) -> int:
        """Adds a trial that Optuna did not propose. Returns its number in Optuna."""
        distributions = {name: self._distributions[name] for name in positions}
        with silence_logging(self._optuna):
            self._study.add_trial(
                self._optuna.trial.create_trial(
                    params=dict(positions), distributions=distributions, **outcome
                )
            )
        return len(self._study.get_trials(deepcopy=False)) - 1

    def _suggest(self, trial: Any) -> tuple[Params, dict[str, float]]:
        """Returns the params and positions of every parameter, in the order of the space."""
        positions: dict[str, float] = {}
        params: Params = {}
        for parameter in self._space.parameters:
            name, axis = parameter.name, self._axes.get(parameter.name)
            exists = self._space.is_active(parameter, params)
            if axis is not None and (exists or self._joint):
                positions[name] = axis.suggest(trial)
            if exists:
                params[name] = (
                    single_value(parameter.domain) if axis is None else axis.value_at(positions[name])
                )
        return params, positions

    def _to_positions(self, number: int, params: Mapping[str, ParamValue]) -> dict[str, float]:
        """Returns the positions of params. For samplers without conditions, a parameter that does not exist
        gets the position where it would have been drawn."""
        positions: dict[str, float] = {}
        for parameter in self._space.parameters:
            axis = self._axes.get(parameter.name)
            if axis is not None and (parameter.name in params or self._joint):
                value = (
                    params[parameter.name]
                    if parameter.name in params
                    else sample_parameter(parameter, self._seed, number)
                )
                positions[parameter.name] = axis.position_of(value)
        return positions

    def _record_pending(
        self, number: int, optuna_number: int, params: Params, positions: dict[str, float]
    ) -> Params:
        self._pending[number] = optuna_number, positions
        self._proposed_params.add(_key(params))
        return params


def _key(params: Mapping[str, ParamValue]) -> tuple[Any, ...]:
    return tuple(params.items())
