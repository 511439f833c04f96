"""A queue tree in a file: its meaning, round trips, and refusals of invalid trees with their path."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopyard.config.queues.export import QueueChange, diff_trees, mapping_text, tree_mapping
from hopyard.config.queues.limit_checks import limits_beyond_cluster, unreachable_limits
from hopyard.config.queues.queue_file import MAX_DEPTH, QUEUE_KEYS, queue_tree_from, read_queues
from hopyard.config.yaml_section import as_section
from hopyard.domain.cluster import Node
from hopyard.domain.effective_limits import (
    child_queues,
    effective_admins,
    effective_submitters,
    guaranteed_amounts,
    guaranteed_gpus,
    maximum_amounts,
)
from hopyard.domain.ids import NodeId, QueueName
from hopyard.domain.queue import SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.domain.resources import Gpu
from hopyard.errors import SpecError

WHOLE = """
default: vision
half_life: 12h
queues:
  research:
    guarantee: {gpus: 16, cpus: 128, memory: 1T}
    maximum: {gpus: 32, gpus.A100: 8, extras.fpga: 2}
    admins: [carol]
    queues:
      vision: {weight: 2, user_limit: {gpus: 0.5}, guarantee: {gpus: 4}}
      nlp:
        lend_limit: {gpus: 0}
        guarantee: {gpus: 8, cpus: 0.25}
        borrow_limit: {cpus: 0}
        submitters: [alice, bob]
        priorities: [0, 40]
        reclaims: false
        preempts_lower: no
        time_slices: yes
  prod:
    parent: research
