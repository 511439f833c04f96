"""Invalid user input: refused at once, with the wrong value and a hint, without partial effects."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.private_files import remove_tree

from .server_home import HOP, ServerHome, expect_error

HELLO = "print('hello')\n"


def check_refused(shared_home: ServerHome, words: tuple[str, ...], *texts: str, hint: bool = True) -> None:
    """Checks for an error that contains all of `texts`, a hint (unless the error states the allowed values),
    no traceback and no run."""
    before = shared_home.get("/status")["runs"]
    result = shared_home.hop(*words)
    assert (result.code, result.stdout) == (2, ""), result
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: "), result.stderr
    assert not hint or any(line.startswith("hint: ") for line in lines[1:]), result.stderr
    for text in texts:
        assert text in result.stderr, result.stderr
    assert shared_home.get("/status")["runs"] == before


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--memory", "abc", ("--memory", "`abc`", "8G")),
        ("--memory", "-1G", ("--memory", "`-1G`")),
        ("--memory", "8", ("--memory", "did you mean `8G`?")),
        ("--memory", "900T", ("memory", "900")),
        ("--cpus", "-1", ("--cpus", "`-1`")),
        ("--cpus", "0", ("--cpus", "above 0")),
        ("--cpus", "nan", ("--cpus", "`nan`")),
        ("--cpus", "4000", ("CPU", "4000")),
        ("--time", "0", ("--time", "`0`", "2h")),
        ("--time", "4000d", ("--time", "`4000d`", "ten years")),
        ("--memory", "2000000T", ("--memory", "2000000T")),
        ("--time", "soon", ("--time", "`soon`")),
        ("--gpus", "9999", ("9999", "GPU")),
        ("--gpus", "H100:1", ("H100",)),
        ("--gpus", "-3", ("--gpus", "`-3`")),
        ("--priority", "101", ("--priority", "101", "100")),
        ("--priority", "high", ("--priority", "high")),
        ("--replicas", "0", ("--replicas", "0")),
        ("--replicas", "5000", ("--replicas", "5000", "4096")),
        ("--replicas", "50", ("50", "CPU")),
        ("-p", "lr", ("lr", "K=V")),
        ("-p", "=3", ("-p",)),
        ("-e", "A B=1", ("A B",)),
        ("-e", "NOT_SET_ANYWHERE", ("NOT_SET_ANYWHERE",)),
        ("--tag", "x", ("--tag", "x")),
        ("--name", "../x", ("../x", "--name")),
        ("--name", "a/b", ("a/b", "--name")),
        ("--project", "../../etc", ("../../etc", "--project")),
        ("-d", "nowhere", ("nowhere",)),
        ("-d", "../x", ("../x", "-d")),
        ("-d", "x:-1", ("-1", "version")),
        ("--requirements", "none.txt", ("none.txt",)),
        ("--python", "three", ("three",)),
        ("--python", "/no/python", ("/no/python",)),
        ("--bogus", "1", ("--bogus",)),
    ],
)
def test_invalid_option_value_is_refused(
    shared_home: ServerHome, option: str, value: str, expected: tuple[str, ...]
) -> None:
    shared_home.write("hello.py", HELLO)
    check_refused(shared_home, ("run", option, value, "hello.py"), *expected)


def test_non_finite_parameters_stay_out_of_json(shared_home: ServerHome) -> None:
    """`-p lr=nan` is either refused or passed as text: JSON has no such number, and the script must receive
    the typed text."""
    shared_home.write("show.py", "import hopyard as hop\nprint(repr(hop.params(lr='0').lr))\n")
    for value in ("nan", "inf", "-inf", "1e999"):
        result = shared_home.hop("run", "-p", f"lr={value}", "show.py")
        if result.code == 0:
            assert result.stdout.strip() == repr(value)
        else:
            assert (
                result.stderr.startswith("error: ") and "hint: " in result.stderr and value in result.stderr
            )


def test_unknown_dataset_error_suggests_closest_name(shared_home: ServerHome) -> None:
    shared_home.write("hello.py", HELLO)
    shared_home.write("rows/a.csv", "1\n")
    shared_home.ok("dataset", "push", "mnist-digits", "rows")
    check_refused(shared_home, ("run", "-d", "mnist-digit", "hello.py"), "mnist-digit", "mnist-digits")
    check_refused(shared_home, ("run", "-d", "mnist-digits:7", "hello.py"), "7", "1")
    check_refused(shared_home, ("dataset", "pull", "mnist-digit"), "mnist-digits")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "nothing.py"), ("nothing.py",)),
        (("run", "nothing.yaml"), ("nothing.yaml",)),
        (("run", "no-such-program"), ("no-such-program",)),
        (("run", "."), (".",)),
        (("logs", "nobody/nothing/99"), ("nobody/nothing/99",)),
        (("stop", "../../etc/passwd"), ("passwd",)),
        (("info", "%2e%2e%2f"), ("%2e%2e%2f",)),
        (("pull", "../x"), ("../x",)),
        (("fork", "zzzzzzzz"), ("zzzzzzzz",)),
        (("dataset", "push", "../x", "."), ("../x",)),
        (("dataset", "push", "a/b", "."), ("a/b",)),
        (("dataset", "push", "x" * 300, "."), ("xxx",)),
        (("dataset", "push", "x", "/nowhere"), ("/nowhere",)),
        (("dataset", "pull", "../x"), ("../x",)),
        (("dataset", "info", "../x"), ("../x",)),
        (("dataset", "rm", "../x", "-y"), ("../x",)),
        (("dataset", "board", "../x"), ("../x",)),
    ],
)
def test_invalid_name_is_refused(
    shared_home: ServerHome, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    outside = sorted(path.name for path in shared_home.root.iterdir())
    check_refused(shared_home, words, *expected)
    assert sorted(path.name for path in shared_home.root.iterdir()) == outside


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("roles: [\n", ("hop.yaml", "line 2")),
        ("just a text\n", ("hop.yaml",)),
        ("- a\n- list\n", ("hop.yaml",)),
        ("", ("hop.yaml", "roles")),
        ("roles: []\n", ("hop.yaml", "roles")),
        ("rolse: [{command: python hello.py}]\n", ("hop.yaml", "rolse", "roles")),
        ("roles: [{comand: python hello.py}]\n", ("hop.yaml", "roles.0", "comand", "command")),
        ("roles: [{name: a}]\n", ("hop.yaml", "roles.0.command")),
        ("roles: [{command: 7}]\n", ("hop.yaml", "roles.0.command", "7")),
        ("roles: [{command: 'unclosed \"quote'}]\n", ("hop.yaml", "roles.0.command")),
        ("roles: [{command: ls, replicas: many}]\n", ("hop.yaml", "roles.0.replicas", "many", "2-8")),
        ("roles: [{command: ls, replicas: 0}]\n", ("hop.yaml", "roles.0.replicas", "`0`", " from 1 to 4096")),
        (
            "roles: [{command: ls, resources: {memory: lots}}]\n",
            ("hop.yaml", "roles.0.resources.memory", "lots", "8G"),
        ),
        ("roles: [{command: ls, resources: {cpus: -2}}]\n", ("hop.yaml", "roles.0.resources.cpus", "-2")),
        ("roles: [{command: ls, resources: {gpu: 1}}]\n", ("hop.yaml", "roles.0.resources", "gpu", "gpus")),
        ("roles: [{command: ls}]\ntime: never\n", ("hop.yaml", "time", "never")),
        ("roles: [{command: ls}]\npriority: 900\n", ("hop.yaml", "priority", "900", " from 0 to 100")),
        ("roles: [{command: ls}]\nname: ../x\n", ("hop.yaml", "name", "../x")),
        ("roles: [{command: ls}]\nparams: {lr: [1, 2]}\n", ("hop.yaml", "params.lr")),
        ("roles: [{command: ls}]\nparams: {lr: .nan}\n", ("hop.yaml", "params.lr")),
        ("roles: [{command: ls}]\nrequirements: none.txt\n", ("hop.yaml", "requirements", "none.txt")),
        ("roles: [{command: ls}]\ndatasets: [1]\n", ("hop.yaml", "datasets.0")),
        ("roles: [{name: a, command: ls}, {name: a, command: ls}]\n", ("hop.yaml", "roles.1.name", "`a`")),
        ("a: &a [*a]\nroles: *a\n", ("hop.yaml",)),
        ("roles: !!python/object/apply:os.system ['touch pwned']\n", ("hop.yaml",)),
        ("\x00\x01\x02", ("hop.yaml",)),
    ],
)
def test_invalid_hop_yaml_is_refused(shared_home: ServerHome, text: str, expected: tuple[str, ...]) -> None:
    shared_home.write("hop.yaml", text)
    try:
        check_refused(shared_home, ("run", "hop.yaml"), *expected, hint=" from " not in " ".join(expected))
    finally:
        (shared_home.folder / "hop.yaml").unlink()
    assert not (shared_home.folder / "pwned").exists()


def test_unreadable_file_is_named(shared_home: ServerHome) -> None:
    for name, words in (("code", ("run", "main.py")), ("data", ("dataset", "push", "secrets", "."))):
        folder = shared_home.folder / f"unreadable-{name}"
        folder.mkdir()
        (folder / "main.py").write_text(HELLO)
        (folder / "secret.bin").write_bytes(b"x")
        (folder / "secret.bin").chmod(0)
        result = shared_home.hop(*words, cwd=folder, plain=True)
        assert result.code == 2, result
        assert "`secret.bin` may not be read" in result.stderr
        assert any(line.startswith("hint: ") for line in result.stderr.splitlines()), result.stderr
        assert "Traceback" not in result.stderr
        (folder / "secret.bin").unlink()
        (folder / "closed").mkdir()
        (folder / "closed" / "x").touch()
        (folder / "closed").chmod(0)
        result = shared_home.hop(*words, cwd=folder, plain=True)
        assert result.code == 2 and "closed" in result.stderr.splitlines()[0], result
        (folder / "closed").chmod(0o700)
    assert "secrets" not in [dataset["name"] for dataset in shared_home.ok("dataset", "ls", "--json").json]


def test_code_changing_while_packed_is_consistent_or_refused(shared_home: ServerHome) -> None:
    """The run receives a consistent state of the file, or the command names the changing file."""
    folder = shared_home.folder / "restless"
    folder.mkdir()
    (folder / "main.py").write_text("text = open('log.txt').read()\nassert set(text) <= {'x'}\nprint('ok')\n")
    (folder / "log.txt").write_bytes(b"x" * 3_000_000)
    done = threading.Event()

    def write() -> None:
        with (folder / "log.txt").open("ab", buffering=0) as log:
            while not done.wait(0.0001):  # a pause, since a busy writer fills the disk of a slow machine
                log.write(b"x" * 1000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        results = [shared_home.hop("run", "main.py", cwd=folder) for _ in range(3)]
    finally:
        done.set()
        writer.join()
    for result in results:
        assert "Traceback" not in result.stderr
        if result.code == 0:
            assert result.stdout == "ok\n"
        else:
            assert (
                result.code == 2
                and "`log.txt` changed while it was packed" in result.stderr
                and "hint: " in result.stderr
            ), result
    assert shared_home.hop("run", "main.py", cwd=folder).stdout == "ok\n"


def test_concurrent_pushes_of_different_trees_get_own_versions(shared_home: ServerHome) -> None:
    for side in "ab":
        for n in range(40):
            shared_home.write(f"{side}/{n}", f"{side}{n}" * 2000)
    children = [
        subprocess.Popen(
            [HOP, "dataset", "push", "both", side, "--json"],
            cwd=shared_home.folder,
            env=shared_home.environment,
            stdout=subprocess.PIPE,
        )
        for side in "ab"
    ]
    numbers = [json.loads(child.communicate(timeout=120)[0])["version"]["number"] for child in children]
    assert sorted(numbers) == [1, 2]
    for side, number in zip("ab", numbers, strict=True):
        shared_home.ok("dataset", "pull", f"both:{number}", f"back-{side}")
        assert {p.name: p.read_text() for p in (shared_home.folder / f"back-{side}").iterdir()} == {
            str(n): f"{side}{n}" * 2000 for n in range(40)
        }


def test_blob_with_wrong_digest_is_refused(shared_home: ServerHome) -> None:
    client, digest = shared_home.client(), str(blake3(b"right").hexdigest())
    for send in (lambda: client.put_blob(digest, b"wrong"), lambda: client.put_pack([(digest, b"wrong")])):
        error = expect_error(send)
        assert error.code == "damaged" and digest[:12] in error.message
    assert client.missing([digest]) == [digest]
    client.put_blob(digest, b"right")
    assert client.missing([digest]) == []


def corrupt_blobs(home: Path, text: bytes) -> int:
    """Flip a bit in each copy of `text` that the server's blobs hold."""
    result = 0
    for path in [*home.glob("blobs/packs/*"), *home.glob("blobs/large/*/*")]:
        data = path.read_bytes()
        at = data.find(text)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            result += 1
    return result


