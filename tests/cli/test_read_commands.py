"""Commands that show and manage existing runs, each once, with snapshots of their output."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.client import Client
from hopyard.datasets.folder_scan import PATH, scan_folder
from hopyard.datasets.ignore_rules import CODE_RULES
from hopyard.errors import SpecError
from tests.cli.conftest import TRAIN, shell_in
from tests.cli.shell import HOP, Shell, assert_snapshot, normalize


def test_ps(shell: Shell, trained_runs: list[str]) -> None:
    assert (
        shell.hop("ps", "--project", "none").stderr_text == "no run matches; use `-a` to include ended runs\n"
    )
    assert_snapshot("ps.txt", normalize(shell.hop("ps", "-a", "--tag", "kind=trained").text))
    query = ("ps", "--tag", "kind=trained", "--where")
    chosen = shell.hop(*query, "acc > 0.6 and lr <= 0.1", "--columns", "name,state,script,params.lr,acc,took")
    head, row = chosen.text.splitlines()
    assert head.split() == ["NAME", "STATE", "SCRIPT", "params.lr", "acc", "TOOK"]
    assert [row.split()[0], *row.split()[1:5]] == [trained_runs[0], "succeeded", "train.py", "0.1", "0.9"]
    unknown = shell.hop(*query, "acc", "--columns", "name,params.lrr,zzzz")
    assert unknown.stderr_text.splitlines() == [
        "--columns: no listed run has `params.lrr`; did you mean `params.lr`?",
        "--columns: no listed run has `zzzz`",
    ]
    listed = shell.hop(*query, "acc", "--sort", "acc", "--json").json
    assert [run["summary"]["acc"] for run in listed] == [0.5, 0.9]
    refused = shell.hop(*query, "acc >> 1")
    assert (refused.code, "where: `> 1` at character 6" in refused.stderr_text) == (2, True)
    assert [
        run["name"] for run in shell.hop("ps", "-a", "--json", "--tag", "kind=trained", "--tag", "n=1").json
    ] == [trained_runs[0]]
    assert shell.hop("ps", "-a", "--json", "--tag", "kind=trained", "--tag", "a=b").json == []
    assert shell.hop("ps", "-a", "--json", "-n", "first", "--phase", "failed").json == []
    refused = shell.hop("ps", "--phase", "runing")
    assert (refused.code, refused.stderr_text.splitlines()[:2]) == (
        2,
        ["error: --phase: `runing` is not a phase", "hint: did you mean `running`?"],
    )


def test_commands_work_in_a_deleted_folder(shell: Shell, trained_runs: list[str]) -> None:
    commands = " && ".join(f"{HOP[0]} -m hopyard.cli {name} {trained_runs[0]}" for name in ("info", "why"))
    deleted = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && {commands}"],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (deleted.returncode, deleted.stderr) == (0, "")
    assert "it has ended (succeeded)" in deleted.stdout


def test_info(shell: Shell, trained_runs: list[str]) -> None:
    assert_snapshot("info.txt", normalize(shell.hop("info", trained_runs[0]).text))
    result = shell.hop("info", trained_runs[1], "--json").json
    assert result["name"] == trained_runs[1]
    assert [c["step"] for c in result["checkpoints"]]
    assert shell.hop("info", "first", "--json").json["name"] == trained_runs[0]


def test_exit_reason_of_many_lines_is_one_table_line(shell: Shell) -> None:
    shell.write("hello.py", "print(1)\n")
    shell.write("wrong.txt", "six==\n")
    name = shell.hop("run", "--json", "--tag", "kind=wrong", "--requirements", "wrong.txt", "hello.py").json[
        "name"
    ]
    lines = shell.hop("ps", "-a", "--tag", "kind=wrong").text.splitlines()
    assert (len(lines), lines[1].split()[0]) == (2, name)
    assert lines[1].endswith(" …")
    result = shell.hop("info", name).text
    assert "six==" in result
    assert all(line.startswith(" " * 12) or not line.startswith(" ") for line in result.splitlines())


def test_unknown_run(shell: Shell, trained_runs: list[str]) -> None:
    result = shell.hop("info", trained_runs[0] + "9")
    assert result.code == 2
    assert result.stderr_text.startswith(f"error: there is no run `{trained_runs[0]}9`\nhint: ")


def test_logs(shell: Shell, trained_runs: list[str]) -> None:
    result = shell.hop("logs", trained_runs[0])
    assert (result.out, result.err) == (b"3\n", b"warning\n")
    assert shell.hop("logs", trained_runs[0], "--raw").out == b"\r0\r1\r2\r3\n"
    followed = shell.hop("logs", "-f", trained_runs[0])
    assert followed.out == b"\r0\r1\r2\r3\n"
    assert followed.stderr_text.startswith(f"warning\n{trained_runs[0]} succeeded after ")
    assert shell.hop("logs", trained_runs[0], "--stderr").out == b"warning\n"
    assert shell.hop("logs", trained_runs[0], "--stdout").err == b""
    assert shell.hop("logs", trained_runs[1], "--tail", "1").out == b"more\n"
    assert shell.hop("logs", trained_runs[1], "--tail", "1", "-f").out == b"more\n"
    assert shell.hop("logs", trained_runs[1], "--tail", "0").out == b""
    assert shell.hop("logs", trained_runs[1], "--attempt", "1", "--tail", "1").out == b"more\n"
    assert "it has 1" in shell.hop("logs", trained_runs[1], "--attempt", "2").stderr_text
    assert shell.hop("logs", trained_runs[1], "--rank", "1").code == 2
    assert shell.hop("logs", "--stdout", "--stderr").code == 2


def test_newest_run_is_the_default(shell: Shell) -> None:
    shell.write("newest.py", "print('newest')")
    name = shell.hop("run", "--json", "newest.py").json["name"]
    assert shell.hop("info", "--json").json["name"] == name
    assert "it has logged no metric" in shell.hop("plot", "last", "loss").stderr_text
    assert shell.hop("logs").out == b"newest\n"


def test_plot(shell: Shell, trained_runs: list[str]) -> None:
    assert_snapshot("plot.txt", shell.hop("plot", trained_runs[0], "--width", "60", "--height", "10").text)
    shell.environment["PYTHONIOENCODING"] = "ascii"
    assert shell.hop("plot", trained_runs[0], "acc").out.isascii()
    both = shell.hop("plot", trained_runs[0], "*_loss", "--with", trained_runs[1], "--json").json
    assert set(both) == set(trained_runs)
    assert both[trained_runs[0]]["val_loss"]["values"] == pytest.approx([0.2, 0.1, 0.2 / 3, 0.05])
    assert "o first acc" in shell.hop("plot", trained_runs[0], "acc", "--with", trained_runs[1]).text, (
        "a label is shown instead of the name"
    )
    timed = shell.hop("plot", trained_runs[0], "acc", "--x", "time").text
    assert timed.startswith("acc  0.75 after ")
    assert timed.splitlines()[0].endswith(" seconds")
    wrong = shell.hop("plot", trained_runs[0], "train_los")
    assert (wrong.code, wrong.stderr_text.splitlines()[1]) == (2, "hint: did you mean `train_loss`?")


def test_any_numbers_and_names_are_plotted(shell: Shell) -> None:
    shell.write(
        "odd.py",
        "import hopyard as hop\n"
        "for step, h in enumerate((1e308, -1e308, 5e-324, 2**70, 1.0)):\n"
        "    hop.log(step=step, **{'a[0]': h, 'x y=1,z': h, '_$loss^': h, 'ü/\\x1b[1m': h})\n"
        "    hop.log(step=step, **{'two\\nlines': h})\n"
        "for step, bad in enumerate((0.5, float('nan'), float('inf'), float('-inf'))):\n"
        "    hop.log(step=step, bad=bad)\n"
        "hop.summary(bad=float('-inf'))\n",
    )
    name = shell.hop("run", "--json", "odd.py").json["name"]
    assert "a[0]" in shell.hop("plot", name, "a[0]").text
    assert "x y=1,z" in shell.hop("plot", name, "x y=1,z").text
    drawn = shell.hop("plot", name)
    assert drawn.code == 0 and "\x1b[1m" not in drawn.text
    assert "two\\nlines" in shell.hop("plot", name, "nothing").stderr_text
    assert "bad  -inf at step 3  1 -inf, 1 NaN, 1 inf" in drawn.text
    assert shell.hop("plot", name, "bad", "--json").json[name]["bad"]["values"] == [
        0.5,
        "NaN",
        "Infinity",
        "-Infinity",
    ]
    run = shell.hop("info", name, "--json").json
    assert (run["latest"]["bad"], run["summary"]["bad"]) == ([3, "-Infinity"], "-Infinity")
    assert "bad -inf" in shell.hop("info", name).text
    if find_spec("matplotlib"):
        assert shell.hop("plot", name, "--png", "odd.png").code == 0


def test_plot_as_png(shell: Shell, trained_runs: list[str]) -> None:
    pytest.importorskip("matplotlib")
    result = shell.hop(
        "plot", trained_runs[0], "--png", "curves.png", "--with", trained_runs[1], "--x", "time"
    )
    assert result.stderr_text == "wrote curves.png\n"
    assert (shell.folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert shell.hop("plot", trained_runs[0], "--png", "none/x.png").code == 2


def test_plot_without_metrics(shell: Shell) -> None:
    shell.write("empty.py", "")
    name = shell.hop("run", "--json", "empty.py").json["name"]
    assert "has logged no metric yet" in shell.hop("plot", name).stderr_text


def test_diff(shell: Shell, trained_runs: list[str]) -> None:
    assert_snapshot("diff.txt", normalize(shell.hop("diff", *trained_runs).text))
    result = shell.hop("diff", *trained_runs, "--json").json
    assert result["params"] == {"lr": [0.1, 0.5]}
    assert result["resources"] == {"worker memory_bytes": [0, 2**30]}
    assert [(f["path"], f["kind"]) for f in result["code"]] == [
        ("old.txt", "removed"),
        ("train.py", "changed"),
    ]
    assert shell.hop("diff", trained_runs[0], trained_runs[0]).text.splitlines()[1] == "no difference"


def test_diff_shows_notes(shell: Shell, trained_runs: list[str]) -> None:
    shell.write("empty.py", "")
    assert shell.hop("run", "-n", "noted", "empty.py").code == 0
    assert shell.hop("update", "noted", "--note", "better").code == 0
    result = shell.hop("diff", trained_runs[0], "noted", "--json").json
    assert result["tags"] == {"kind": ["trained", None], "n": ["1", None]}
    assert result["notes"] == {"note": [None, "better"]}


def test_pull(shell: Shell, trained_runs: list[str]) -> None:
    result = shell.hop("pull", trained_runs[1], "got")
    assert (result.code, result.text) == (0, "got\n"), result.stderr_text
    got = shell.folder / "got"
    assert (got / "code" / "train.py").read_text() == TRAIN + "print('more')\n"
    assert (got / "files" / "model.txt").read_text() == "0.5"
    assert (got / "logs" / "stdout.log").read_bytes() == b"\r0\r1\r2\r3\nmore\n"
    assert json.loads((got / "run.json").read_text())["name"] == trained_runs[1]
    assert len(list(got.glob("checkpoint-*"))) == 1
    assert (got / "metrics" / "metrics.csv").read_text().startswith("name,step,time,value\nacc,0,")
    assert not any(seen[PATH].startswith("got/") for seen in scan_folder(shell.folder, CODE_RULES).files), (
        "the folder is not part of the next run's code"
    )
    again = shell.hop("pull", trained_runs[1], "got")
    assert (again.code, again.stderr_text.splitlines()[0]) == (2, "error: got is not empty")
    assert shell.hop("pull", trained_runs[0], "got", "--code", "--force").code == 0
    assert (got / "code" / "train.py").read_text() == TRAIN
    assert shell.hop("pull", trained_runs[0], "other", "--step", "99").code == 2
    assert not (shell.folder / "other").exists()
    nowhere = shell.hop("pull", trained_runs[0], "/proc/no/such")
    assert (nowhere.code, nowhere.stderr_text.splitlines()[0]) == (
        2,
        "error: /proc/no/such cannot be made: No such file or directory",
    )


def test_fork(shell: Shell, trained_runs: list[str], client: Client) -> None:
    shell.write("train.py", "raise SystemExit('not this code')\n")
    result = shell.hop(
        "fork",
        trained_runs[0],
        "-p",
        "lr=0.2",
        "-n",
        "forked",
        "--cpus",
        "0.5",
        "--tag",
        "kind=forked",
        "--json",
    )
    run = result.json["run"]
    assert (run["phase"], run["params"], run["spec"]["label"]) == (
        "succeeded",
        {"lr": 0.2, "epochs": 4},
        "forked",
    )
    assert run["spec"]["roles"][0]["resources"]["cpu_milli"] == 500
    assert run["spec"]["tags"] == {"kind": "forked", "n": "1"}
    assert run["spec"]["forked_from"] == client.get("/runs/resolve", ref=trained_runs[0])["id"]
    assert f"forked from {trained_runs[0]}\n" in shell.hop("info", "forked").text
    resumed = shell.hop(
        "fork", trained_runs[0], "-p", "epochs=6", "--checkpoint", "newest", "--tag", "kind=forked", "--json"
    ).json["run"]
    assert resumed["phase"] == "succeeded"
    assert resumed["spec"]["resume"] is not None
    refused = shell.hop("fork", trained_runs[0], "--checkpoint", "99")
    assert (refused.code, refused.stderr_text.splitlines()[0]) == (
        2,
        f"error: run {trained_runs[0]} has no checkpoint of step 99",
    )
    assert shell.hop("fork", trained_runs[0], "--checkpoint", "beste").stderr_text.startswith(
        "error: --checkpoint: `beste`"
    )
    name = trained_runs[0]
    misspelt = shell.hop("fork", name, "-p", "lrr=a", "-p", "lr=0.3", "--tag", "kind=forked", "--json")
    assert [line for line in misspelt.stderr_text.splitlines() if line.startswith("warning:")] == [
        f"warning: -p lrr: the script of {name} has no parameter `lrr`; did you mean `lr`?"
    ]
    wrong = shell.hop("fork", name, "-p", "lr=fast")
    assert (wrong.code, wrong.stderr_text.splitlines()[0]) == (2, "error: -p lr=fast: `lr` is a float")
    other = shell.folder / "other"
    other.mkdir()
    (other / "train.py").write_text("import hopyard as hop\np = hop.params(lr='fast', epochs=1)\n")
    renamed = shell.hop("fork", name, "-p", "epochs=many", "--code", "other")
    assert (renamed.code, "`epochs` is an int" in renamed.stderr_text) == (2, True), renamed.stderr_text
    assert (
        shell.hop("fork", name, "-p", "lr=slow", "--code", "other", "--json").json["run"]["spec"]["params"][
            "lr"
        ]
        == "slow"
    )


def test_fork_of_a_label_names_the_forked_run(shell: Shell, trained_runs: list[str]) -> None:
    shell.write("train.py", TRAIN)
    first = shell.hop("run", "-n", "slow", "train.py", "--json").json["run"]["name"]
    forked = shell.hop("fork", "slow", "--json")
    second = forked.json["run"]["name"]
    assert (
        f"forks {first}; `slow` now refers to {second} (use `--name` for another name)" in forked.stderr_text
    )
    assert f"forks {second}; `slow` now refers to" in shell.hop("fork", "slow", "--json").stderr_text
    assert "means" not in shell.hop("fork", "slow", "-n", "other", "--json").stderr_text


@pytest.mark.parametrize(("label", "means"), [("last", "the newest run"), ("12", "the run of that number")])
def test_reserved_label_is_refused(
    shell: Shell, trained_runs: list[str], client: Client, label: str, means: str
) -> None:
    shell.write("train.py", TRAIN)
    for words in (
        ("run", "-n", label, "train.py"),
        ("fork", trained_runs[0], "-n", label),
        ("update", trained_runs[0], "--name", label),
    ):
        refused = shell.hop(*words)
        assert (refused.code, refused.stderr_text.splitlines()[0]) == (
            2,
            f"error: --name: `{label}` has a special meaning in run references: {means}",
        ), words
    with pytest.raises(SpecError, match=f"label: `{label}` has a special meaning in run references"):
        client.patch(f"/runs/{client.get('/runs/resolve', ref=trained_runs[0])['id']}", {"label": label})


def test_empty_tag_is_shown_as_empty(shell: Shell, trained_runs: list[str]) -> None:
    assert "tag c none -> ``" in shell.hop("update", trained_runs[0], "--tag", "c=").stderr_text
    assert "tag c `` -> none" in shell.hop("update", trained_runs[0], "--untag", "c").stderr_text


def test_board(shell: Shell) -> None:
    shell.write("data/x.txt", "x")
    assert shell.hop("dataset", "push", "tiny", "data").code == 0
    shell.write("train.py", TRAIN)
    for lr in ("0.1", "0.5", "0.3"):
        assert shell.hop("run", "-d", "tiny", "-p", f"lr={lr}", "train.py").code == 0
    assert_snapshot("board.txt", normalize(shell.hop("board", "tiny").text))
    assert shell.hop("dataset", "board", "tiny").text == shell.hop("board", "tiny").text
    assert [row["value"] for row in shell.hop("board", "tiny", "--json").json["rows"]] == pytest.approx(
        [0.9, 0.7, 0.5]
    )
    assert shell.hop("board", "tny").code == 2
    shell.write(
        "logs.py",
        "import hopyard as hop\nfor step, value in enumerate((0.4, 0.1, 0.3)): "
        "hop.log(eval_loss=value * hop.params(scale=1.0).scale, odd=float('-inf'), step=step)\n",
    )
    for scale in ("1.0", "2.0"):
        assert shell.hop("run", "-d", "tiny", "-p", f"scale={scale}", "logs.py").code == 0

    def values(*options: str) -> list[tuple[object, object, object]]:
        rows = shell.hop("board", "tiny", "--json", "-m", *options).json["rows"]
        return [(row["value"], row["source"], row["step"]) for row in rows]

    assert values("eval_loss") == [(pytest.approx(0.3), "last", 2), (pytest.approx(0.6), "last", 2)]
    assert values("eval_loss", "--best", "--max") == [
        (pytest.approx(0.8), "best", 0),
        (pytest.approx(0.4), "best", 0),
    ]
    assert values("odd") == [("-Infinity", "last", 2)] * 2
    assert "-inf" in shell.hop("board", "tiny", "-m", "odd").text
    assert values("acc", "--last")[0] == (0.75, "last", 3)
    assert shell.hop("ps", "-a", "--json", "-d", "tiny").json[0]["spec"]["datasets"][0]["version"] == 1


def test_stop_and_rm(shell: Shell) -> None:
    shell.write("wait.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    name = shell.detach("wait.py")
    refused = shell.hop("rm", "-y", name)
    assert (refused.code, refused.stderr_text) == (
        1,
        f"error: {name} has not ended\nhint: use --force to end live runs first\n",
    )
    wrong = shell.hop("stop", "no/such/1", name)
    assert (
        wrong.code,
        "hint: nothing was stopped: leave it out to stop the others\n" in wrong.stderr_text,
    ) == (
        2,
        True,
    )
    assert json.loads(shell.hop("ps", "--json").out)[0]["name"] == name
    assert shell.hop("stop", "--grace", "1s", name).stderr_text.startswith(f"{name}  ")
    shell.hop("logs", "-f", name)
    assert shell.hop("stop", name).stderr_text == f"{name}  had already ended: cancelled\n"
    assert shell.hop("rm", name).stderr_text.startswith(
        "error: stdin is not a terminal, so the deletion cannot be confirmed"
    )
    assert shell.hop("rm", "-y", name).stderr_text == f"deleted {name}\n"
    assert shell.hop("info", name).code == 2


def test_rm_with_force_stops_live_runs(shell: Shell) -> None:
    shell.write("wait.py", "import time\ntime.sleep(600)\n")
    name = shell.detach("wait.py")
    assert shell.hop("rm", "-y", "--force", name).code == 0
    assert shell.hop("info", name).code == 2


def without_torch(shell: Shell) -> None:
    """Uses an interpreter without torch, whose import takes seconds."""
    place = shell.folder.parent / "venv" / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    shell.environment["VIRTUAL_ENV"] = str(place.parent)


def test_status_token_and_doctor(shell: Shell, client: Client, served_home: Path) -> None:
    result: dict[str, Any] = shell.hop("status", "--json").json
    assert (result["running"], result["home"]) == (True, str(served_home))
    lines = [line for line in shell.hop("status").text.splitlines() if not line.startswith("warning")]
    assert [line.split()[0] for line in lines] == ["server", "home", "runs", "blobs", "node"]
    assert lines[-1].startswith("node       box  in use: CPU 0 of 4, memory 0 B of 8.0 GiB; no GPU")
    token = shell.hop("token", "--json").json
    assert token == {"url": client.url + "/api/v1", "token_file": str(served_home / "token")}
    assert client.token not in shell.hop("token").text + shell.hop("token").stderr_text
    bobs = client.post("/tokens", {"name": "elsewhere"})["secret"]
    away = Shell(shell.folder, {**shell.environment, "HOPYARD_URL": client.url, "HOPYARD_TOKEN": bobs}).hop(
        "token"
    )
    assert (
        str(served_home) not in away.text + away.stderr_text and "Bearer $HOPYARD_TOKEN" in away.stderr_text
    ), "the token of this home is not sent"
    without_torch(shell)
    checks = {finding["check"]: finding["level"] for finding in shell.hop("doctor", "--json").json}
    assert (
        checks["server"]
        == checks["database"]
        == checks["home"]
        == checks["settings"]
        == checks["clock"]
        == "ok"
    )


def test_up_and_down(shell: Shell, tmp_path: Path) -> None:
    shell.environment["HOPYARD_HOME"] = str(tmp_path / "another")
    nothing = shell.hop("status")
    assert (nothing.code, nothing.text) == (1, f"no server runs for {tmp_path / 'another'}\n")
    away = Shell(
        shell.folder, {**shell.environment, "HOPYARD_URL": "http://127.0.0.1:1", "HOPYARD_TOKEN": "t"}
    ).hop("status")
    assert (
        away.code == 1
        and away.text.startswith("no server answers at http://127.0.0.1:1")
        and "check the address in HOPYARD_URL" in away.stderr_text
    )
    assert Shell(
        shell.folder, {**shell.environment, "HOPYARD_URL": "http://127.0.0.1:1", "HOPYARD_TOKEN": "t"}
    ).hop("status", "--json").json == {
        "running": False,
        "url": "http://127.0.0.1:1",
    }
    try:
        assert shell.hop("up", "--json").json["started"] is True
        assert shell.hop("up").stderr_text.startswith("runs already: ")
        shell.write("wait.py", "import time\ntime.sleep(600)\n")
        shell.detach("wait.py")
        refused = shell.hop("down")
        assert refused.code == 1
        assert refused.stderr_text.splitlines()[1].startswith("hint: use --keep-runs ")
    finally:
        assert (
            shell.hop("down", "--stop-runs").stderr_text
            == f"the server of {tmp_path / 'another'} has stopped\n"
        )
    assert shell.hop("down").stderr_text == f"no server runs for {tmp_path / 'another'}\n"


@pytest.mark.parametrize(
    ("gpus", "description"),
    [
        ('"A100:4"', "config.yaml declares 4 x A100, which runs get without a check"),
        ("0", "config.yaml declares none, so runs get none"),
    ],
)
def test_doctor_names_declared_gpus(shell: Shell, tmp_path: Path, gpus: str, description: str) -> None:
    home = tmp_path / "declared"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(f"node: {{gpus: {gpus}}}\n")
    shell.environment["HOPYARD_HOME"] = str(home)
    without_torch(shell)
    (gpu,) = [finding for finding in shell.hop("doctor", "--json").json if finding["check"] == "gpu"]
    assert gpu["text"].endswith(f"; {description}")


def test_doctor_finds_problems(shell: Shell, tmp_path: Path) -> None:
    home = tmp_path / "open"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (home / "config.yaml").write_text("nodes: {}\n")
    (home / "hopyard.db").write_bytes(b"no database at all" * 100)
    shell.environment["HOPYARD_HOME"] = str(home)
    without_torch(shell)
    result = shell.hop("doctor", "--json")
    assert result.code == 1
    findings = {finding["check"]: finding for finding in result.json}
    assert findings["home"]["hint"] == f"chmod 700 {home}"
    assert findings["settings"]["level"] == findings["database"]["level"] == "fail"


def test_bare_number_resolves_to_the_project_of_the_folder(
    served_home: Path, tmp_path: Path, client: Client
) -> None:
    one, other = shell_in(tmp_path / "Left Side", served_home), shell_in(tmp_path / "right", served_home)
    runs = {}
    for shell in (one, other):
        shell.write("a.py", "print('hello')\n")
        runs[shell] = [shell.hop("run", "--json", "a.py").json["name"] for _ in range(2)]
    assert [name.partition("/")[2] for name in runs[one] + runs[other]] == [
        "Left-Side/1",
        "Left-Side/2",
        "right/1",
        "right/2",
    ]
    for shell in (one, other):
        for at, name in enumerate(runs[shell], 1):
            assert shell.hop("info", "--json", str(at)).json["name"] == name
    assert runs[one][1] in one.hop("rm", "--yes", "2").stderr_text
    assert {client.get("/runs/resolve", ref=name)["id"] for name in runs[other]}, (
        "the runs of the other folder still exist"
    )
    elsewhere = shell_in(tmp_path / "elsewhere", served_home).hop("info", "1")
    assert (
        elsewhere.code == 2
        and "Left-Side/1" in elsewhere.stderr_text
        and "right/1" in elsewhere.stderr_text
        and "hint: " in elsewhere.stderr_text
    )