"""


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "queue-file.md"


def write(folder: Path, text: str) -> Path:
    file = folder / "queues.yaml"
    file.write_text(text)
    return file


def test_file_with_all_keys(tmp_path: Path) -> None:
    tree = read_queues(write(tmp_path, WHOLE))
    assert (tree.default, tree.half_life_s) == ("vision", 43200.0)
    assert list(tree.queues) == ["research", "vision", "nlp", "prod"]
    research, vision, nlp, prod = tree.queues.values()
    assert research.guarantee == {"gpu": 16000, "cpu": 128000, "memory": 2**40}
    assert research.maximum == {"gpu": 32000, "gpu:a100": 8000, "fpga": 2}
    assert (vision.parent, vision.weight, vision.user_limit) == ("research", 2.0, {"gpu": 500})
    assert (nlp.lend_limit, nlp.borrow_limit, nlp.guarantee) == (
        {"gpu": 0},
        {"cpu": 0},
        {"gpu": 8000, "cpu": 250},
    )
    assert (nlp.submitters, nlp.priorities, nlp.default_priority) == (("alice", "bob"), (0, 40), 40)
    assert (nlp.reclaims, nlp.preempts_lower, nlp.time_slices) == (False, False, True)
    assert prod == Queue(QueueName("prod"), QueueName("research"))


def test_priority_range_ends_at_the_default_unless_set(tmp_path: Path) -> None:
    tree = read_queues(
        write(
            tmp_path,
            "queues: {a: {}, b: {default_priority: 40}, c: {priorities: [5, 80]}, default: "
            "{priorities: [0, 30]}}",
        )
    )
    assert [(queue.priorities, queue.default_priority) for queue in tree.queues.values()] == [
        ((0, 50), 50),
        ((0, 40), 40),
        ((5, 80), 50),
        ((0, 30), 30),
    ]
    assert read_queues(write(tmp_path, mapping_text(tree_mapping(tree)))) == tree


def test_documented_example_is_valid_and_its_table_has_every_key(tmp_path: Path) -> None:
    page = PAGE.read_text()
    tree = read_queues(write(tmp_path, page.partition("```yaml\n")[2].partition("```")[0]))
    assert tree.queues[QueueName("scratch")].parent == "production"
    result = {
        word
        for line in page.splitlines()
        if line.startswith("| `")
        for word in line.split("|")[1].replace("`", "").replace(",", " ").split()
    }
    assert result == set(QUEUE_KEYS) - {"parent", "queues"}


def test_nested_and_flat_trees_are_equal(tmp_path: Path) -> None:
    flat = "queues: {c: {parent: b}, b: {parent: a}, a: {}, default: {}}"
    nested = "queues: {a: {queues: {b: {queues: {c: {}}}}}, default:}"
    assert read_queues(write(tmp_path, flat)) == read_queues(write(tmp_path, nested))


def test_default_queue_is_the_only_leaf_or_the_queue_named_default(tmp_path: Path) -> None:
    assert read_queues(write(tmp_path, "queues: {a: {queues: {b: {}}}}")).default == "b"
    assert read_queues(write(tmp_path, "queues: {a: {}, default: {}}")).default == "default"


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("", "queues: no queue is given", "default: {}"),
        ("queues: []", "queues: `[]` is not a mapping", "key: value"),
        ("queues: {a: 3}", "queues.a: `3` is not a mapping", "key: value"),
        ("queue: {a: {}}", "there is no key `queue`", "did you mean `queues`?"),
        ("queues: {../a: {}}", "queues.../a: `../a` is not a name", "letters"),
        ("queues: {a: {wieght: 2}}", "queues.a: there is no key `wieght`", "did you mean `weight`?"),
        ("queues: {a: {weight: 0}}", "queues.a.weight: `0` is not a number above 0", "twice"),
        ("queues: {a: {weight: -1}}", "queues.a.weight: `-1`", ""),
        (
            "queues: {a: {weight: 1e-300}}",
            "queues.a.weight: `1e-300` is not a number above 0, from 0.000001",
            "",
        ),
        ("queues: {a: {maximum: {gpus: yes}}}", "queues.a.maximum.gpus: `yes` is not a number of GPUs", ""),
        ("queues: {a: {maximum: {gpus: [1]}}}", "queues.a.maximum.gpus: `[1]` is not a number of GPUs", ""),
        ("queues: {a: {weight: .inf}}", "queues.a.weight: `inf`", ""),
        ("queues: {a: {weight: .nan}}", "queues.a.weight: `nan`", ""),
        ("queues: {a: {weight: much}}", "queues.a.weight: `much`", ""),
        ("queues: {a: {weight: true}}", "queues.a.weight: `true`", ""),
        (
            "queues: {a: {guarantee: {gpus: -1}}}",
            "queues.a.guarantee.gpus: `-1` is not a number of GPUs",
            "0.5",
        ),
        (
            "queues: {a: {guarantee: {gpus: 10000000}}}",
            "queues.a.guarantee.gpus: `10000000` is not a number of GPUs",
            "",
        ),
        (
            "queues: {a: {guarantee: {gpu: 1}}}",
            "queues.a.guarantee: there is no resource `gpu`",
            "did you mean `gpus`?",
        ),
        ("queues: {a: {guarantee: {gpus: }}}", "queues.a.guarantee.gpus: no amount", "leave the key out"),
        (
            "queues: {a: {guarantee: {memory: 8}}}",
            "queues.a.guarantee.memory: `8` has no unit",
            "did you mean `8G`?",
        ),
        ("queues: {a: {guarantee: {memory: 9999999T}}}", "queues.a.guarantee.memory", ""),
        (
            "queues: {a: {guarantee: {cpus: lots}}}",
            "queues.a.guarantee.cpus: `lots` is not a number of CPUs",
            "",
        ),
        (
            "queues: {a: {guarantee: {cpus: 99999999999999999999999}}}",
            "queues.a.guarantee.cpus: `99999999999999999999999` is too large",
            "at most three decimals",
        ),
        (
            "queues: {a: {guarantee: {extras.fpga: 1.5}}}",
            "queues.a.guarantee.extras.fpga: `1.5` is not a whole number",
            "a whole number: 1, 2",
        ),
        (
            "queues: {a: {guarantee: {extras.gpu: 1}}}",
            "queues.a.guarantee.extras.gpu: `gpu` is not an extra",
            "write `gpus`",
        ),
        (
            "queues: {a: {guarantee: {gpus.: 1}}}",
            "queues.a.guarantee.gpus.: `` is not the name of a GPU model",
            "gpus.A100",
        ),
        (
            "queues: {a: {guarantee: {gpus.T4: 1, gpus.t4: 2}}}",
            "queues.a.guarantee.gpus.t4: the model is given twice",
            "case",
        ),
        ("queues: {a: {guarantee: [gpus]}}", "queues.a.guarantee: `['gpus']` is not a mapping", ""),
        (
            "queues: {a: {guarantee: {gpus: 1}, queues: {b: {guarantee: {gpus: 2}}}}}",
            "queues.a.guarantee.gpus: 1 is less than what the queues right below it are guaranteed, 2 (b 2)",
            "raise it to 2",
        ),
        (
            (
                "queues: {a: {guarantee: {gpus: 3}}, b: {parent: a, guarantee: {gpus: 2}}, c: {parent: a, "
                "guarantee: {gpus: 2}}}"
            ),
            "queues.a.guarantee.gpus: 3 is less",
            "raise it to 4",
        ),
        (
            "queues: {a: {guarantee: {gpus: 1, gpus.T4: 2}}}",
            "queues.a.guarantee.gpus: 1 is less than the models named beside it, 2",
            "raise it to 2",
        ),
        (
            "queues: {a: {guarantee: {gpus.T4: 2}, maximum: {gpus.t4: 1}}}",
            "queues.a.maximum.gpus.t4: 1 is less than what the queue is guaranteed, 2",
            "raise it to 2",
        ),
        (
            "queues: {a: {maximum: {gpus: 1}, queues: {b: {guarantee: {gpus: 2}}, c: {}}}}",
            "queues.a.maximum.gpus: 1 is less than what the queues right below it are guaranteed, 2 (b 2)",
            "raise it to 2, or lower theirs",
        ),
        (
            "queues: {a: {guarantee: {gpus.A100: 3}, maximum: {gpus: 2}}}",
            "queues.a.maximum.gpus: 2 is less than what the queue is guaranteed, 3",
            "raise it to 3, or lower the guarantee\nGPUs of a model count",
        ),
        (
            (
                "queues: {a: {guarantee: {gpus: 2}, queues: {b: {guarantee: {gpus.A100: 1}}, c: "
                "{guarantee: {gpus.H100: 2}}}}}"
            ),
            (
                "queues.a.guarantee.gpus: 2 is less than what the queues right below it are guaranteed, 3 "
                "(b 1, c 2)"
            ),
            "raise it to 3, or lower theirs\nGPUs of a model count",
        ),
        (
            (
                "queues: {a: {guarantee: {gpus: 3, gpus.A100: 2}, queues: {b: {guarantee: {gpus.A100: 2}}, "
                "c: {guarantee: {gpus: 2}}}}}"
            ),
            (
                "queues.a.guarantee.gpus: 3 is less than what the queues right below it are guaranteed, 4 "
                "(b 2, c 2)"
            ),
            "raise it to 4",
        ),
        (
            (
                "queues: {a: {maximum: {gpus: 2}, queues: {m: {queues: {b: {guarantee: {gpus.A100: 1}}, c: "
                "{guarantee: {gpus.H100: 2}}}}}}}"
            ),
            "queues.a.maximum.gpus: 2 is less than what the queues right below it are guaranteed, 3 (m 3)",
            "raise it to 3, or lower theirs",
        ),
        (
            (
                "queues: {a: {maximum: {gpus: 5}, guarantee: {gpus.A100: 4}, queues: {b: {guarantee: "
                "{gpus.H100: 2}}}}}"
            ),
            "queues.a.maximum.gpus: 5 is less than what the queue is guaranteed, 6",
            "raise it to 6",
        ),
        (
            "queues: {a: {guarantee: {gpus: 4, gpus.A100: 4}, queues: {b: {guarantee: {gpus.H100: 2}}}}}",
            "queues.a.guarantee.gpus: 4 is less than the models named beside it and below it, 6",
            "raise it to 6",
        ),
        ("queues: {true: {}}", "queues: the key `true` is not a text", 'write it in quotes: "true"'),
        (
            "queues: {a: {lend_limit: {gpus: 1}}}",
            "queues.a.lend_limit.gpus: the queue has no guarantee",
            "guarantee",
        ),
        ("queues: {a: {parent: b}}", "queues.a.parent: there is no queue `b`", "queues: a"),
        (
            "queues: {vision: {}, a: {parent: visoin}, default: {}}",
            "queues.a.parent: there is no queue `visoin`",
            "did you mean `vision`?",
        ),
        (
            "queues: {a: {parent: a}}",
            "queues.a.parent: the parents of queues form a cycle: a → a",
            "remove the parent",
        ),
        (
            "queues: {a: {parent: b}, b: {parent: c}, c: {parent: b}}",
            "form a cycle: b → c → b",
            "remove the parent",
        ),
        (
            "queues: {a: {queues: {b: {parent: c}}}, c: {}}",
            "queues.a.queues.b.parent: it stands below `a` in the file, and names `c`",
            "leave `parent` out",
        ),
        (
            "queues: {a: {queues: {b: {}}}, b: {}}",
            "queues.b: there is a queue `b` already, at queues.a.queues.b",
            "unique",
        ),
        (
            "queues: {a: {}, b: {}, a: {}}",
            "line 1: the key `queues.a` is given twice",
            "the other is in line 1",
        ),
        (
            "queues: {a: {weight: 1, weight: 1}}",
            "the key `queues.a.weight` is given twice",
            "remove one of them",
        ),
        ("queues: {a: {}, b: {}}", "default: the queue of runs without one is missing", "give one of a, b"),
        ("default: c\nqueues: {a: {}, vision: {}}", "default: there is no queue `c`", "a, vision"),
        (
            "default: visoin\nqueues: {a: {}, vision: {}}",
            "default: there is no queue `visoin`",
            "did you mean `vision`?",
        ),
        ("default: a\nqueues: {a: {queues: {b: {}}}}", "default: `a` has child queues", "give one of b"),
        (
            "half_life: 0s\nqueues: {a: {}}",
            "half_life: `0s` is not more than 0 seconds",
            "2h30m",
        ),
        ("half_life: 4000d\nqueues: {a: {}}", "half_life: `4000d` is more than ten years", ""),
        ("half_life: never\nqueues: {a: {}}", "half_life: `never` is not a time", "2h30m"),
        (
            "queues: {a: {user_priorities: {bob: 50}}}",
            "queues.a.user_priorities.bob: `50` is not a whole number from 51 to 100",
            "lets all users ask for up to 50",
        ),
        ("queues: {a: {user_priorities: {bob: }}}", "queues.a.user_priorities.bob: no priority is given", ""),
        ("queues: {a: {user_priorities: {b/b: 60}}}", "queues.a.user_priorities.b/b", ""),
        ("queues: {a: {priorities: 5}}", "queues.a.priorities: `5` is not a list", ""),
        (
            "queues: {a: {priorities: [5]}}",
            "queues.a.priorities: `[5]` is not a lowest and a highest",
            "[0, 80]",
        ),
        ("queues: {a: {priorities: [80, 0]}}", "queues.a.priorities", ""),
        ("queues: {a: {priorities: [0, 101]}}", "queues.a.priorities", ""),
        ("queues: {a: {priorities: [0, true]}}", "queues.a.priorities", ""),
        (
            "queues: {a: {priorities: [0, 40], default_priority: 50}}",
            "queues.a.default_priority: `50` is not a whole number from 0 to 40",
            "give the range of priorities with `priorities`",
        ),
        ("queues: {a: {submitters: alice}}", "queues.a.submitters: `alice` is not a list", ""),
        ("queues: {a: {submitters: [3]}}", "queues.a.submitters.0: `3` is not the name of a user", "quotes"),
        ("queues: {a: {admins: [a, a]}}", "queues.a.admins.1: `a` is given twice", "remove one of them"),
        ("queues: {a: {admins: [a/b]}}", "queues.a.admins.0: `a/b` is not a name", ""),
        (
            "queues: {a: {reclaims: maybe}}",
            "queues.a.reclaims: `maybe` is neither true nor false",
            "write true or false",
        ),
    ],
)
def test_every_invalid_tree_is_refused_with_its_path(
    tmp_path: Path, text: str, where: str, hint: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        read_queues(file)
    assert caught.value.message.startswith(f"{file}: ")
    assert where in caught.value.message
    assert hint in "\n".join(caught.value.hints)


def test_too_deep_tree_is_refused_nested_and_flat(tmp_path: Path) -> None:
    names = [f"q{i}" for i in range(MAX_DEPTH + 1)]
    flat = {name: {"parent": above} for above, name in pairwise(names)} | {"q0": {}}
    nested: dict[str, Any] = {}
    for name in reversed(names):
        nested = {name: {"queues": nested}}
    for tree in (flat, nested):
        with pytest.raises(SpecError, match=f"deeper than {MAX_DEPTH} levels"):
            queue_tree_from(as_section("f", "", {"queues": tree}))


def test_excessively_nested_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "{queues: {q: " * 300 + "{}" + "}}" * 300)
    with pytest.raises(SpecError, match="it is nested too deeply to be read") as caught:
        read_queues(file)
    assert caught.value.hints == ("a settings file has a few levels, not hundreds",)


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sampled_from(["gpus", "gpus.A100", "gpus.H100"]), st.integers(0, 4)), max_size=5),
)
def test_guaranteed_gpus_by_model_count_for_gpus_of_any_model(
    of_all: int, below: list[tuple[str, int]]
) -> None:
    """Whether a tree is valid depends on the number of guaranteed GPUs, for any models."""
    inside = {f"q{at}": {"guarantee": {key: amount}} for at, (key, amount) in enumerate(below)} or {"q0": {}}
    most = max(of_all, 1)
    for limits in (
        {"guarantee": {"gpus": of_all}},
        {"maximum": {"gpus": of_all}},
        {"maximum": {"gpus": most}, "guarantee": {"gpus": of_all}},
    ):
        section = as_section("f", "", {"default": "q0", "queues": {"a": {**limits, "queues": inside}}})
        if sum(amount for _, amount in below) <= of_all:
            assert queue_tree_from(section).queues[QueueName("a")].name == "a"
        else:
            with pytest.raises(SpecError, match=r"f: queues\.a\.(guarantee|maximum)\.gpus: "):
                queue_tree_from(section)


def test_guarantee_by_model_does_not_count_as_borrowed() -> None:
    """Otherwise a borrow limit would cancel the guarantee."""
    limits = {"guarantee": {"gpus.A100": 3}, "borrow_limit": {"gpus": 1}}
    queues = queue_tree_from(
        as_section(
            "f",
            "",
            {"queues": {"a": {"queues": {"b": limits, "c": {"guarantee": {"gpus": 2}}}}}, "default": "b"},
        )
    )
    assert guaranteed_gpus(queues) == {"c": 2000, "b": 3000, "a": 5000}
    assert maximum_amounts(queues)[QueueName("b")] == {"gpu": 4000}


def test_unreachable_limits_are_reported() -> None:
    limits = {
        "maximum": {"gpus": 4, "gpus.A100": 5, "gpus.T4": 4, "cpus": 8},
        "user_limit": {"gpus": 2, "gpus.A100": 3, "cpus": 16, "memory": "1G"},
    }
    queues = queue_tree_from(as_section("f", "", {"queues": {"default": limits}}))
    assert unreachable_limits(queues) == [
        "default.maximum: 5 gpus.a100 can never be reached: maximum.gpus is 4",
        "default.user_limit: 16 cpus can never be reached: maximum.cpus is 8",
        "default.user_limit: 3 gpus.a100 can never be reached: user_limit.gpus is 2",
    ]
    assert unreachable_limits(SINGLE_QUEUE_TREE) == []


def test_guarantees_beyond_the_nodes_are_reported() -> None:
    queues = queue_tree_from(
        as_section(
            "f",
            "",
            {"queues": {"a": {"guarantee": {"gpus": 4, "cpus": 1}}, "default": {"guarantee": {"gpus": 1}}}},
        )
    )
    node = Node(NodeId("n"), "e", 8000, 0, (Gpu(0, "T4"),))
    assert limits_beyond_cluster(queues, [node]) == [
        "the queues are guaranteed 5 gpus together, and the nodes have 1"
    ]
    # both keys would be the same GPU model
    by_model = {"a": {"guarantee": {"gpus.T4": 1}}, "default": {"guarantee": {"gpus": 1}}}
    assert limits_beyond_cluster(queue_tree_from(as_section("f", "", {"queues": by_model})), [node]) == [
        "the queues are guaranteed 2 gpus together, and the nodes have 1"
    ]
    assert limits_beyond_cluster(SINGLE_QUEUE_TREE, []) == []


def test_limits_on_unknown_resources_are_reported() -> None:
    """A name that was mistyped binds nothing."""
    limits = {
        "maximum": {"gpus.A1000": 1, "gpus.t4": 1, "memory": "4G"},
        "user_limit": {"extras.fgpa": 2, "extras.fpga": 2},
    }
    queues = queue_tree_from(
        as_section("f", "", {"queues": {"a": limits, "default": {"maximum": {"gpus.A1000": 2}}}})
    )
    node = Node(NodeId("n"), "e", 8000, 1 << 30, (Gpu(0, "T4"),), extras={"fpga": 1})
    assert limits_beyond_cluster(queues, [node]) == [
        "no node has extras.fgpa, which a.user_limit limits",
        "no node has gpus.a1000, which a.maximum limits",
    ]


def test_submitters_and_admins_are_inherited() -> None:
    a = {"submitters": ["x"], "admins": ["y"], "queues": {"b": {"admins": ["z"]}, "c": {"submitters": ["w"]}}}
    queues = queue_tree_from(as_section("f", "", {"default": "b", "queues": {"a": a, "d": {}}}))
    result = {
        name: (effective_submitters(queues, name), effective_admins(queues, name)) for name in queues.queues
    }
    assert result == {"a": (("x",), ("y",)), "b": (("x",), ("z", "y")), "c": (("w",), ("y",)), "d": ((), ())}


# -- laws ----------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b2", "default", "no", "1.5", "null-x", "team.a_b", "X", "10", "yes-no"])
resource = st.sampled_from(["cpu", "memory", "gpu", "gpu:a100", "gpu:rtx 3090", "fpga"])


@st.composite
def amounts(draw: st.DrawFn, least: dict[str, int] | None = None, only: Any = None) -> dict[str, int]:
    named = (
        draw(st.lists(st.sampled_from(sorted(only)) if only else resource, unique=True, max_size=3))
        if only is None or only
        else []
    )
    return {name: (least or {}).get(name, 0) + draw(st.integers(0, 10**6)) for name in named}


@st.composite
def trees(draw: st.DrawFn) -> QueueTree:
    called = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    queues: dict[QueueName, Queue] = {}
    for i, name in enumerate(map(QueueName, called)):
        low = draw(st.integers(0, 100))
        high = draw(st.integers(low, 100))
        queues[name] = Queue(
            name,
            QueueName(draw(st.sampled_from([None, *called[:i]])) or "") or None,
            draw(st.floats(0.001, 1000)),
            user_limit=draw(amounts()),
            borrow_limit=draw(amounts()),
            submitters=tuple(draw(st.lists(names, max_size=3, unique=True))),
            admins=tuple(draw(st.lists(names, max_size=2, unique=True))),
            priorities=(low, high),
            default_priority=draw(st.integers(low, high)),
            user_priorities=draw(st.dictionaries(names, st.integers(high + 1, 100), max_size=2))
            if high < 100
            else {},
            reclaims=draw(st.booleans()),
            preempts_lower=draw(st.booleans()),
            time_slices=draw(st.booleans()),
        )
    for name in reversed(list(queues)):
        queues[name] = _guaranteed(draw, queues, name)
    leaves = [name for name in queues if name not in child_queues(QueueTree(queues))]
    return QueueTree(queues, draw(st.sampled_from(leaves)), draw(st.sampled_from([60.0, 86400.0, 1234567.0])))


def _guaranteed(draw: st.DrawFn, queues: dict[QueueName, Queue], name: QueueName) -> Queue:
    from dataclasses import replace

    below = dict(guaranteed_amounts(QueueTree(queues))[name])
    named = {key: amount for key, amount in draw(amounts(below)).items() if not key.startswith("gpu:")}
    sure = below | named
    maximum = draw(amounts(sure))
    return replace(
        queues[name],
        guarantee=named,
        maximum=maximum,
        lend_limit=draw(amounts(only={key for key in sure if sure[key]})),
    )


@settings(max_examples=60, deadline=None)
@given(trees())
def test_tree_round_trips_through_yaml(tmp_path_factory: pytest.TempPathFactory, tree: QueueTree) -> None:
    file = tmp_path_factory.getbasetemp() / "tree.yaml"
    file.write_text(mapping_text(tree_mapping(tree)))
    assert read_queues(file) == tree
    assert diff_trees(tree, read_queues(file)) == []


@settings(max_examples=60, deadline=None)
@given(trees(), trees())
def test_diff_reports_exactly_the_differences(before: QueueTree, after: QueueTree) -> None:
    changes = diff_trees(before, after)
    assert [change.queue for change in changes if change.kind == "added"] == sorted(
        set(after.queues) - set(before.queues)
    )
    assert [change.queue for change in changes if change.kind == "removed"] == sorted(
        set(before.queues) - set(after.queues)
    )
    both = sorted(set(before.queues) & set(after.queues))
    assert [c.queue for c in changes if c.kind == "changed" and c.queue] == [
        name for name in both if before.queues[name] != after.queues[name]
    ]
    assert all(change.detail for change in changes if change.kind == "changed")


@settings(max_examples=60, deadline=None)
@given(trees(), st.data())
def test_guarantee_above_the_parent_is_refused(tree: QueueTree, data: st.DataObject) -> None:
    inner = [
        name for name, queue in tree.queues.items() if queue.parent and tree.queues[queue.parent].guarantee
    ]
    assume(inner)
    name = data.draw(st.sampled_from(inner))
    parent = tree.queues[tree.queues[name].parent or name]
    key, amount = next(iter(parent.guarantee.items()))
    mapping = tree_mapping(tree)
    flat = _flat(mapping["queues"])
    from hopyard.config.resource_amounts import amount_value, resource_key

    flat[name] = {
        **flat[name],
        "guarantee": {resource_key(key): amount_value(key, amount + 1)},
        "maximum": {},
        "lend_limit": {},
    }
    with pytest.raises(SpecError) as caught:
        queue_tree_from(as_section("f", "", {**mapping, "queues": flat}))
    assert caught.value.message.startswith("f: queues.")


def _flat(queues: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, one in queues.items():
        result[name] = {key: value for key, value in one.items() if key != "queues"} | (
            {"parent": parent} if parent else {}
        )
        result |= _flat(one.get("queues", {}), name)
    return result


def test_changes_have_a_text() -> None:
    before = queue_tree_from(
        as_section("f", "", {"queues": {"default": {"guarantee": {"gpus": 4}, "submitters": ["a"]}}})
    )
    after = queue_tree_from(
        as_section("f", "", {"half_life": "1d", "queues": {"default": {"weight": 2, "time_slices": True}}})
    )
    assert diff_trees(before, after) == [
        QueueChange("changed", None, "half_life: 7d → 1d"),
        QueueChange(
            "changed",
            QueueName("default"),
            "weight: 1 → 2; guarantee: gpus 4 → none; submitters: a → none; time_slices: no → yes",
        ),
    ]
