"""The budget of the trials of a search file: `epochs: 27`, or `steps: 20_000` (also as `budget: steps`), and
for hopping trials `evaluate_every`: the part of an epoch from one evaluation to the next."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

from hopyard.config.key_values import check_key
from hopyard.config.schemas.studies import StudyIn
from hopyard.config.section_values import read_field, read_positive_field
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.searchers import SEARCHERS, is_custom
from hopyard.domain.study import BudgetUnit, SearcherSpec

BUDGET_KEYS = ("epochs", "max_epochs", "budget", "steps", "max_steps", "steps_per_epoch")
_STEPS_TEXT = re.compile(r"([1-9]\d{0,8}) steps?")
_LARGEST_DENOMINATOR = 24  # of the part of an epoch in a hint
_SHARE_TOLERANCE = 0.02  # a third of an epoch may be written 0.33
_RUNGS_BELOW_BUDGET, _INTERVALS = 3, 10  # of budgets in steps, by default
_KEYS_OF_UNIT = {BudgetUnit.EPOCHS: ("epochs", "max_epochs"), BudgetUnit.STEPS: ("steps", "max_steps")}


@dataclass(frozen=True, slots=True)
class Budget:
    """largest: of one trial, in this unit. param: the parameter of the script that takes it. evaluate_every:
    of hopping trials, the units from one evaluation to the next. file_unit: how many units a number of the
    file is, which has epochs where trials are evaluated in steps. is_given: not the default."""

    unit: BudgetUnit
    largest: int
    param: str
    steps_per_epoch: int
    evaluate_every: int = 1
    file_unit: int = 1
    is_given: bool = False


def read_budget(top: YamlSection, partition_count: int | None) -> Budget:
    """partition_count: of `parallel: mop`, the steps of an epoch. Raises SpecError for a budget in two
    units."""
    unit = _read_unit(top)
    given = [key for key in _KEYS_OF_UNIT[unit] if top.contains(key)]
    if len(given) > 1:
        raise top.error(given[1], f"it means the same as `{given[0]}`", "keep one of the two")
    for key in _KEYS_OF_UNIT[BudgetUnit.EPOCHS if unit is BudgetUnit.STEPS else BudgetUnit.STEPS]:
        if top.contains(key):
            raise top.error(
                key, f"the budget of this study is in {unit}", f"write the largest budget as `{unit}: N`"
            )
    if unit is BudgetUnit.STEPS and not given:
        raise top.error("steps", "missing", "set the largest budget of a trial: `steps: 20000`")
    largest: int = read_field(top, given[0] if given else "epochs", StudyIn, "max_epochs")
    if partition_count is not None:
        return _read_hopping(top, unit, largest, partition_count)
    per_epoch = read_positive_field(top, "steps_per_epoch", StudyIn)
    if per_epoch and unit is BudgetUnit.STEPS:
        raise top.error("steps_per_epoch", "it applies to budgets in epochs", "remove it")
    return Budget(unit, largest, _read_param(top, unit), per_epoch, is_given=bool(given))


def _read_hopping(top: YamlSection, unit: BudgetUnit, largest: int, partition_count: int) -> Budget:
    """A step is one visit of a partition. Evaluations within an epoch need a budget in steps."""
    param = _read_param(top, unit)
    if not top.contains("evaluate_every"):
        return Budget(unit, largest, param, 0, partition_count if unit is BudgetUnit.STEPS else 1)
    visits = _read_evaluation_visits(top, unit, partition_count)
    if unit is BudgetUnit.EPOCHS and visits % partition_count == 0:
        return Budget(unit, largest, param, 0, visits // partition_count)
    file_unit = 1 if unit is BudgetUnit.STEPS else partition_count
    return Budget(BudgetUnit.STEPS, largest * file_unit, param, 0, visits, file_unit)


def _read_evaluation_visits(top: YamlSection, unit: BudgetUnit, partition_count: int) -> int:
    """Returns the visits from one evaluation to the next."""
    key, value = "evaluate_every", top.values["evaluate_every"]
    matched = _STEPS_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched:
        return int(matched[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 10**6:
        raise top.error(
            key,
            f"{format_given(value)} is no part of an epoch",
            "write `0.25` for four evaluations in an epoch, or `2 steps` (visits of partitions)",
        )
    if isinstance(value, int):
        return value if unit is BudgetUnit.STEPS else value * partition_count
    visits = round(value * partition_count)
    if not visits or abs(value * partition_count - visits) > _SHARE_TOLERANCE * visits:
        share = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
        parts = _round_up(partition_count, share.denominator if share else math.ceil(1 / value))
        raise top.error(
            key,
            f"{value:g} of an epoch with {partition_count} partitions is no whole number of visits",
            f"write a number of visits: `evaluate_every: {max(visits, 1)} steps`",
            f"or split the data into more partitions: `partitions: {{parts: {parts}}}`",
        )
    return visits


def _round_up(number: int, factor: int) -> int:
    return -(-number // factor) * factor


def with_step_options(searcher: SearcherSpec, budget: Budget) -> SearcherSpec:
    """Returns the searcher with options for a budget in steps. `min_epochs` and `interval` are in the unit of
    the file, and `min_steps` in steps. The defaults of the lowest rung and of the interval of `pbt` are
    shares of the budget, since one step is too few."""
    if budget.unit is BudgetUnit.EPOCHS or is_custom(searcher.name) or searcher.name not in SEARCHERS:
        return searcher
    options, known = dict(searcher.options), SEARCHERS[searcher.name].options
    for key in ("min_epochs", "interval"):
        given = options.get(key)
        if isinstance(given, int) and not isinstance(given, bool):
            options[key] = given * budget.file_unit
    if "min_epochs" in known and "min_steps" in options:
        options.setdefault("min_epochs", options.pop("min_steps"))
    eta = options.get("eta", 3)
    if "min_epochs" in known and isinstance(eta, int) and eta > 1:
        lowest = max(budget.evaluate_every, budget.largest // eta**_RUNGS_BELOW_BUDGET)
        options.setdefault("min_epochs", max(1, min(lowest, budget.largest // eta)))
    if "interval" in known:
        interval = max(budget.evaluate_every, budget.largest // _INTERVALS)
        options.setdefault("interval", min(interval, budget.largest))
    return replace(searcher, options=options)


def _read_unit(top: YamlSection) -> BudgetUnit:
    text = top.text("budget")
    if text:
        try:
            return BudgetUnit(text)
        except ValueError:
            raise top.error(
                "budget",
                f"{format_given(text)} is not a unit of budgets",
                *unknown_name_hints(text, list(BudgetUnit)),
            ) from None
    has_steps = any(top.contains(key) for key in _KEYS_OF_UNIT[BudgetUnit.STEPS])
    return BudgetUnit.STEPS if has_steps else BudgetUnit.EPOCHS


def _read_param(top: YamlSection, unit: BudgetUnit) -> str:
    name = top.text("budget_param") or unit.value
    return top.parsed("budget_param", lambda: check_key(name, what="budget_param"))
