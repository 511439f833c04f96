"""Code, data, checkpoints and outputs of a run."""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from hopyard.datasets.output_files import changed_since, scan_stamps
from hopyard.domain.encoded_path import decode_path
from hopyard.domain.ids import AttemptId, Digest
from hopyard.domain.launch import Launch, RestorePoint
from hopyard.domain.manifest import Manifest
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Resources
from hopyard.domain.run import DatasetRef
from hopyard.engines.local.cgroups import find_cgroups
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario


def with_replica_changes(launch: Launch, **changes: object) -> Launch:
    return dataclasses.replace(
        launch, replicas=tuple(dataclasses.replace(r, **changes) for r in launch.replicas)
    )  # type: ignore[arg-type]


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.txt").write_text(text)
    return path


def mode(path: Path) -> int:
    return path.stat().st_mode


def test_code_is_a_private_copy_and_data_is_shared(run_scenario: RunScenario, tmp_path: Path) -> None:
    script = (
        "import json, os\n"
        "print(open('main.txt').read()); open('main.txt', 'a').write('mine')\n"
        "data = json.loads(os.environ['HOPYARD_DATASETS'])['numbers']; print(open(data + '/a.txt').read(), "
        "data)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        code, data = (
            fixture.sink.put_tree(folder(tmp_path / "code", main="code")),
            fixture.sink.put_tree(folder(tmp_path / "data", a="one")),
        )
        lines = []
        for attempt in ("a.1", "b.1"):
            launch = await fixture.make_launch(attempt, script, code=code)
            await fixture.engine.launch(
                with_replica_changes(launch, datasets=(DatasetRef("numbers", 1, Digest(data)),))
            )
            assert [ended.is_success for ended in await fixture.wait_exits(attempt)] == [True]
            lines.append(fixture.sink.stream(attempt, 0, "stdout").decode().split())
        assert lines[0] == lines[1], "the second run sees the code as it was, and the same folder of data"
        assert lines[0][:2] == ["code", "one"]
        assert (await fixture.node()).holds == {data}, "the dataset, and no code: every run has another one"
        assert mode(Path(lines[0][2], "a.txt")) & 0o222 == 0

    run_scenario(scenario)


