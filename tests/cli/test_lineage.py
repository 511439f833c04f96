"""`hop lineage`: forks, runs from checkpoints, and trials as a tree."""

from __future__ import annotations

from typing import Any

from tests.cli.shell import Shell, normalize

TRAIN = """
import hopyard as hop

p = hop.params(lr=0.1, wd=0.0)
hop.bind(seen=0)
for epoch in hop.loop(range(2)):
    hop.log(loss=p.lr, step=epoch)
hop.summary(loss=p.lr)
"""
SEARCH = "{name: s, script: t.py, metric: loss, goal: min, searcher: grid, space: {lr: [0.1, 0.2]}}"


def edges(node: dict[str, Any]) -> dict[str, Any]:
    """Returns the tree without names: relation, step and changes of each run."""
    return {
        "relation": node["relation"],
        "step": node["step"],
        "changes": node["changes"],
        "children": [edges(child) for child in node["children"]],
    }


def test_tree_is_the_same_from_each_of_its_runs(shell: Shell) -> None:
    shell.write("t.py", TRAIN)
    first = shell.hop("run", "--json", "-n", "first", "t.py").json["name"]
    second = shell.hop("fork", f"{first}@1", "-p", "lr=0.5", "-n", "second", "--json").json["run"]["name"]
    third = shell.hop("fork", second, "-p", "wd=0.1", "-n", "third", "--json").json["run"]["name"]
    fork = {"relation": "fork", "step": None, "changes": {"wd": [0.0, 0.1]}, "children": []}
    resumed = {"relation": "checkpoint", "step": 1, "changes": {"lr": [0.1, 0.5]}, "children": [fork]}
    for run in (first, second, third):
        result = shell.hop("lineage", run, "--json").json
        assert (result["run"], result["cut"]) == (run, False)
        assert edges(result["tree"]) == {
            "relation": None,
            "step": None,
            "changes": {},
            "children": [resumed],
        }
    assert [row.strip() for row in shell.hop("lineage", second).text.splitlines()] == [
        f"{first} (first)  succeeded",
        f"└─ {second} (second)  from step 1  succeeded  lr 0.1 -> 0.5  <- this run",
        f"└─ {third} (third)  fork  succeeded  wd 0.0 -> 0.1",
    ]
    assert shell.hop("rm", "-y", first).code == 0
    tree = shell.hop("lineage", third, "--json").json["tree"]
    assert (tree["name"], tree["relation"], tree["children"][0]["is_asked"]) == (second, "removed", True)
    assert shell.hop("lineage", third).text.startswith(f"{second} (second)  from a run that was removed  ")


def test_trials_are_below_their_search(shell: Shell) -> None:
    shell.write("t.py", TRAIN)
    shell.write("s.yaml", SEARCH)
    assert shell.hop("search", "s.yaml", "-n", "study").code == 0
    study = shell.hop("search", "show", "--json", "study").json["study"]
    tree = shell.hop("lineage", study, "--json").json["tree"]
    assert [(child["relation"], child["changes"]["lr"][1]) for child in tree["children"]] == [
        ("trial", 0.1),
        ("trial", 0.2),
    ]
    text = normalize(shell.hop("lineage", tree["children"][0]["name"]).text)
    assert text.count("<- this run") == 1