def test_damaged_code_on_server_is_uploaded_again(shared_home: ServerHome) -> None:
    folder = shared_home.folder / "damaged"
    folder.mkdir()
    mark = b"# a line that is found on the disk again"
    (folder / "main.py").write_bytes(mark + b"\n" + HELLO.encode())
    assert shared_home.hop("run", "main.py", cwd=folder).stdout == "hello\n"
    remove_tree(shared_home.home.trees)  # otherwise this node would not fetch it
    assert corrupt_blobs(shared_home.home.root, mark) == 1
    result = shared_home.hop("run", "main.py", cwd=folder)
    if result.code:
        assert "damaged" in result.stderr and "Traceback" not in result.stderr
        assert shared_home.run("last")["phase"] == "failed"
        result = shared_home.hop("run", "main.py", cwd=folder)
    assert (result.code, result.stdout) == (0, "hello\n"), result


def test_damaged_dataset_on_server_is_repaired_by_next_push(shared_home: ServerHome) -> None:
    mark = b"a row that is found on the disk again\n"
    rows = shared_home.root / "rows"  # outside the code, which would bring the blob back as well
    rows.mkdir()
    (rows / "a.csv").write_bytes(mark)
    shared_home.write(
        "read.py",
        "import hopyard as hop\nprint((hop.dataset_path('broken') / 'a.csv').read_text(), end='')\n",
    )
    shared_home.ok("dataset", "push", "broken", str(rows))
    assert corrupt_blobs(shared_home.home.root, mark) == 1
    pulled = shared_home.hop("dataset", "pull", "broken", "out")
    assert pulled.code == 1 and "damaged" in pulled.stderr and "hint: push" in pulled.stderr
    assert not (shared_home.folder / "out").exists()
    result = shared_home.hop("run", "-d", "broken", "read.py")
    assert result.code != 0 and "dataset broken" in result.stderr.splitlines()[-1], result
    shared_home.ok("dataset", "push", "broken", str(rows))
    assert shared_home.hop("run", "-d", "broken", "read.py").stdout == mark.decode()


