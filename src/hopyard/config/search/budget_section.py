"""The budget of the trials of a search file: `epochs: 27`, or `steps: 20_000` (also as `budget: steps`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopyard.config.key_values import check_key
from hopyard.config.schemas.studies import StudyIn
from hopyard.config.section_values import read_field, read_positive_field
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.searchers import SEARCHERS, is_custom
from hopyard.domain.study import BudgetUnit, Parallel, SearcherSpec

BUDGET_KEYS = ("epochs", "max_epochs", "budget", "steps", "max_steps", "steps_per_epoch")
_RUNGS_BELOW_BUDGET, _INTERVALS = 3, 10  # of budgets in steps, by default
_KEYS_OF_UNIT = {BudgetUnit.EPOCHS: ("epochs", "max_epochs"), BudgetUnit.STEPS: ("steps", "max_steps")}


@dataclass(frozen=True, slots=True)
class Budget:
    """largest: of one trial, in this unit. param: the parameter of the script that takes it."""

    unit: BudgetUnit
    largest: int
    param: str
    steps_per_epoch: int


def read_budget(top: YamlSection, parallel: Parallel) -> Budget:
    """Raises SpecError for a budget in two units, and for steps of `parallel: mop`."""
    unit = _read_unit(top)
    given = [key for key in _KEYS_OF_UNIT[unit] if top.contains(key)]
    if len(given) > 1:
        raise top.error(given[1], f"it means the same as `{given[0]}`", "keep one of the two")
    for key in _KEYS_OF_UNIT[BudgetUnit.EPOCHS if unit is BudgetUnit.STEPS else BudgetUnit.STEPS]:
        if top.contains(key):
            raise top.error(
                key, f"the budget of this study is in {unit}", f"write the largest budget as `{unit}: N`"
            )
    if unit is BudgetUnit.STEPS:
        if parallel is Parallel.MOP:
            raise top.error(
                "budget" if top.contains("budget") else given[0],
                "the budget of `parallel: mop` is in epochs",
                "write `epochs: N`, or `parallel: trials`",
            )
        if not given:
            raise top.error("steps", "missing", "set the largest budget of a trial: `steps: 20000`")
    per_epoch = read_positive_field(top, "steps_per_epoch", StudyIn)
    if per_epoch and (unit is BudgetUnit.STEPS or parallel is Parallel.MOP):
        raise top.error(
            "steps_per_epoch", "it applies to budgets in epochs of `parallel: trials`", "remove it"
        )
    largest: int = read_field(top, given[0] if given else "epochs", StudyIn, "max_epochs")
    return Budget(unit, largest, _read_param(top, unit), per_epoch)


def with_step_options(searcher: SearcherSpec, budget: Budget) -> SearcherSpec:
    """Returns the searcher with options for a budget in steps. `min_steps` is `min_epochs`. The defaults of
    the lowest rung and of the interval of `pbt` are shares of the budget, since one step is too few."""
    if budget.unit is BudgetUnit.EPOCHS or is_custom(searcher.name) or searcher.name not in SEARCHERS:
        return searcher
    options, known = dict(searcher.options), SEARCHERS[searcher.name].options
    if "min_epochs" in known and "min_steps" in options:
        options.setdefault("min_epochs", options.pop("min_steps"))
    eta = options.get("eta", 3)
    if "min_epochs" in known and isinstance(eta, int) and eta > 1:
        options.setdefault("min_epochs", max(1, budget.largest // eta**_RUNGS_BELOW_BUDGET))
    if "interval" in known:
        options.setdefault("interval", max(1, budget.largest // _INTERVALS))
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