def test_run_cannot_change_data_of_another_run(run_scenario: RunScenario, tmp_path: Path) -> None:
    """Also as root: either the kernel refuses the change, or the next run fetches the data again and reports
    it."""
    change = (
        "import json, os\n"
        "data = json.loads(os.environ['HOPYARD_DATASETS'])['numbers'] + '/a.txt'\n"
        "print(open(data).read(), flush=True)\n"
        "try:\n    os.chmod(data, 0o600); open(data, 'a').write(' and a cache line')\n    print('changed')\n"
        "except OSError as bad: print(os.strerror(bad.errno).split()[0])"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        data, lines = fixture.sink.put_tree(folder(tmp_path / "data", a="one")), []
        for attempt in ("a.1", "b.1"):
            launch = await fixture.make_launch(attempt, change)
            await fixture.engine.launch(
                with_replica_changes(launch, datasets=(DatasetRef("numbers", 1, Digest(data)),))
            )
            assert [ended.is_success for ended in await fixture.wait_exits(attempt)] == [True]
            lines.append(fixture.sink.stream(attempt, 0, "stdout").decode().split("\n"))
        assert [words[0] for words in lines] == ["one", "one"]
        if lines[0][1] == "changed":
            assert b"dataset numbers had been changed" in fixture.sink.stream("b.1", 0, "events")
        else:
            assert lines[0][1] == "Read-only"

    run_scenario(scenario)


def test_environment_names_run_rank_and_folders(run_scenario: RunScenario) -> None:
    names = [
        "HOPYARD_RUN",
        "HOPYARD_RUN_ID",
        "HOPYARD_ATTEMPT",
        "HOPYARD_PARAMS",
        "HOPYARD_TAGS",
        "HOPYARD_URL",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "MINE",
        "RANK",
    ]
    script = (
        f"import os, sys, json, hopyard.errors; print(json.dumps([os.environ[n] for n in {names}])); "
        "print(os.getcwd(), 'HOPYARD_RESTORE_DIR' in os.environ)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        resources = Resources(cpu_milli=1500, cpu_limited=True)
        launch = await fixture.make_launch(
            "a.1", script, env={"MINE": "yes", "RANK": "7"}, resources=resources
        )
        await fixture.engine.launch(with_replica_changes(launch, params={"lr": 0.1}, tags={"team": "a"}))
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        first, second = fixture.sink.stream("a.1", 0, "stdout").decode().splitlines()
        assert json.loads(first) == [
            "tester/contract/1",
            "a",
            "a.1",
            '{"lr": 0.1}',
            '{"team": "a"}',
            fixture.sink.url,
            "",
            "1",
            "yes",
            "7",
        ]
        isolated = detect_isolation_mode() is not IsolationMode.MODES
        place = fixture.home.run_places / "a" / "0" if isolated else fixture.folder("a.1")
        assert second == f"{place}/work False"

    run_scenario(scenario)


def test_cpus_are_limited_only_on_request(run_scenario: RunScenario) -> None:
    script = (
        "import os, time; t = time.monotonic()\nwhile time.monotonic() < t + 1.0: pass\n"
        "print(time.process_time() / (time.monotonic() - t), 'OMP_NUM_THREADS' in os.environ)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        if "cpu" not in find_cgroups():
            pytest.skip("the kernel does not let us limit processors here")
        shares = []
        for attempt, limited in (("a.1", True), ("b.1", False)):
            await fixture.launch(attempt, script, resources=Resources(cpu_milli=100, cpu_limited=limited))
            assert [ended.reason for ended in await fixture.wait_exits(attempt)] == ["finished"]
            share, threads = fixture.sink.stream(attempt, 0, "stdout").decode().split()
            assert threads == str(limited)
            shares.append(float(share))
        assert shares[0] < 0.3 and shares[1] > shares[0]

    run_scenario(scenario)


def test_created_and_changed_files_become_artifact(run_scenario: RunScenario, tmp_path: Path) -> None:
    script = (
        "import os\nopen('model.bin', 'wb').write(b'm' * 1000); open('edited.txt', 'a').write('!')\n"
        "os.makedirs('deep/er'); open('deep/er/x', 'w').write('x'); os.makedirs('__pycache__'); "
        "open('__pycache__/y.pyc', 'w').write('y')\n"
        "open('same.txt', 'w').write('same'); os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        code = fixture.sink.put_tree(folder(tmp_path / "code", edited="text", same="same", untouched="u"))
        await fixture.launch("a.1", script, code=code)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        manifest = Manifest.decode(fixture.sink.blobs[fixture.sink.artifacts["a.1"]])
        assert [file.path for file in manifest.files] == ["deep/er/x", "edited.txt", "model.bin"]
        assert all(chunk in fixture.sink.blobs for chunk in manifest.blobs())
        await fixture.launch("b.1", "pass", code=code)
        await fixture.wait_exits("b.1")
        assert "b.1" not in fixture.sink.artifacts

    run_scenario(scenario)


SAVES = """
import json, os, time
root = os.environ['HOPYARD_REPLICA_DIR']
for step in (1, 2, 3):
    os.makedirs(f'{root}/checkpoints/.tmp')
    open(f'{root}/checkpoints/.tmp/state', 'w').write(f'state {step}')
    os.rename(f'{root}/checkpoints/.tmp', f'{root}/checkpoints/{step}')
    event = {'t': time.time(), 'kind': 'checkpoint', 'step': step, 'folder': f'checkpoints/{step}',
             'offsets': {'stdout': step}, 'metrics': {'acc': step / 4}}
    open(f'{root}/streams/events', 'a').write(json.dumps(event) + chr(10))
os.makedirs(f'{root}/checkpoints/.tmp-4-half')
"""


def test_checkpoints_are_uploaded_before_exit_is_reported(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", SAVES)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        result = fixture.sink.checkpoints
        assert [(c["step"], c["offsets"], c["metrics"], c["rank"]) for c in result] == [
            (s, {"stdout": s}, {"acc": s / 4}, 0) for s in (1, 2, 3)
        ]
        assert datetime.fromisoformat(result[0]["created_at"]).tzinfo is not None
        for checkpoint in result:
            (file,) = Manifest.decode(fixture.sink.blobs[checkpoint["manifest"]]).files
            assert fixture.sink.blobs[file.chunks[0]] == f"state {checkpoint['step']}".encode()

    run_scenario(scenario)


def test_checkpoint_uploads_wait_for_space_on_server(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.sink.disk_full_streams = 2
        await fixture.launch("a.1", SAVES)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        assert [c["step"] for c in fixture.sink.checkpoints] == [1, 2, 3]
        assert fixture.sink.disk_full_streams == 0

    run_scenario(scenario)


@pytest.mark.parametrize("fault", [(500, "error"), (404, "not_found"), (422, "damaged")])
def test_checkpoint_and_output_uploads_wait_for_failing_server(
    run_scenario: RunScenario, fault: tuple[int, str]
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        # not found, damaged: something that the server was to read for it
        fixture.sink.faults, fixture.sink.fault = 3, fault
        await fixture.launch("a.1", SAVES + "open('made', 'w').write('x')")
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        assert [c["step"] for c in fixture.sink.checkpoints] == [1, 2, 3]
        assert "a.1" in fixture.sink.artifacts and fixture.sink.faults == 0
        assert b"unstored" not in fixture.sink.stream("a.1", 0, "events")

    run_scenario(scenario)


def test_unstored_outputs_are_reported_and_retained(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.sink.reject_checkpoints = True
        await fixture.launch("a.1", SAVES)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        events = [json.loads(line) for line in fixture.sink.stream("a.1", 0, "events").splitlines()]
        texts = [event["text"] for event in events if event["kind"] == "unstored"]
        assert [text.partition(" could")[0] for text in texts] == [
            f"the checkpoint of step {step}" for step in (1, 2, 3)
        ]
        for step, text in zip((1, 2, 3), texts, strict=True):
            retained = Path(text.rpartition("it is kept in ")[2].partition(" on node")[0])
            assert (
                retained / "state"
            ).read_text() == f"state {step}" and "such checkpoints are rejected" in text

    run_scenario(scenario)


def test_outputs_are_detected_with_skewed_clocks(tmp_path: Path) -> None:
    work = folder(tmp_path / "work", same="s", edited="a text")
    while "edited.txt" not in (before := scan_stamps(work)):  # until the file system's clock has gone on
        (work / "latest").write_text("l")
    (work / "edited.txt").write_text("A TEXT")
    (work / "new").write_text("n")
    for name in ("edited.txt", "new"):
        os.utime(work / name, (0, 0))  # as on a machine with a clock years behind
    assert set(changed_since(work, before).files) == {"edited.txt", "new", "latest"}
    assert set(changed_since(work, None).files) == {"edited.txt", "new", "latest", "same.txt"}


ODD_OUTPUTS = r"""
import os
open('epoch3.pt', 'w').write('weights'); os.mkdir('runs'); open('runs/a', 'w').write('a')
os.symlink('epoch3.pt', 'last.pt'); os.symlink(os.path.abspath('epoch3.pt'), 'runs/best.pt')
os.symlink('runs', 'latest'); os.symlink('code.txt', 'copy.txt')
os.symlink('/etc/passwd', 'out'); os.symlink('nowhere', 'dangling')
for name in (b'tab\tbed', b'line\nbreak', b'back\\slash', b'lat\xe9'): open(name, 'wb').write(b'odd')
os.symlink(b'tab\tbed', 'untabbed'); open('.netrc', 'w').write('password')
os.makedirs('venv/out'); open('venv/out/x', 'w').write('x')
os.makedirs('__pycache__'); open('__pycache__/note', 'w').write('n'); open('model.pyc', 'w').write('m')
os.makedirs('real/bin'); open('real/pyvenv.cfg', 'w').write('')
os.makedirs('node_modules/m'); open('node_modules/m/x', 'w').write('x')
open('__pycache__/code.cpython-311.pyc', 'w').write('c')
"""


def test_links_and_unusual_names_are_stored_or_reported(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        code = fixture.sink.put_tree(folder(tmp_path / "code", code="the code"))
        await fixture.launch("a.1", ODD_OUTPUTS, code=code)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]
        manifest = Manifest.decode(fixture.sink.blobs[fixture.sink.artifacts["a.1"]])
        files = {
            decode_path(file.path): b"".join(fixture.sink.blobs[chunk] for chunk in file.chunks)
            for file in manifest.files
        }
        odd = {"tab\tbed", "line\nbreak", "back\\slash", os.fsdecode(b"lat\xe9")}
        assert manifest.encoded and {"tab%09bed", "line%0Abreak", "back%5Cslash", "lat%E9"} <= {
            file.path for file in manifest.files
        }
        assert {files[path] for path in odd} == {b"odd"}
        assert set(files) - odd == {
            "epoch3.pt",
            "runs/a",
            "copy.txt",
            "venv/out/x",
            "__pycache__/note",
            "model.pyc",
        }
        assert files["copy.txt"] == b"the code"
        assert {link.path: link.target for link in manifest.links} == {
            "last.pt": "epoch3.pt",
            "runs/best.pt": "../epoch3.pt",
            "latest": "runs",
            "untabbed": "tab%09bed",
        }
        events = [json.loads(line) for line in fixture.sink.stream("a.1", 0, "events").splitlines()]
        result = {
            (text := event["text"]).partition("(")[2].partition(")")[0]: text
            for event in events
            if event["kind"] == "unstored"
        }
        assert set(result) == {
            "`dangling`, `out`",
            "`.netrc`",
            "`node_modules`, `real`",
        }

    run_scenario(scenario)


def test_stop_ends_wait_for_space(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.sink.disk_full_streams = 10**6
        await fixture.launch("a.1", SAVES)
        fixture.sink.wait(lambda sink: sink.disk_full_streams < 10**6)
        await fixture.engine.stop(AttemptId("a.1"), StopOrder(1.0))
        await fixture.wait_exits("a.1")
        assert fixture.sink.checkpoints == []
        assert b"could not be stored: no space is left" in fixture.sink.stream("a.1", 0, "events")

    run_scenario(scenario)


def test_checkpoints_of_lost_replica_are_uploaded_by_adopting_replica(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", "import os, signal\n" + SAVES + "os.kill(os.getppid(), signal.SIGKILL)")
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.reason.startswith("lost")
        assert [c["step"] for c in fixture.sink.checkpoints][-1] == 3

    run_scenario(scenario)


def test_a_checkpoint_is_restored(run_scenario: RunScenario, tmp_path: Path) -> None:
    script = (
        "import os; print(os.environ['HOPYARD_RESTORE_STEP'], open(os.environ['HOPYARD_RESTORE_DIR'] + "
        "'/state.txt').read())"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        manifest = Digest(fixture.sink.put_tree(folder(tmp_path / "state", state="weights")))
        await fixture.engine.launch(
            with_replica_changes(await fixture.make_launch("a.2", script), restore=RestorePoint(17, manifest))
        )
        assert [ended.reason for ended in await fixture.wait_exits("a.2")] == ["finished"]
        assert fixture.sink.stream("a.2", 0, "stdout") == b"17 weights\n"

    run_scenario(scenario)


def test_missing_code_is_reported(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", "pass", code="0" * 64)
        (ended,) = await fixture.wait_exits("a.1")
        assert (ended.kind, ended.code) == ("prepare-failed", 125)
        assert "0" * 64 in ended.reason

    run_scenario(scenario)


def test_command_that_cannot_run_fails_with_reason(run_scenario: RunScenario, tmp_path: Path) -> None:
    code = folder(tmp_path / "code", plain="echo hi")
    (code / "script.sh").write_text("#!/no/such/shell\n")
    (code / "script.sh").chmod(0o755)

    async def scenario(fixture: LocalEngineFixture) -> None:
        digest = fixture.sink.put_tree(code)
        for attempt, word, code_told, reason in (
            ("a.1", "./plain.txt", 126, "not executable"),
            ("b.1", "./absent", 127, "there is no `./absent`"),
            ("c.1", "./script.sh", 127, "interpreter"),
        ):
            await fixture.launch(attempt, command=(word,), code=digest)
            (ended,) = await fixture.wait_exits(attempt)
            assert (ended.kind, ended.code) == ("prepare-failed", code_told)
            assert reason in ended.reason

    run_scenario(scenario)


def test_output_names_in_any_script_are_stored(tmp_path: Path) -> None:
    names = {"می\u200cخواهم.txt", "wide\u3000space", "soft\xadhyphen", "👩\u200d👧.png"}
    names |= {"line\nbreak", "back\\slash", os.fsdecode(b"\xff")}
    for name in names:
        (tmp_path / name).touch()
    assert set(changed_since(tmp_path, None).files) == names
