"""`hop simulate`, typed in process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hopyard.domain.duration_text import format_duration
from hopyard.scheduler.policies.registry import POLICIES
from hopyard.simulator import simulate
from hopyard.simulator.policies import DEFAULT_POLICY
from tests.cli.conftest import shell_in
from tests.cli.in_process import CommandOutput
from tests.cli.in_process import hop as hop_in_process

CLUSTER = "pools: [{name: a100, count: 2, cpus: 64, memory: 512G, gpus: A100:8}]\n"
RUNS = """submit,duration,gpus,replicas,user,queue
0,2h,8,2,alice,vision
5m,90m,1,1,bob,nlp
5m,bad,1,1,bob,nlp
6m,also bad,1,1,bob,nlp
10m,3h,4,,bob,nlp
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "runs.csv").write_text(RUNS)
    (tmp_path / "head.csv").write_text("submit,duration\n")
    (tmp_path / "bad.csv").write_text("submit,duration\n0,bad\n0,bad\n")
    (tmp_path / "listed.yaml").write_text(
        "runs: [{submit: 0, duration: 1h}, {submit: 0, duration: 1h, queue: vision}]\n"
    )
    (tmp_path / "queues.yaml").write_text("queues: {all: {}}\ndefault: all\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hop(capfd: pytest.CaptureFixture[str], *words: str) -> CommandOutput:
    return hop_in_process(capfd, "simulate", *words)


def test_policies_side_by_side(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--policy", "best-fit")
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["runs:", "3", "runs", "on", "2", "nodes", "with", "16", "GPUs"]
    assert ["fifo", "best-fit"] in lines
    assert ["runs", "ended", "3", "of", "3", "3", "of", "3"] in lines
    assert [
        "makespan",
        "5",
        "h",
        "5",
        "h",
    ] in lines  # both small runs wait for 2 h, and the longer one takes 3 h
    assert [line[:2] for line in lines if line[:1] in (["nlp"], ["vision"])] == [
        ["nlp", "2"],
        ["vision", "1"],
    ]


def test_invalid_rows_are_reported_with_their_lines(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo")
    assert result.err.splitlines()[:3] == [
        "2 of 5 rows are skipped:",
        "  line 4: duration: `bad` is not a time",
        "  line 5: duration: `also bad` is not a time",
    ]


def test_add_compares_with_more_nodes(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(
        capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--add", "1 x A100:8", "--json"
    )
    assert result.code == 0, result.err
    output = json.loads(result.out)
    assert [cluster["gpus"] for cluster in output["clusters"]] == [16, 24]
    before, after = output["reports"]
    assert (before["title"], after["title"]) == ("fifo", "fifo + 1 x A100:8")
    assert (before["wait"]["most"], after["wait"]["most"]) == (6900.0, 0.0)
    assert [problem["line"] for problem in output["workload"]["not_played"]] == [4, 5]


def test_equal_seeds_give_equal_output(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = (
        "runs.csv",
        "--cluster",
        "cluster.yaml",
        "--policy",
        "las",
        "--mtbf",
        "1h",
        "--repair",
        "10m",
        "--seed",
        "3",
        "--checkpoint-every",
        "10m",
        "--json",
    )
    first, again = (json.loads(hop(capfd, *words).out) for _ in range(2))
    for output in (first, again):
        assert output["reports"][0].pop("timing")["turns"] > 0
    assert first == again
    assert first["reports"][0]["losses"]["node_losses"] > 0


def test_without_ended_runs_waits_are_empty(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "runs.csv", "--cluster", "cluster.yaml", "--until", "1m")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["wait,", "mean", "-"] in lines and ["completion,", "p99", "-"] in lines


def test_help_names_every_policy(capfd: pytest.CaptureFixture[str]) -> None:
    result = " ".join(hop(capfd, "--help").out.split())
    assert POLICIES.keys() <= set(re.findall(r"[\w-]+", result)) and f"[default: {DEFAULT_POLICY}]" in result


def test_png_of_utilisation_curves(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    result = hop(
        capfd,
        "runs.csv",
        "--cluster",
        "cluster.yaml",
        "--policy",
        "fifo",
        "--policy",
        "fgd",
        "--png",
        "curves.png",
    )
    assert result.code == 0, result.err
    assert "wrote curves.png" in result.err
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    refused = hop(capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--png", "curves.pdf")
    assert (refused.code, refused.out) == (2, "")
    assert (
        refused.err
        == "error: --png: curves.pdf does not end in .png\nhint: use curves.png: the output is a PNG\n"
    )
    assert not (folder / "curves.pdf").exists()
    refused = hop(
        capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--png", "no/such/folder.png"
    )
    assert (refused.code, refused.out) == (2, "")  # before anything is played
    assert refused.err.startswith(
        "error: --png: no/such/folder.png cannot be written: there is no folder no/such"
    )


def test_too_many_node_losses_end_the_simulation(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "MAX_NODE_LOSSES", 20)
    words = ("runs.csv", "--cluster", "cluster.yaml", "--mtbf", "10m", "--repair", "1m")
    result = hop(capfd, *words)
    assert (result.code, result.out) == (2, "")
    assert (
        "--mtbf: machines were lost 41 times one after the other, and no run came any further" in result.err
    )
    assert "hint: let runs save what they did: --checkpoint-every 10m" in result.err
    assert ["runs", "ended", "3", "of", "3"] in [
        line.split() for line in hop(capfd, *words, "--checkpoint-every", "1m").out.splitlines()
    ]


def test_invalid_amounts_are_reported_with_their_lines(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = ("0,1h,1,1000000000,", "0,1h,999999937,1,", "0,1h,1,1,101", "0,1h,1,1,100")
    (folder / "runs.csv").write_text("\n".join(["submit,duration,gpus,replicas,priority", *rows]))
    result = hop(capfd, "runs.csv", "--cluster", "cluster.yaml")
    assert result.code == 0
    assert result.err.splitlines()[1:4] == [
        "  line 2: replicas: 1000000000 is not a whole number from 1 to 4096",
        "  line 3: gpus: 999999937 is not a whole number from 0 to 65536",
        "  line 4: priority: 101 is not a whole number from 0 to 100",
    ]


def test_queue_option_puts_all_runs_in_one_queue(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--queues", "queues.yaml", "--json")
    refused = hop(capfd, *words)
    assert (
        refused.code,
        "error: runs.csv: line 2: the queue `vision` is not in the tree of queues" in refused.err,
    ) == (2, True)
    output = json.loads(hop(capfd, *words, "--queue", "all").out)
    assert [queue["name"] for queue in output["reports"][0]["queues"]] == ["all"]


def test_singular_forms(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "one.yaml").write_text("pools: [{name: a, cpus: 8, memory: 32G, gpus: 1}]\n")
    (folder / "one.csv").write_text("submit,duration\n0,1h\n0,bad\n")
    result = hop(capfd, "one.csv", "--cluster", "one.yaml")
    assert result.out.splitlines()[0] == "one: 1 run on 1 node with 1 GPU"
    assert result.err.splitlines()[0] == "1 of 2 rows is skipped:"


def test_runs_larger_than_the_cluster_are_listed_with_their_shortfall(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "large.csv").write_text(
        "\n".join(["submit,duration,gpus,cpus", "0,1h,1,1", *["0,1h,9,1"] * 5, "0,1h,,999"])
    )
    words = ("large.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--add", "1 x A100:16")
    lines = hop(capfd, *words).out.splitlines()
    at = lines.index("larger than the cluster:")
    assert lines[at + 1].startswith("  line 3, 4, 5 and 2 more: needs 9 GPUs on one node; ") and lines[
        at + 1
    ].endswith("8 GPUs (1 too few)")
    assert lines[at + 2].startswith("  line 8: needs 999 CPUs on one node; ")
    after = lines.index("larger than the cluster + 1 x A100:16:")
    assert lines[after + 1].startswith("  line 8: needs 999 CPUs") and lines[after + 2 :] == []
    before, larger = json.loads(hop(capfd, *words, "--json").out)["reports"]
    assert [run["row"] for run in before["too_large"]] == [f"line {number}" for number in range(3, 9)]
    assert [run["row"] for run in larger["too_large"]] == ["line 8"]


def test_shares_name_their_resource(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "both.csv").write_text(
        "submit,duration,gpus,cpus,queue\n0,1h,8,8,nlp\n0,1h,,64,etl\n0,1h,,64,etl\n0,1h,,64,etl\n"
    )
    result = hop(capfd, "both.csv", "--cluster", "cluster.yaml", "--policy", "fifo")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["QUEUE", "RUNS", "OF", "fifo", "SHARE", "fifo", "WAIT"] in lines
    assert [line[:3] for line in lines if line[:1] in (["etl"], ["nlp"])] == [
        ["etl", "3", "CPUs"],
        ["nlp", "1", "GPUs"],
    ]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_many_columns_continue_in_further_tables(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No number is lost: those of a policy simulated alone are in its column."""
    words = ["runs.csv", "--cluster", "cluster.yaml", "--add", "2 x A100:8"]
    monkeypatch.setenv("COLUMNS", "1000")
    many = [*words, *(word for name in POLICIES for word in ("--policy", name))]
    wide, reports = hop(capfd, *many).out, json.loads(hop(capfd, *many, "--json").out)["reports"]
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = hop(capfd, *many).out
    assert max(map(len, wide.splitlines())) > 230
    assert max(map(len, narrow.splitlines())) <= width
    for name in ("runs ended", "makespan", "wait, p99", "completion, mean", "fairness of queues (Jain)"):
        of = [re.split(r"  +", line)[1:] for line in wide.splitlines() if line.startswith(name)]
        below = [re.split(r"  +", line)[1:] for line in narrow.splitlines() if line.startswith(name)]
        assert [cell for line in below for cell in line] == of[0], name
        assert len(of[0]) == len(reports) == 12
    shares, waits = narrow.split("share of each queue\n")[1].split("mean wait of each queue\n")
    for queue in ("nlp", "vision"):
        queues = [next(one for one in report["queues"] if one["name"] == queue) for report in reports]
        result = [re.split(r"  +", line)[2:] for line in shares.splitlines() if line.startswith(queue)]
        assert [cell for line in result for cell in line] == [f"{queue['ratio']:.2f}" for queue in queues]
        result = [re.split(r"  +", line)[2:] for line in waits.splitlines() if line.startswith(queue)]
        assert [cell for line in result for cell in line] == [
            format_duration(queue["wait"]["mean"]) for queue in queues
        ]
    assert narrow.count("\n+ 2 x A100:8\n") == 3


def test_cluster_can_be_an_openb_node_list(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,8,P100\nb,64000,262144,8,P100\n"
    )
    result = hop(capfd, "runs.csv", "--cluster", "nodes.csv", "--policy", "fifo")
    assert (result.code, result.out.splitlines()[0]) == (0, "runs: 3 runs on 2 nodes with 16 GPUs")


def test_speed_option_slows_the_simulation(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A hundred thousand simulated seconds per second: the virtual clock waits for real time."""
    result = hop(
        capfd, "runs.csv", "--cluster", "cluster.yaml", "--policy", "fifo", "--speed", "100000", "--json"
    )
    assert json.loads(result.out)["reports"][0]["timing"]["wall_s"] >= 18_000 / 100_000


def test_terminal_shows_progress(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shell = shell_in(tmp_path_factory.mktemp("work") / "study", folder)
    with shell.terminal(
        "simulate", str(folder / "runs.csv"), "--cluster", str(folder / "cluster.yaml"), "--policy", "fifo"
    ) as terminal:
        terminal.expect(b"of 3 ended")
        terminal.expect(b"makespan")
        assert terminal.wait() == 0


def test_interrupt_ends_the_simulation(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shell = shell_in(tmp_path_factory.mktemp("work") / "study", folder)
    words = (
        "simulate",
        str(folder / "runs.csv"),
        "--cluster",
        str(folder / "cluster.yaml"),
        "--policy",
        "fifo",
        "--speed",
        "1",
    )
    with shell.terminal(*words) as terminal:
        terminal.expect(b"of 3 ended")
        terminal.type(b"\x03")
        terminal.expect(b"interrupted")
        assert terminal.wait() == 130


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("runs.csv",), "--cluster: missing", "@nodes"),
        (("runs.csv", "--cluster", "none.yaml"), "there is no file none.yaml", "current folder"),
        (("none.csv", "--cluster", "cluster.yaml"), "there is no file none.csv", "current folder"),
        (
            ("runs.csv", "--cluster", "cluster.yaml", "--policy", "fifoo"),
            "--policy: there is no policy `fifoo`",
            "did you mean `fifo`?",
        ),
        (("runs.csv", "--cluster", "cluster.yaml", "--format", "slurm"), "--format", "sacct"),
        (("runs.csv", "--cluster", "cluster.yaml", "--add", "2 x a10"), "--add", "did you mean `a100`?"),
        (("runs.csv", "--cluster", "cluster.yaml", "--store", "sql"), "--store", "sqlite"),
        (("runs.csv", "--cluster", "cluster.yaml", "--save", "soon"), "--save: `soon` is not a time", "2h"),
        (("@histroy", "--cluster", "cluster.yaml"), "workload `@histroy` does not exist", "@history"),
        (("@histroy",), "workload `@histroy` does not exist", "@history"),
        (("runs.csv", "--cluster", "runs.csv"), "no column `sn`", "in YAML"),
        (("runs.csv", "--cluster", "@node"), "file `@node` does not exist", "@nodes"),
        (
            ("runs.csv", "--cluster", "cluster.yaml", "--mtbf", "0"),
            "--mtbf: must be greater than 0",
            "lose no node",
        ),
        (
            ("runs.csv", "--cluster", "cluster.yaml", "--until", "0"),
            "--until: must be greater than 0",
            "--until 2h",
        ),
        (
            ("head.csv", "--cluster", "cluster.yaml"),
            "head.csv: there are no rows below its head",
            "is one row",
        ),
        (("bad.csv", "--cluster", "cluster.yaml"), "bad.csv: line 2: duration: `bad`", "none of its 2 rows"),
        (
            ("listed.yaml", "--cluster", "cluster.yaml", "--queues", "queues.yaml"),
            "listed.yaml: runs.1: the queue `vision`",
            "--queue",
        ),
    ],
)
def test_invalid_options_are_refused_with_hints(
    folder: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], error: str, hint: str
) -> None:
    result = hop(capfd, *words)
    assert (result.code, result.out) == (2, "")
    assert error in result.err
    assert hint in result.err
