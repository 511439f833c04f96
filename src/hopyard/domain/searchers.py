"""The built-in searchers by name, with their options, as data for builders and listings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.suggest import unknown_name_hints
from hopyard.errors import SpecError


class OptionKind(StrEnum):
    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    CHOICE = "a word"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a searcher. default: None means that the searcher decides. low, high: both included.
    choices: the allowed values (() for any)."""

    kind: OptionKind
    default: ParamValue
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, value: ParamValue, path: str) -> ParamValue:
        """Returns the value in the type that its searcher expects. Raises SpecError with `path`."""
        if value is None and self.default is None:
            return None
        is_valid = {
            OptionKind.INTEGER: isinstance(value, int) and not isinstance(value, bool),
            OptionKind.NUMBER: isinstance(value, int | float)
            and not isinstance(value, bool)
            and isfinite(value),
            OptionKind.BOOLEAN: isinstance(value, bool),
            OptionKind.CHOICE: isinstance(value, str),
        }[self.kind]
        if not is_valid:
            raise SpecError(f"{path}: `{value}` is not {self.kind.value}", hints=(self.description,))
        if isinstance(value, str) and self.choices and value not in self.choices:
            raise SpecError(f"{path}: unknown `{value}`", hints=unknown_name_hints(value, self.choices))
        if isinstance(value, int | float) and not self._is_in_range(value):
            raise SpecError(
                f"{path}: `{value}` is out of range", hints=(f"allowed: {self._describe_range()}",)
            )
        return float(value) if self.kind is OptionKind.NUMBER and isinstance(value, int) else value

    def _is_in_range(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def _describe_range(self) -> str:
        if self.high is None:
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if self.low is None else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class SearcherKind:
    """A built-in searcher.

    description: one sentence. target: `module:attribute`, called with (space, goal, trials, max_epochs, seed,
    **options). requires_trials: whether the study must set the number of trials; otherwise None lets the
    searcher decide. wrapped: the option that names a wrapped searcher, whose options are set beside its own
    ("" for none).
    """

    description: str
    target: str
    options: Mapping[str, Option] = field(default_factory=dict)
    requires_trials: bool = False
    wrapped: str = ""


_ETA = Option(OptionKind.INTEGER, 3, "reduction factor: one in `eta` trials is promoted at each rung", low=2)
_MIN_EPOCHS = Option(OptionKind.INTEGER, 1, "epochs at the lowest rung", low=1)
_STARTUP = Option(OptionKind.INTEGER, 10, "random trials before the model proposes", low=1)
_SEARCHERS_PACKAGE = "hopyard.searchers."

SEARCHERS: Mapping[str, SearcherKind] = {
    "random": SearcherKind(
        "Random search: draws each trial independently, each parameter from its own random stream.",
        _SEARCHERS_PACKAGE + "random_search:Random",
        requires_trials=True,
    ),
    "grid": SearcherKind(
        "Grid search: tries every combination of the points of all parameters once.",
        _SEARCHERS_PACKAGE + "grid:Grid",
        {
            "points": Option(OptionKind.INTEGER, None, "points per range, for ranges that set none", low=1),
            "shuffle": Option(
                OptionKind.BOOLEAN,
                False,
                "order drawn from the seed; otherwise the last parameter changes fastest",
            ),
        },
    ),
    "median": SearcherKind(
        "Median stopping: stops a trial that is worse than the median of the others at the same epoch. "
        "Another searcher proposes.",
        _SEARCHERS_PACKAGE + "median:MedianStopping",
        {
            "of": Option(OptionKind.CHOICE, "random", "the searcher that proposes"),
            "grace": Option(OptionKind.INTEGER, 1, "epochs before a trial can be stopped", low=0),
            "least": Option(
                OptionKind.INTEGER,
                5,
                "trials to compare with before a trial can be stopped",
                low=1,
            ),
        },
        wrapped="of",
    ),
    "halving": SearcherKind(
        "Successive halving: when all trials have reached a rung, the best 1/eta continue.",
        _SEARCHERS_PACKAGE + "halving:Halving",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
    ),
    "hyperband": SearcherKind(
        "Successive halving over several brackets, from many short trials to few long ones.",
        _SEARCHERS_PACKAGE + "hyperband:Hyperband",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
    ),
    "asha": SearcherKind(
        "Asynchronous successive halving: a trial among the best 1/eta of its rung continues at once, "
        "without waiting for others.",
        _SEARCHERS_PACKAGE + "asha:Asha",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
        requires_trials=True,
    ),
    "bohb": SearcherKind(
        "Hyperband with trials from TPE, fitted to the largest budget that enough trials have reached "
        "(Optuna).",
        _SEARCHERS_PACKAGE + "bohb:Bohb",
        {
            "eta": _ETA,
            "min_epochs": _MIN_EPOCHS,
            "random": Option(OptionKind.NUMBER, 1 / 3, "fraction of trials drawn at random", low=0, high=1),
        },
    ),
    "tpe": SearcherKind(
        "Multivariate tree-structured Parzen estimator: samples near good trials and away from bad "
        "ones (Optuna).",
        _SEARCHERS_PACKAGE + "optuna_searchers:Tpe",
        {"startup": _STARTUP},
        requires_trials=True,
    ),
    "gp": SearcherKind(
        "Gaussian process: for few, expensive trials; a proposal takes seconds (Optuna, PyTorch).",
        _SEARCHERS_PACKAGE + "optuna_searchers:GaussianProcess",
        {"startup": _STARTUP},
        requires_trials=True,
    ),
    "cmaes": SearcherKind(
        "CMA-ES (covariance matrix adaptation): for many trials over real and whole numbers (Optuna).",
        _SEARCHERS_PACKAGE + "optuna_searchers:CmaEs",
        {
            "startup": Option(OptionKind.INTEGER, 1, "random trials before CMA-ES starts", low=1),
            "population": Option(OptionKind.INTEGER, None, "trials per generation", low=3),
        },
        requires_trials=True,
    ),
    "pbt": SearcherKind(
        "Population based training: after each interval, the worst trials copy the state of the best "
        "and perturb its parameters.",
        _SEARCHERS_PACKAGE + "pbt:PopulationBased",
        {
            "interval": Option(
                OptionKind.INTEGER, 1, "epochs between two comparisons of the population", low=1
            ),
            "quantile": Option(
                OptionKind.NUMBER,
                0.25,
                "fraction of the population that copies, and fraction that is copied",
                low=0,
                high=0.5,
            ),
            "resample": Option(
                OptionKind.NUMBER,
                0.25,
                "probability that a parameter is resampled instead of perturbed",
                low=0,
                high=1,
            ),
            "factor": Option(
                OptionKind.NUMBER, 1.2, "factor by which a number is multiplied or divided", low=1
            ),
            "rounds": Option(
                OptionKind.BOOLEAN, False, "whether all trials wait for each other at each interval"
            ),
        },
        requires_trials=True,
    ),
}


_OTHER_TOOL_NAMES = {  # names in other programs, letters and digits only
    "bayes": "tpe",
    "bayesian": "tpe",
    "bayesopt": "gp",
    "bo": "gp",
    "gaussianprocess": "gp",
    "hyperopt": "tpe",
    "optuna": "tpe",
    "cma": "cmaes",
    "sha": "halving",
    "successivehalving": "halving",
    "gridsearch": "grid",
    "randomsearch": "random",
    "medianstopping": "median",
    "population": "pbt",
    "populationbasedtraining": "pbt",
    "ashascheduler": "asha",
    "asynchyperband": "asha",
}


def is_custom(name: str) -> bool:
    """Returns whether the name is a user's own searcher (`module:attribute`, `file.py:attribute`), not a
    built-in one."""
    return ":" in name


def get_searcher(name: str, path: str = "searcher.name") -> SearcherKind:
    """Returns the built-in searcher. Raises SpecError with `path` and the closest name."""
    if name not in SEARCHERS:
        custom_hint = "or name a class of your own: `file.py:Name`, `package.module:Name`"
        alias = _OTHER_TOOL_NAMES.get("".join(character for character in name.lower() if character.isalnum()))
        hints = (
            (f"did you mean `{alias}`?", *unknown_name_hints("", SEARCHERS, subject="searchers"))
            if alias
            else unknown_name_hints(name, SEARCHERS, subject="searchers")
        )
        raise SpecError(f"{path}: unknown searcher `{name}`", hints=(*hints, custom_hint))
    return SEARCHERS[name]


def check_options(
    name: str, options: Mapping[str, ParamValue], path: str = "searcher"
) -> dict[str, ParamValue]:
    """Returns all options of a built-in searcher, as set or by default. For a wrapper, includes the set
    options of the wrapped searcher.

    Raises SpecError for an unknown searcher or option (with the closest name), a wrong type, or a value out
    of range.
    """
    kind = get_searcher(name, f"{path}.name")
    allowed = dict(kind.options)
    if kind.wrapped:
        wrapped = options.get(kind.wrapped, kind.options[kind.wrapped].default)
        if isinstance(wrapped, str) and not is_custom(wrapped):
            if get_searcher(wrapped, f"{path}.options.{kind.wrapped}").wrapped:
                raise SpecError(
                    f"{path}.options.{kind.wrapped}: `{wrapped}` is itself a wrapper of another searcher"
                )
            allowed = {**SEARCHERS[wrapped].options, **allowed}
        else:
            allowed = {**{key: Option(OptionKind.CHOICE, None, "") for key in options}, **allowed}
    for key in options:
        if key not in allowed:
            hints = unknown_name_hints(key, allowed) or (f"`{name}` has no options",)
            raise SpecError(f"{path}.options.{key}: `{name}` has no such option", hints=hints)
    own_options = {
        key: option.check(options.get(key, option.default), f"{path}.options.{key}")
        for key, option in kind.options.items()
    }
    return own_options | {
        key: value
        if is_custom(str(options.get(kind.wrapped, "")))
        else allowed[key].check(value, f"{path}.options.{key}")
        for key, value in options.items()
        if key not in own_options
    }


def requires_trials(name: str, options: Mapping[str, ParamValue]) -> bool:
    """Returns whether a study with this searcher must set the number of trials. A user's own searcher decides
    itself."""
    if is_custom(name):
        return False
    kind = get_searcher(name)
    if kind.wrapped:
        return requires_trials(str(options.get(kind.wrapped, kind.options[kind.wrapped].default)), options)
    return kind.requires_trials
