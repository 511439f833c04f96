"""The built-in searchers by name, with the options that each takes: data, for who builds them and for who
lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.suggest import hints_for
from hopyard.errors import SpecError


class OptionKind(StrEnum):
    INTEGER = "a whole number"
    NUMBER = "a number"
    TRUTH = "true or false"
    WORD = "a word"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a searcher. default: None leaves it to the searcher. low, high: both included.
    words: the only ones allowed (() any)."""

    kind: OptionKind
    default: ParamValue
    about: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()

    def check(self, value: ParamValue, path: str) -> ParamValue:
        """The value as its searcher takes it. Raises SpecError, naming `path`."""
        if value is None and self.default is None:
            return None
        fits = {
            OptionKind.INTEGER: isinstance(value, int) and not isinstance(value, bool),
            OptionKind.NUMBER: isinstance(value, int | float)
            and not isinstance(value, bool)
            and isfinite(value),
            OptionKind.TRUTH: isinstance(value, bool),
            OptionKind.WORD: isinstance(value, str),
        }[self.kind]
        if not fits:
            raise SpecError(f"{path}: `{value}` is not {self.kind.value}", hints=(self.about,))
        if isinstance(value, str) and self.words and value not in self.words:
            raise SpecError(f"{path}: unknown `{value}`", hints=hints_for(value, self.words))
        if isinstance(value, int | float) and not self._within(value):
            raise SpecError(f"{path}: `{value}` is out of range", hints=(f"allowed: {self._range()}",))
        return float(value) if self.kind is OptionKind.NUMBER and isinstance(value, int) else value

    def _within(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def _range(self) -> str:
        if self.high is None:
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if self.low is None else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class SearcherKind:
    """about: one sentence. target: `module:attribute`, called with (space, goal, trials, max_epochs, seed,
    **options). needs_trials: whether the study must say how many trials; else None lets the searcher decide.
    wraps: the option that names the searcher that it wraps, whose options are given beside its own (""
    none)."""

    about: str
    target: str
    options: Mapping[str, Option] = field(default_factory=dict)
    needs_trials: bool = False
    wraps: str = ""


_ETA = Option(OptionKind.INTEGER, 3, "one in how many goes on at each rung", low=2)
_MIN_EPOCHS = Option(OptionKind.INTEGER, 1, "epochs at the lowest rung", low=1)
_STARTUP = Option(OptionKind.INTEGER, 10, "trials drawn at random before the model proposes", low=1)
_SEARCH = "hopyard.searchers."

SEARCHERS: Mapping[str, SearcherKind] = {
    "random": SearcherKind(
        "Every trial is drawn anew, each parameter from its own stream.",
        _SEARCH + "random_draws:Random",
        needs_trials=True,
    ),
    "grid": SearcherKind(
        "Every combination of the points of all parameters, once.",
        _SEARCH + "grid:Grid",
        {
            "points": Option(OptionKind.INTEGER, None, "points of each range that says none itself", low=1),
            "shuffle": Option(
                OptionKind.TRUTH,
                False,
                "in an order drawn from the seed, instead of the last parameter fastest",
            ),
        },
    ),
    "median": SearcherKind(
        "Stops a trial that is worse than the median of the others at the same epoch; another searcher "
        "proposes.",
        _SEARCH + "median:MedianStopping",
        {
            "of": Option(OptionKind.WORD, "random", "the searcher that proposes"),
            "grace": Option(
                OptionKind.INTEGER, 1, "epochs that a trial gets before it can be stopped", low=0
            ),
            "least": Option(
                OptionKind.INTEGER,
                5,
                "trials to compare with that there must be before one is stopped",
                low=1,
            ),
        },
        wraps="of",
    ),
    "halving": SearcherKind(
        "Successive halving: of each rung, when all have reached it, the best 1/eta go on.",
        _SEARCH + "halving:Halving",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
    ),
    "hyperband": SearcherKind(
        "Successive halving over several brackets, from many short trials to few long ones.",
        _SEARCH + "hyperband:Hyperband",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
    ),
    "asha": SearcherKind(
        "Asynchronous successive halving: whoever is among the best 1/eta of its rung goes on at once; "
        "nobody waits.",
        _SEARCH + "asha:Asha",
        {"eta": _ETA, "min_epochs": _MIN_EPOCHS},
        needs_trials=True,
    ),
    "bohb": SearcherKind(
        "Hyperband, whose trials TPE proposes, from the results of the largest budget that enough "
        "trials have reached (Optuna).",
        _SEARCH + "bohb:Bohb",
        {
            "eta": _ETA,
            "min_epochs": _MIN_EPOCHS,
            "random": Option(
                OptionKind.NUMBER, 1 / 3, "share of the trials that is drawn at random", low=0, high=1
            ),
        },
    ),
    "tpe": SearcherKind(
        "Tree-structured Parzen estimator, multivariate: draws near what was good and far from what "
        "was not (Optuna).",
        _SEARCH + "optuna_searchers:Tpe",
        {"startup": _STARTUP},
        needs_trials=True,
    ),
    "gp": SearcherKind(
        "Gaussian process: few trials, each of which takes long; seconds for a proposal (Optuna, PyTorch).",
        _SEARCH + "optuna_searchers:GaussianProcess",
        {"startup": _STARTUP},
        needs_trials=True,
    ),
    "cmaes": SearcherKind(
        "Covariance matrix adaptation: many trials over real and whole numbers (Optuna).",
        _SEARCH + "optuna_searchers:CmaEs",
        {
            "startup": Option(OptionKind.INTEGER, 1, "trials drawn at random before it begins", low=1),
            "population": Option(OptionKind.INTEGER, None, "trials of a generation", low=3),
        },
        needs_trials=True,
    ),
    "pbt": SearcherKind(
        "Population based training: after each interval the worst take over the state of the best, and "
        "change its parameters.",
        _SEARCH + "pbt:PopulationBased",
        {
            "interval": Option(OptionKind.INTEGER, 1, "epochs between two looks at the population", low=1),
            "quantile": Option(
                OptionKind.NUMBER,
                0.25,
                "share of the population that copies, and that is copied",
                low=0,
                high=0.5,
            ),
            "resample": Option(
                OptionKind.NUMBER,
                0.25,
                "how likely a parameter is drawn anew instead of changed a little",
                low=0,
                high=1,
            ),
            "factor": Option(OptionKind.NUMBER, 1.2, "what a number is multiplied with or divided by", low=1),
            "rounds": Option(OptionKind.TRUTH, False, "whether all wait for each other at each interval"),
        },
        needs_trials=True,
    ),
}


_ELSEWHERE = {  # what other programs call them, letters and digits alone
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


def is_own(name: str) -> bool:
    """Whether it names a user's own searcher (`module:attribute`, `file.py:attribute`), not a built-in
    one."""
    return ":" in name


def get_searcher(name: str, path: str = "searcher.name") -> SearcherKind:
    """The built-in one of that name. Raises SpecError, naming `path` and the closest."""
    if name not in SEARCHERS:
        own = "or one of your own: `file.py:Name`, `package.module:Name`"
        meant = _ELSEWHERE.get("".join(letter for letter in name.lower() if letter.isalnum()))
        hints = (
            (f"did you mean `{meant}`?", *hints_for("", SEARCHERS, what="searchers"))
            if meant
            else hints_for(name, SEARCHERS, what="searchers")
        )
        raise SpecError(f"{path}: unknown searcher `{name}`", hints=(*hints, own))
    return SEARCHERS[name]


def check_options(
    name: str, given: Mapping[str, ParamValue], path: str = "searcher"
) -> dict[str, ParamValue]:
    """All options of the built-in searcher, as given or by default; of one that wraps another also that
    one's, where given.

    Raises SpecError for an unknown searcher or option (naming the closest), a wrong type, a value out of its
    range.
    """
    kind = get_searcher(name, f"{path}.name")
    allowed = dict(kind.options)
    if kind.wraps:
        inner = given.get(kind.wraps, kind.options[kind.wraps].default)
        if isinstance(inner, str) and not is_own(inner):
            if get_searcher(inner, f"{path}.options.{kind.wraps}").wraps:
                raise SpecError(f"{path}.options.{kind.wraps}: `{inner}` wraps another searcher itself")
            allowed = {**SEARCHERS[inner].options, **allowed}
        else:
            allowed = {**{key: Option(OptionKind.WORD, None, "") for key in given}, **allowed}
    for key in given:
        if key not in allowed:
            hints = hints_for(key, allowed) or (f"`{name}` has no options",)
            raise SpecError(f"{path}.options.{key}: `{name}` has no such option", hints=hints)
    own = {
        key: option.check(given.get(key, option.default), f"{path}.options.{key}")
        for key, option in kind.options.items()
    }
    return own | {
        key: value
        if is_own(str(given.get(kind.wraps, "")))
        else allowed[key].check(value, f"{path}.options.{key}")
        for key, value in given.items()
        if key not in own
    }


def needs_trials(name: str, given: Mapping[str, ParamValue]) -> bool:
    """Whether a study with this searcher must say how many trials. A user's own decides itself."""
    if is_own(name):
        return False
    kind = get_searcher(name)
    if kind.wraps:
        return needs_trials(str(given.get(kind.wraps, kind.options[kind.wraps].default)), given)
    return kind.needs_trials