def _paths_outside_home(server_home: ServerHome) -> list[Path]:
    """Returns all files next to the home."""
    beside = [path for path in server_home.root.iterdir() if path != server_home.home.root]
    return sorted([*beside, *(below for path in beside for below in path.rglob("*"))])


def test_path_traversal_in_urls_is_refused(shared_home: ServerHome) -> None:
    client = shared_home.client()
    outside = _paths_outside_home(shared_home)
    asks: list[Callable[[], object]] = []
    for part in ("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%00b", "%2fetc%2fpasswd"):
        asks += [
            lambda part=part: client.get(f"/runs/{part}"),  # type: ignore[misc]
            lambda part=part: client.get(f"/runs/{part}/log"),  # type: ignore[misc]
            lambda part=part: client.get(f"/runs/{part}/raw/{part}/0/stdout"),  # type: ignore[misc]
            lambda part=part: client.get(f"/datasets/{part}"),  # type: ignore[misc]
            lambda part=part: client.get(f"/datasets/{part}/versions/1"),  # type: ignore[misc]
            lambda part=part: client.post(f"/datasets/{part}/versions", {"manifest": "0" * 64}),  # type: ignore[misc]
            lambda part=part: client.put_blob(part, b"x"),  # type: ignore[misc]
            lambda part=part: client.post(f"/blobs/{part}/verify"),  # type: ignore[misc]
            lambda part=part: client.post(
                f"/attempts/{part}/replicas/0/sync", {"status": {"rank": 0, "phase": "running"}}
            ),  # type: ignore[misc]
            lambda part=part: client.delete(f"/runs/{part}", force=1),  # type: ignore[misc]
        ]
    for ask in asks:
        error = expect_error(ask)
        assert error.code in ("not_found", "bad_spec", "damaged", "usage"), (error.code, error.message)
    assert _paths_outside_home(shared_home) == outside
    assert client.get("/health")["status"] == "ok"


def test_manifest_with_path_outside_tree_is_refused(shared_home: ServerHome) -> None:
    """Uploads are data: a manifest with an outside path never becomes a version, whatever created it."""
    client = shared_home.client()
    client.put_blob(str(blake3(b"x").hexdigest()), b"x")
    for path in ("../x", "/etc/x", "a/../x", "a//x", "."):
        body = (
            Manifest(files=(FileEntry("NAME", 1, (Digest(blake3(b"x").hexdigest()),)),))
            .encode()
            .replace(b"NAME", path.encode())
        )
        digest = str(blake3(body).hexdigest())
        client.put_blob(digest, body)
        error = expect_error(
            lambda digest=digest: client.post("/datasets/evil/versions", {"manifest": digest, "message": ""})
        )  # type: ignore[misc]
        assert error.code in ("damaged", "bad_spec"), error.message
        assert path in error.message
    assert "evil" not in [dataset["name"] for dataset in client.get("/datasets")["datasets"]]
