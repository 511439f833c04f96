"""Every built-in searcher passes the public suite; the laws that only the registry knows."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.run import ParamValue
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StudySpec
from hopyard.interfaces.searcher import Searcher
from hopyard.searchers.registry import Factory, build
from hopyard.testing.searcher_contract import SearcherContract


def no_custom_searcher(text: str) -> Factory:
    raise AssertionError(f"{text} is built in")


class BuiltIn(SearcherContract):
    name: str
    options: Mapping[str, ParamValue] = {}
    trials: int | None = 12

    def open_searcher(self, *, goal: Goal = Goal.MIN, seed: int = 0) -> Searcher:
        searcher = SearcherSpec(self.name, self.options)
        spec = StudySpec(
            "s",
            self.space,
            "loss",
            goal,
            Parallel.TRIALS,
            searcher,
            self.trials,
            max_epochs=self.max_epochs,
            seed=seed,
        )
        return build(spec, no_custom_searcher)


class TestRandom(BuiltIn):
    name = "random"


class TestGrid(BuiltIn):
    name, options, trials = "grid", {"points": 2}, None


class TestShuffledGrid(BuiltIn):
    name, options = "grid", {"points": 2, "shuffle": True}


class TestMedian(BuiltIn):
    name, options = "median", {"least": 2}


class TestMedianOfAsha(BuiltIn):
    name, options = "median", {"of": "asha", "least": 1, "grace": 0, "eta": 2}


class TestHalving(BuiltIn):
    name = "halving"


class TestHalvingByTwo(BuiltIn):
    name, options, trials = "halving", {"eta": 2, "min_epochs": 2}, 7


class TestHyperband(BuiltIn):
    name, trials = "hyperband", None


class TestHyperbandWithTrials(BuiltIn):
    name, options, trials = "hyperband", {"eta": 2}, 31


class TestAsha(BuiltIn):
    name = "asha"


class TestAshaWithFewTrials(BuiltIn):
    name, options, trials = "asha", {"eta": 2}, 3


class TestPopulationBased(BuiltIn):
    name = "pbt"


class TestPopulationBasedInRounds(BuiltIn):
    name, options = "pbt", {"rounds": True, "interval": 2, "quantile": 0.5}
