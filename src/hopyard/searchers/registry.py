"""Creates the searcher of a study spec. A built-in searcher is imported only when it is used, so its
dependencies (Optuna) are optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.searchers import check_options, get_searcher, is_custom, requires_trials
from hopyard.domain.space import check_space
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.interfaces.searcher import Searcher

Factory = Callable[..., Any]  # called with (space, goal, trials, max_epochs, seed, **options), all by name
# loads the user's `file.py:Name` or `module:Name`; raises SpecError if it does not exist
Load = Callable[[str], Factory]


def build(spec: StudySpec, load: Load) -> Searcher:
    """Returns a new searcher for a study. Raises SpecError, with path and hint, for an invalid spec."""
    check_space(spec.space, is_stored=True)
    if spec.max_epochs < 1:
        raise SpecError(f"max_epochs: `{spec.max_epochs}` is out of range", hints=("allowed: at least 1",))
    name, options = spec.searcher.name, spec.searcher.options
    if not is_custom(name):
        options = check_options(name, options)
    if spec.trials is None and requires_trials(name, options):
        raise SpecError(f"trials: `{name}` needs a number of trials", hints=("set it: `trials: 100`",))
    if spec.trials is not None and spec.trials < 1:
        raise SpecError(f"trials: `{spec.trials}` is out of range", hints=("allowed: at least 1",))
    if is_custom(name) or not get_searcher(name).wrapped:
        return _create(spec, name, options, load)
    kind = get_searcher(name)
    own_options = {key: value for key, value in options.items() if key in kind.options}
    inner_name = str(own_options.pop(kind.wrapped))
    inner_options = {key: value for key, value in options.items() if key not in kind.options}
    if not is_custom(inner_name):
        inner_options = check_options(inner_name, inner_options)
    return _create(spec, name, {**own_options, "inner": _create(spec, inner_name, inner_options, load)}, load)


def _create(spec: StudySpec, name: str, options: Mapping[str, Any | ParamValue], load: Load) -> Searcher:
    factory = load(name) if is_custom(name) else _find(get_searcher(name).target)
    arguments = {
        "space": spec.space,
        "goal": spec.goal,
        "trials": spec.trials,
        "max_epochs": spec.max_epochs,
        "seed": spec.seed,
    }
    if not is_custom(name):
        built = factory(**arguments, **options)
        if spec.points:
            from hopyard.searchers.base import TrackingSearcher  # late: few studies name points

            if isinstance(built, TrackingSearcher):
                built.points = spec.points
        return built  # type: ignore[no-any-return]
    try:
        searcher = factory(**arguments, **options)
    except TypeError as error:
        hint = "it is called with space, goal, trials, max_epochs, seed and the options, all by name"
        raise SpecError(f"searcher.name: `{name}` cannot be created: {error}", hints=(hint,)) from error
    missing_methods = [method for method in ("ask", "tell") if not callable(getattr(searcher, method, None))]
    if missing_methods:
        raise SpecError(
            f"searcher.name: `{name}` returned a {type(searcher).__name__}, which has no "
            f"{' and no '.join(missing_methods)}",
            hints=("a searcher has ask() and tell(report): see docs/guides/own-searcher.md",),
        )
    return searcher  # type: ignore[no-any-return]


def _find(target: str) -> Factory:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
