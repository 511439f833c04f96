"""`hop run` against a real server: its output, its exit code, and detaching."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from hopyard.api_client.client import Client
from tests.cli.shell import Shell, wait_until

HELLO = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
WAITING = (
    "import pathlib, sys, time\nprint('begun', flush=True)\ngate = pathlib.Path(sys.argv[1])\n"
    "while not gate.exists(): time.sleep(0.02)\nprint('ended')\n"
)


def test_stdout_and_stderr_stay_separate(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    result = shell.hop("run", "hello.py")
    assert (result.code, result.out) == (0, b"out\n")
    first, *rest = result.stderr_text.splitlines()
    assert re.fullmatch(
        r"run \S+/study/\d+  http://127\.0\.0\.1:\d+/api/v1/runs/by-name/\S+/study/\d+  starts at once", first
    )
    assert rest[0] == "err"
    assert re.fullmatch(r"\S+/study/\d+ succeeded after .*", rest[1])
    assert len(rest) == 2


def test_output_bytes_are_exact(shell: Shell) -> None:
    data = bytes(range(256)) + b"\r10%\r20%\r\n\xff\xfe no newline"
    shell.write("bytes.py", f"import sys\nsys.stdout.buffer.write({data!r})\n")
    assert shell.hop("run", "bytes.py").out == data


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("1/0", 1, "ZeroDivisionError"),
    ],
)
def test_exit_code_is_that_of_the_script(shell: Shell, body: str, code: int, words: str) -> None:
    shell.write("bad.py", f"import os, sys\n{body}\n")
    result = shell.hop("run", "bad.py")
    assert result.code == code
    assert words in result.stderr_text.splitlines()[-1]


def test_reason_is_the_error_without_its_hint(shell: Shell) -> None:
    # the default is no literal, so that only the script knows its type
    shell.write("typed.py", "import hopyard as hop\nhop.params(n=int('1'))\n")
    result = shell.hop("run", "-p", "n=2.5", "typed.py")
    assert "hint: its default is 1" in result.stderr_text
    assert result.stderr_text.splitlines()[-1].endswith("SpecError: -p n=2.5: `n` is an int")


def test_value_of_another_type_than_a_literal_default_is_refused_before_submission(shell: Shell) -> None:
    shell.write("typed.py", "import hopyard as hop\nhop.params(n=1)\n")
    result = shell.hop("run", "-p", "n=2.5", "typed.py")
    assert result.code == 2 and "hint: its default is 1" in result.stderr_text
    assert "-p n=2.5: `n` is an int" in result.stderr_text and "run root" not in result.stderr_text


def test_arguments_parameters_and_environment_reach_the_script(shell: Shell) -> None:
    shell.write(
        "show.py",
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], "
        "json.loads(os.environ['HOPYARD_PARAMS']), os.environ['A'], os.environ['HERE']]))\n",
    )
    shell.environment["HERE"] = "yes"
    result = shell.hop(
        "run",
        "-p",
        "lr=0.1",
        "-p",
        "name=x",
        "-e",
        "A=1",
        "-e",
        "HERE",
        "show.py",
        "--",
        "--lr",
        "3",
        "-d",
        "x",
    )
    assert json.loads(result.out) == [["--lr", "3", "-d", "x"], {"lr": 0.1, "name": "x"}, "1", "yes"]


def test_command_and_interpreter_of_the_caller(shell: Shell) -> None:
    assert shell.hop("run", "echo", "hello", "you").out == b"hello you\n"
    shell.write("which.py", "import sys; print(sys.executable)")
    assert shell.hop("run", "which.py").text.strip() == sys.executable


def test_output_lines_are_prefixed_with_their_rank(shell: Shell) -> None:
    shell.write("rank.py", "import os\nprint('I am', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    result = shell.hop("run", "--replicas", "2", "--cpus", "0.5", "rank.py")
    assert sorted(result.text.splitlines()) == ["[0] I am 0 of 2", "[1] I am 1 of 2"]


def test_gang_from_a_file(shell: Shell) -> None:
    shell.write("a.py", "import os; print(os.environ['ROLE_NAME'])")
    shell.write(
        "hop.yaml",
        "name: both\nroles:\n  - {name: one, command: python a.py, resources: {cpus: 0.5}}\n"
        "  - {name: two, command: python a.py, resources: {cpus: 0.5}}\n",
    )
    result = shell.hop("run", "hop.yaml")
    assert sorted(result.text.splitlines()) == ["[0] one", "[1] two"]
    rows = [line.split(None, 1) for line in shell.hop("info", "both").text.splitlines()]
    at = rows.index(["role", "one"])
    assert rows[at : at + 6] == [
        ["role", "one"],
        ["command", "python a.py"],
        ["resources", "0.5 CPU"],
        ["role", "two"],
        ["command", "python a.py"],
        ["resources", "0.5 CPU"],
    ]


def test_elastic_run_shows_its_size(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    result = shell.hop("run", "-n", "elastic", "--replicas", "2-4", "--cpus", "0.5", "hello.py")
    size = result.text.count("] out\n")
    assert f"  starts at once as {size} replicas\n" in result.stderr_text
    assert f" as {size} replicas on box\n" in shell.hop("info", "elastic").text


def test_json_is_one_object_and_script_output_goes_to_stderr(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    result = shell.hop("run", "--json", "hello.py")
    assert result.json["phase"] == "succeeded"
    assert result.json["run"]["exit"]["code"] == 0
    assert result.json["url"].endswith(result.json["name"])
    assert {b"out", b"err"} <= set(result.err.splitlines())


def test_detached(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    name = shell.detach("hello.py")
    result = shell.hop("run", "--detach", "--json", "hello.py").json
    assert result["name"] != name
    assert result["phase"] in ("starting", "running", "succeeded")
    assert shell.hop("logs", "-f", name).out == b"out\n"


def test_code_is_uploaded_once_without_ignored_files(shell: Shell, client: Client) -> None:
    shell.write("list.py", "import os\nprint(sorted(os.listdir('.')))\n")
    shell.write(".gitignore", "secret.txt\n")
    shell.write("secret.txt", "x")
    shell.write("big.bin", "y" * 3_000_000)
    shell.write(".hopignore", "big.bin\n")
    first = shell.hop("run", "--json", "list.py").json["run"]["spec"]["code"]
    assert shell.hop("run", "list.py").text == "['.gitignore', '.hopignore', 'list.py']\n"
    assert client.missing([first]) == []


def test_pending_run_shows_its_position_and_reason(shell: Shell) -> None:
    gate = shell.folder / "gate"
    shell.write("wait.py", WAITING)
    holder = shell.detach("--cpus", "4", "wait.py", "--", str(gate))
    second = shell.hop("run", "--detach", "--cpus", "4", "wait.py", "--", str(gate))
    assert re.search(r"queued at position 1(, starts at about .+)?: needs 4 CPUs; ", second.stderr_text), (
        second.stderr_text
    )
    listed = shell.hop("ps", "--project", "study").text.splitlines()
    assert second.text.strip() in listed[1]
    assert re.search(
        r"  position 1(, (starts at about \d\d:\d\d:\d\d \(.+\)|later than expected, see `hop why "
        r"\S+`))?: needs 4 CPUs; ",
        listed[1],
    ), listed[1]
    shell.hop("stop", second.text.strip())
    gate.touch()
    assert shell.hop("logs", "-f", holder).out == b"begun\nended\n"


def test_run_that_never_fits_is_refused(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    result = shell.hop("run", "--gpus", "64", "hello.py")
    assert (result.code, result.out) == (2, b"")
    assert result.stderr_text.startswith("error: ")
    assert "GPU" in result.stderr_text


def test_unknown_dataset_is_refused(shell: Shell) -> None:
    shell.write("hello.py", HELLO)
    result = shell.hop("run", "-d", "nowhere", "hello.py")
    assert result.code == 2
    assert "nowhere" in result.stderr_text.splitlines()[0]


def test_ctrl_c_detaches_from_the_run(shell: Shell, client: Client) -> None:
    gate = shell.folder / "gate"
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "wait.py", "--", str(gate)) as screen:
        name = re.search(rb"run (\S+) ", screen.expect(b"begun\r\n"))
        assert name is not None
        screen.type(b"\x03")
        screen.expect(b"continues.  Follow it: hop logs -f " + name[1])
        assert screen.wait() == 130
    run = name[1].decode()
    assert client.get("/runs/resolve", ref=run)["phase"] == "running"
    gate.touch()
    assert shell.hop("logs", "-f", run).out == b"begun\nended\n"


def test_second_ctrl_c_prompts_to_stop(shell: Shell, client: Client) -> None:
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "wait.py", "--", "/never") as screen:
        screen.expect(b"begun\r\n")
        screen.type(b"\x03")
        screen.expect(b"(Ctrl-C again to stop the run)")
        screen.type(b"\x03")
        screen.expect(b"? [y/N]")
        screen.type(b"y\n")
        screen.expect(b"cancelled")
        assert screen.wait() not in (0, 130)
    assert client.get("/runs/resolve", ref="last")["phase"] == "cancelled"


def test_interrupt_without_a_terminal_detaches_at_once(shell: Shell) -> None:
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "--json", "wait.py", "--", "/never") as screen:
        screen.expect(b"begun")
    name = shell.hop("ps", "--json").json[0]["name"]
    assert shell.hop("stop", "--grace", "0", name).code == 0


def test_status_line_is_drawn_and_cleared(shell: Shell) -> None:
    gate = shell.folder / "gate"
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "wait.py", "--", str(gate)) as screen:
        screen.expect(b"begun\r\n")
        screen.expect(b"running")
        gate.touch()
        screen.expect(b"\r\x1b[2Kended\r\n")
        assert screen.wait() == 0
        assert b"succeeded" in screen.output


def test_unfinished_line_is_not_overwritten(shell: Shell) -> None:
    gate = shell.folder / "gate"
    script = WAITING.replace("print('begun', flush=True)", "print('\\r50%', end='', flush=True)")
    shell.write("bar.py", script)
    with shell.terminal("run", "bar.py", "--", str(gate)) as screen:
        screen.expect(b"50%")
        gate.touch()
        assert screen.expect(b"ended\r\n") == b"ended\r\n"
        assert screen.wait() == 0


def test_follow_survives_a_killed_server(shell: Shell) -> None:
    gate = shell.folder / "gate"
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "wait.py", "--", str(gate)) as screen:
        screen.expect(b"begun\r\n")
        pid = shell.hop("status", "--json").json["pid"]
        os.kill(pid, 9)
        wait_until(lambda: (result := shell.hop("up", "--json")).code == 0 and result.json["pid"] != pid)
        gate.touch()
        assert b"begun" not in screen.expect(b"ended\r\n")
        assert screen.wait() == 0


def test_follow_waits_for_a_stopped_server(shell: Shell) -> None:
    gate = shell.folder / "gate"
    shell.write("wait.py", WAITING)
    with shell.terminal("run", "wait.py", "--", str(gate)) as screen:
        screen.expect(b"begun\r\n")
        assert shell.hop("down", "--keep-runs").code == 0
        screen.expect(b"the server is away")
        gate.touch()
        assert shell.hop("up").code == 0
        screen.expect(b"the server is back")
        screen.expect(b"ended\r\n")
        assert screen.wait() == 0


def test_git_state_is_recorded(shell: Shell, client: Client) -> None:
    import subprocess

    shell.write("hello.py", HELLO)
    git = "git -c user.name=t -c user.email=t@example.org -c init.defaultBranch=main"
    subprocess.run(
        f"{git} init -q && {git} add . && {git} commit -qm first", shell=True, cwd=shell.folder, check=True
    )
    clean = shell.hop("run", "--json", "hello.py").json["run"]["spec"]["git"]
    assert (clean["branch"], clean["dirty"], clean["diff"]) == ("main", False, None)
    shell.write("hello.py", HELLO + "print('more')\n")
    dirty = shell.hop("run", "--json", "hello.py").json["run"]["spec"]["git"]
    assert (dirty["commit"], dirty["dirty"]) == (clean["commit"], True)
    assert client.missing([dirty["diff"]]) == []


def test_passwords_in_requirements_and_package_indexes_are_refused(shell: Shell) -> None:
    shell.write("hello.py", "print('hello')")
    requirements = "six\n-e git+https://me:hunter2@host.example/o/r#egg=r\n"
    for name, words in (
        ("pyproject.toml", ()),
        ("sub/requirements-dev.txt", ()),
        ("r.txt", ("--requirements", "r.txt")),
    ):
        file = shell.write(name, requirements)
        refused = shell.hop("run", *words, "hello.py")
        assert (
            refused.code == 2
            and f"{name}: line 2 holds a password or token for git+https://host.example"
            in refused.stderr_text
        )
        assert "hunter2" not in refused.stderr_text and "--secret TOKEN" in refused.stderr_text
        file.unlink()
    shell.write("pyproject.toml", requirements)
    shell.write(".hopignore", "pyproject.toml\n")
    shell.write(".netrc", "machine host.example login me password hunter2\n")
    shell.write("hello.py", "import os; print(sorted(os.listdir()))")
    assert shell.hop("run", "hello.py").text == "['.hopignore', 'hello.py', 'sub']\n"


def test_full_disk_and_closed_stdout_do_not_stop_the_run(shell: Shell) -> None:
    import subprocess

    from tests.cli.shell import HOP

    shell.write("hello.py", HELLO)
    hop = " ".join(HOP)
    full = subprocess.run(
        f"{hop} run hello.py >/dev/full",
        shell=True,
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (full.returncode, full.stderr.decode().splitlines()[-2]) == (1, "error: No space left on device")
    closed = subprocess.run(
        f"{hop} run hello.py >&-",
        shell=True,
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert closed.returncode == 0
    assert b"succeeded" in closed.stderr


def test_closed_pipe_detaches_quietly(shell: Shell) -> None:
    shell.write("many.py", "for i in range(200000): print(i)\n")
    import subprocess

    from tests.cli.shell import HOP

    line = f"{' '.join(HOP)} run many.py 2>err.txt | head -1"
    done = subprocess.run(
        line,
        shell=True,
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"0\n"
    assert "Traceback" not in (shell.folder / "err.txt").read_text()


def test_dry_run_prints_the_start_and_submits_nothing(shell: Shell, client: Client) -> None:
    shell.write("hello.py", HELLO)
    before = len(client.get("/runs", limit=100)["runs"])
    result = shell.hop("run", "--dry-run", "hello.py")
    assert (result.code, result.text.startswith("the run starts now on box")) == (0, True)
    assert shell.hop("run", "--dry-run", "--json", "hello.py").json["starts"] == "now"
    impossible = shell.hop("run", "--dry-run", "--cpus", "100000", "hello.py")
    assert "can never start" in impossible.text
    assert len(client.get("/runs", limit=100)["runs"]) == before
