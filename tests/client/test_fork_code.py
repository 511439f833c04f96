"""A fork runs the packed code or the given one; a run continues a checkpoint with mended code."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest

import hopyard as hop
from hopyard.api_client import types as api
from hopyard.api_client.local_server import connect
from hopyard.client.editable_installs import find_editable_installs, record_editable_installs
from hopyard.client.fork_code import fork_run
from hopyard.errors import NotFound, SpecError, StudyFailed

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")
TRAIN = """
import proj.net
import hopyard as hop

state = hop.bind(total=0)
for epoch in hop.loop(range(hop.params(epochs=2).epochs)):
    state.total += STEP
print("total", state.total, proj.net.VERSION)
"""


@pytest.fixture
def interpreter(code: Path, tmp_path: Path) -> str:
    """An interpreter with the package `proj`, installed editable from `src` in the code."""
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site / "proj-1.0.dist-info").mkdir()
    record = {"url": code.as_uri(), "dir_info": {"editable": True}}
    (site / "proj-1.0.dist-info" / "direct_url.json").write_text(json.dumps(record))
    (site / "proj.pth").write_text(f"{code}/src\n")
    (code / "src" / "proj").mkdir(parents=True)
    (code / "src" / "proj" / "__init__.py").touch()
    (code / "src" / "proj" / "net.py").write_text("VERSION = 'one'\n")
    return str(tmp_path / "venv" / "bin" / "python")


def fork(run: hop.Run, code: Path | None = None, **changes: object) -> tuple[str, list[str]]:
    """Forks the run and returns the output of the fork, and the notices."""
    client, lines = connect(), list[str]()
    body: api.ForkIn = {**changes}  # type: ignore[typeddict-item]
    _, forked = fork_run(client, client.get_run(run.id), body, code=code, notify=lines.append)
    ended = hop.get_run(forked["id"]).wait(120)
    assert ended.succeeded, ended.logs(stream="stderr")
    return ended.logs(), lines


def test_forks_and_continued_checkpoints(code: Path, interpreter: str, tmp_path: Path) -> None:
    (code / "train.py").write_text(TRAIN.replace("STEP", "1"))
    site = next(Path(interpreter).parent.parent.glob("lib/python*/site-packages"))
    for name in ("of_path", "of_pth"):  # other folders with packages, of PYTHONPATH and of a `.pth` file
        (tmp_path / name / "site-packages" / f"{name}-1.0.dist-info").mkdir(parents=True)
    (site / "shared.pth").write_text(f"# shared\n{tmp_path}/of_pth/site-packages\n")
    python_path = {"PYTHONPATH": f"{tmp_path}/of_path/site-packages"}
    run = hop.submit("train.py", python=interpreter, env=python_path).wait(120)
    assert run.logs() == "total 2 one\n", run.logs(stream="stderr")
    packages = connect().get_run(run.id)["spec"]["environment"]["packages"]
    assert (packages["of-path"], packages["of-pth"]) == ("1.0", "1.0")
    recorded = connect().get_run(run.id)["spec"]["environment"]
    assert recorded["editable"] == {"proj": "."} and recorded["folder"] == str(code)

    # the submitter's folder changes: a fork still runs what was packed, and names a new package
    (code / "src" / "proj" / "net.py").write_text("VERSION = 'two'\n")
    (code / "train.py").write_text(TRAIN.replace("STEP", "10"))
    (site / "other-3.0.dist-info").mkdir()
    output, lines = fork(run)
    assert output == "total 2 one\n"
    assert lines == [
        f"note: {interpreter} has changed since {run.name}: other absent → 3.0; the fork uses what is "
        "installed now"
    ]

    # the checkpoint continues with the new code, as a fork and as a new run
    output, _ = fork(run, code, checkpoint="newest", params={"epochs": 3})
    assert output == "total 12 two\n"
    (code / "train.py").write_text(TRAIN.replace("STEP", "100"))
    continued = hop.submit(
        "train.py", python=interpreter, start_from=f"{run.name}@1", params={"epochs": 3}
    ).wait(120)
    assert continued.logs() == "total 201 two\n", continued.logs(stream="stderr")
    with pytest.raises(NotFound, match="no checkpoint of step 9"):
        hop.submit("train.py", start_from=f"{run.name}@9")
    with pytest.raises(SpecError, match="neither `newest` nor a step"):
        hop.submit("train.py", start_from=f"{run.name}@x")


def test_editable_package_outside_the_code_is_named(code: Path, interpreter: str, tmp_path: Path) -> None:
    assert [install.name for install in find_editable_installs(interpreter)] == ["proj"]
    lines: list[str] = []
    (tmp_path / "other").mkdir()
    assert record_editable_installs(tmp_path / "other", interpreter, lines.append) == {"proj": str(code)}
    assert lines == [
        f"note: installed editable outside the packed folder: proj ({code}); the run imports the source that "
        "is there when it starts"
    ]


def test_parts_of_a_virtual_environment_inside_the_code_are_no_code(code: Path, tmp_path: Path) -> None:
    venv.create(code / ".venv", symlinks=True)
    site = next((code / ".venv" / "lib").glob("python*/site-packages"))
    store = code / ".venv" / "store"
    for name in ("linked", "listed", "cloned"):
        (store / name).mkdir(parents=True)
        (store / name / "__init__.py").touch()
    (site / "linked").symlink_to(store / "linked")
    (site / "listed.pth").write_text(f"{store}/listed\n")
    (site / "cloned-1.dist-info").mkdir()
    record = {"url": (store / "cloned").as_uri(), "dir_info": {"editable": True}}
    (site / "cloned-1.dist-info" / "direct_url.json").write_text(json.dumps(record))
    interpreter, lines = str(code / ".venv" / "bin" / "python"), list[str]()
    assert record_editable_installs(code, interpreter, lines.append) == {"cloned": str(store / "cloned")}
    assert "outside the packed folder: cloned" in lines[0]
    (site / "hand.pth").write_text(f"{tmp_path}\n")
    assert {each.name for each in find_editable_installs(interpreter)} == {"cloned", ""}


def test_resumed_study_has_metadata_links_and_git_state_of_its_new_code(code: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "index").mkdir()
    metadata = (
        "# /// script\n# dependencies = ['absent-package']\n# [[tool.uv.index]]\n"
        f"# url = '{(tmp_path / 'index').as_uri()}'\n# default = true\n# ///\n"
    )
    (code / "train.py").write_text("raise SystemExit(3)\n")
    first = hop.search("train.py", space={"lr": "uniform(0, 1)"}, metric="loss", trials=2, concurrent=1)
    with pytest.raises(StudyFailed, match="all 2 trials failed"):
        first.wait(120)
    (code / "train.py").write_text(f"{metadata}print('mended')\n")
    (code / "data").symlink_to(tmp_path / "data")
    for words in (["init", "-q"], ["add", "."], [*AUTHOR, "commit", "-q", "-m", "mended"]):
        subprocess.run(["git", *words], cwd=code, check=True)
    resumed = first.resume(folder=code, trials=3)
    try:
        spec = connect().get_run(resumed.id)["spec"]
        assert spec["study"] is not None
        for each in (spec, spec["study"]["trial"]):
            environment = each["environment"]
            assert environment["links"] == {"data": str(tmp_path / "data")}
            assert environment["interpreter"] == "" and environment["requirements"]
            requirements = b"".join(
                blob
                for _, blob in connect().fetch(environment["requirements"], [environment["requirements"]])
            )
            assert b"absent-package" in requirements
            assert len(each["git"]["commit"]) == 40 and each["code"] == spec["code"]
    finally:
        resumed.stop()
