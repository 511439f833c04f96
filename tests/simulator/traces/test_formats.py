from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.resources import Resources
from hopyard.errors import SpecError
from hopyard.simulator.traces.formats import FORMATS, detect_format, read_workload
from hopyard.simulator.traces.hopyard_runs import workload_of_runs
from hopyard.simulator.traces.openb import read_nodes
from hopyard.simulator.traces.pollux import step_s
from hopyard.simulator.traces.run_spec import split_gpus
from hopyard.simulator.workload import Workload, WorkloadRun

GIB = 2**30
Write = Callable[[str, str], Path]

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,16,47216.0,6214e9
2017-10-09 08:00:00,nan,1,0,6214e9
2017-10-09 08:00:00,10,0,0,6214e9
2017-10-09 08:00:00,10,1
"""

OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,100,12537496,110
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427061
openb-pod-0002,12000,24576,0,0,,BE,Running,1558381,12902960,1558381
openb-pod-0003,12000,24576,8,1000,,BE,Failed,1558381,12902960,
openb-pod-0004,12000,24576,1,1000,,BE,Pending,1558381,,
openb-pod-0005,12000,24576,1,1000,,BE,Pending,1558381,1558381,1558381
"""  # noqa: E501

SACCT = """JobID|JobName|User|Account|Partition|Submit|Eligible|Start|End|ElapsedRaw|Timelimit|NNodes|ReqTRES|AllocTRES|State
1001|bert|alice|nlp|gpu|2025-03-01T10:00:00|2025-03-01T10:00:00|2025-03-01T10:05:00|2025-03-01T12:05:00|7200|1-00:00:00|2|billing=32,cpu=32,gres/gpu:a100=8,gres/gpu=8,mem=256G,node=2|billing=32,cpu=32,gres/gpu:a100=8,gres/gpu=8,mem=256G,node=2|COMPLETED
1001.batch|batch||nlp||2025-03-01T10:05:00|2025-03-01T10:05:00|2025-03-01T10:05:00|2025-03-01T12:05:00|7200||1||cpu=16,mem=128G,node=1|COMPLETED
1001.0|python||nlp||2025-03-01T10:05:00|2025-03-01T10:05:00|2025-03-01T10:05:00|2025-03-01T12:05:00|7200||2||cpu=32,mem=256G,node=2|COMPLETED
1002_3|sweep|bob||gpu|2025-03-01T10:00:00|2025-03-01T11:00:00|2025-03-01T11:00:00|2025-03-01T11:00:30|30|UNLIMITED|1|cpu=4,mem=16000M,node=1|cpu=4,mem=16000M,node=1|CANCELLED by 1000
1003|late|bob|nlp|gpu|2025-03-01T10:30:00|Unknown|Unknown|Unknown|0|01:00:00|1|cpu=4,mem=16G,node=1||PENDING
1004|never|bob|nlp|gpu|2025-03-01T10:30:00|2025-03-01T10:30:00|2025-03-01T10:31:00|2025-03-01T10:31:00|0|01:00:00|1|cpu=4,mem=16G,node=1||CANCELLED by 0
1005|now|bob|nlp|gpu|2025-03-01T10:30:00|2025-03-01T10:30:00|2025-03-01T10:31:00|Unknown|900|01:00:00|1|cpu=4,mem=16G,node=1|cpu=4|RUNNING
1006|odd|bob|nlp|gpu|soon|2025-03-01T10:30:00x|2025-03-01T10:31:00|2025-03-01T10:41:00|600|01:00:00|1|cpu=4|cpu=4|FAILED
"""  # noqa: E501


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return make


def requested(run: WorkloadRun) -> tuple[Resources, int]:
    (role,) = run.spec.roles
    return role.resources, role.replicas


def problems(workload: Workload) -> dict[int, str]:
    return {problem.line: problem.text for problem in workload.problems}


class TestPhilly:
    def test_runs_in_order_with_their_queue(self, write: Write) -> None:
        workload = read_workload(write("p.csv", PHILLY), replica_gpus=8)
        assert workload.begin == datetime(2017, 10, 9, 6, 13, 3, tzinfo=UTC)
        first, second = workload.runs
        assert (first.at_s, first.duration_s, first.spec.queue, first.line) == (0.0, 2951.0, "6214e9", 3)
        assert requested(first) == (Resources(8000, 0, 8), 2)
        assert (second.at_s, requested(second)) == (2932.0, (Resources(1000, 0, 1), 1))

    def test_invalid_rows_are_reported_with_their_lines(self, write: Write) -> None:
        skipped = problems(read_workload(write("p.csv", PHILLY)))
        assert sorted(skipped) == [4, 5, 6]
        assert "duration" in skipped[4]
        assert "num_gpus" in skipped[5]
        assert "3 values" in skipped[6]

    @pytest.mark.parametrize(
        ("gpus", "most", "replicas"),
        [(1, 8, 1), (8, 8, 1), (12, 8, 2), (16, 8, 2), (13, 8, 13), (24, 8, 3), (4, 2, 2), (0, 8, 1)],
    )
    def test_gpus_are_split_into_the_fewest_equal_replicas(self, gpus: int, most: int, replicas: int) -> None:
        assert split_gpus(gpus, most) == replicas


class TestOpenb:
    def test_shares_models_and_times(self, write: Write) -> None:
        workload = read_workload(write("o.csv", OPENB))
        assert [(run.at_s, run.duration_s) for run in workload.runs[:2]] == [
            (0.0, 12537386.0),
            (426961.0, 12475899.0),
        ]
        assert [requested(run)[0] for run in workload.runs] == [
            Resources(12000, 16 * GIB, 1),
            Resources(6000, 12 * GIB, 0, ("V100M16", "V100M32"), gpu_milli=460),
            Resources(12000, 24 * GIB),
            Resources(12000, 24 * GIB, 8),
        ]
        assert problems(workload) == {
            6: "deletion_time is empty",
            7: "it was deleted before it was scheduled",
        }

    def test_pod_list_without_times_is_refused(self, write: Write) -> None:
        with pytest.raises(SpecError, match=r"line 1.*creation_time"):
            read_workload(write("o.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"))

    def test_nodes(self, write: Write) -> None:
        (node,) = read_nodes(
            write("n.csv", "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\n")
        )
        assert (node.id, node.cpu_milli, node.memory_bytes, [gpu.model for gpu in node.gpus]) == (
            "openb-node-0000",
            64000,
            256 * GIB,
            ["P100"] * 2,
        )
        with pytest.raises(SpecError, match="line 3: cpu_milli"):
            read_nodes(
                write("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\nb,much,1,1,P100\n")
            )


class TestSacct:
    def test_job_steps_are_skipped(self, write: Write) -> None:
        workload = read_workload(write("s.txt", SACCT), replica_gpus=8)
        bert, sweep = workload.runs
        assert workload.begin == datetime(2025, 3, 1, 10, tzinfo=UTC)
        assert (bert.at_s, bert.duration_s, bert.user, bert.spec.queue, bert.spec.time_limit_s) == (
            0.0,
            7200.0,
            "alice",
            "nlp",
            86400.0,
        )
        assert requested(bert) == (Resources(16000, 128 * GIB, 4, ("a100",)), 2)
        assert bert.spec.script.endswith("bert")
        # of an array, without an account, and it became eligible an hour after it was submitted
        assert (sweep.at_s, sweep.duration_s, sweep.user, sweep.spec.queue, sweep.spec.time_limit_s) == (
            3600.0,
            30.0,
            "bob",
            "gpu",
            None,
        )
        assert requested(sweep) == (Resources(4000, 16000 * 2**20), 1)

    def test_unusable_jobs_are_reported(self, write: Write) -> None:
        skipped = problems(read_workload(write("s.txt", SACCT)))
        assert sorted(skipped) == [6, 7, 8, 9]
        assert "pending" in skipped[6]
        assert "never ran" in skipped[7]
        assert "running" in skipped[8]
        assert "eligible" in skipped[9]

    def test_few_columns_are_sufficient(self, write: Write) -> None:
        text = (
            "JobID|Submit|Elapsed|ReqCPUS|ReqMem|State\n"
            "7|2025-03-01T10:00:00|1-02:03:04|8|4Gc|TIMEOUT\n"
            "8|2025-03-01T10:00:01|05:06|2|16Gn|OUT_OF_MEMORY\n"
        )
        one, two = read_workload(write("s.txt", text)).runs
        assert (one.duration_s, requested(one), one.spec.queue, one.user) == (
            93784.0,
            (Resources(8000, 32 * GIB), 1),
            None,
            "user",
        )
        assert (two.duration_s, requested(two)) == (306.0, (Resources(2000, 16 * GIB), 1))

    def test_gpus_are_split_over_smaller_nodes(self, write: Write) -> None:
        text = (
            "JobID|Submit|ElapsedRaw|NNodes|ReqTRES\n"
            "7|2025-03-01T10:00:00|60|1|cpu=32,gres/gpu=8,mem=64G,node=1\n"
        )
        (run,) = read_workload(write("s.txt", text), replica_gpus=4).runs
        assert requested(run) == (Resources(16000, 32 * GIB, 4), 2)

    @pytest.mark.parametrize(
        ("head", "message"),
        [("User|Account", "jobid"), ("JobID|Start", "submit"), ("JobID|Submit|User", "elapsedraw")],
    )
    def test_missing_columns_are_refused(self, write: Write, head: str, message: str) -> None:
        with pytest.raises(SpecError, match=message) as raised:
            read_workload(
                write("s.txt", head + "\n" + "|".join("x" * (head.count("|") + 1)) + "\n"), format="sacct"
            )
        assert "sacct -o" in raised.value.hints[0]


class TestPollux:
    def test_durations_are_computed_from_measurements(self, write: Write) -> None:
        write(
            "applications/cifar10/scalability.csv",
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,6,100,1.0,0\n2,6,200,3.0,0\n",
        )
        write("applications/cifar10/placements.csv", "placement,local_bsz,step_time,sync_time\n1,100,0.5,0\n")
        write("applications/cifar10/validation-900.csv", "progress,iteration,metric\n1,10,0.1\n2,50,0.9\n")
        text = (
            "name,time,application,num_replicas,batch_size\na-0,107,cifar10,6,900\n"
            "b-1,9,cifar10,1,900\nc-2,10,cifar10,1,7\nd-3,10,rust,1,7\n"
        )
        workload = read_workload(write("workloads/w.csv", text))
        one, six = workload.runs
        # 150 each: between 1 and 3
        assert (six.at_s, six.duration_s, requested(six)) == (107.0, 50 * 2.0, (Resources(1000, 0, 1), 6))
        # 900 in nine parts of the 100 that were measured
        assert (one.at_s, one.duration_s) == (9.0, 50 * 9 * 0.5)
        assert sorted(problems(workload)) == [4, 5]

    def test_missing_measurements_are_refused(self, write: Write) -> None:
        with pytest.raises(SpecError, match="applications"):
            read_workload(
                write("w/w.csv", "name,time,application,num_replicas,batch_size\na-0,107,cifar10,6,900\n")
            )

    def test_step_time_is_interpolated_and_extrapolated(self) -> None:
        times = [(10, 1.0), (20, 2.0)]
        assert [step_s(times, batch) for batch in (5, 10, 15, 20, 40)] == [1.0, 1.0, 1.5, 2.0, 4.0]


class TestPlain:
    def test_table_of_runs(self, write: Write) -> None:
        text = (
            "submit,duration,gpus,replicas,cpus,memory,user,queue,priority,script,limit\n"
            "5m,2h,A100:8,2,64,256G,alice,vision,70,train.py,3h\n"
            '0,"90m",0.5,,,,,,,,\n'
            "0,1h,2,,,,,,,,\n"
            "0,-1h,2,,,,,,,,\n"
            "-5,1h,2,,,,,,,,\n"
            "0,1h,2,0,,,,,,,\n"
        )
        workload = read_workload(write("w.csv", text))
        share, two, large = workload.runs
        assert (share.duration_s, requested(share)) == (5400.0, (Resources(1000, 0, 0, gpu_milli=500), 1))
        assert requested(two) == (Resources(2000, 0, 2), 1)
        assert (
            large.at_s,
            large.duration_s,
            large.user,
            large.spec.queue,
            large.spec.priority,
            large.spec.time_limit_s,
        ) == (
            300.0,
            7200.0,
            "alice",
            "vision",
            70,
            10800.0,
        )
        assert requested(large) == (Resources(64000, 256 * GIB, 8, ("A100",)), 2)
        assert sorted(problems(workload)) == [5, 6, 7]

    def test_submit_times_as_dates(self, write: Write) -> None:
        text = "submit,duration\n2026-02-01T10:00:00+01:00,60\n2026-02-01T09:30:00,60\n"
        workload = read_workload(write("w.csv", text))
        assert (workload.begin, [run.at_s for run in workload.runs]) == (
            datetime(2026, 2, 1, 9, tzinfo=UTC),
            [0.0, 1800.0],
        )

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (
                "0,60\n5m,60\n2026-02-01T10:00:00,60\n",
                r"line 4: submit: `2026-02-01T10:00:00` is a date, and line 2 has a time after",
            ),
            (
                "2026-02-01,60\n7,60\n",
                r"line 3: submit: `7` is a time after the beginning, and line 2 has a date",
            ),
            (
                "2026-02-01,60\nsoon-ish,60\n1e-3,60\n",
                r"line 4: submit: `1e-3` is a time after the beginning",
            ),
        ],
    )
    def test_seconds_and_dates_in_one_table_are_refused(self, write: Write, rows: str, message: str) -> None:
        with pytest.raises(SpecError, match=message) as raised:
            read_workload(write("w.csv", "submit,duration\n" + rows))
        assert raised.value.hints

    def test_seconds_and_dates_in_one_list_are_refused(self, write: Write) -> None:
        with pytest.raises(
            SpecError, match=r"runs\.1: submit: `2026-02-01` is a date, and runs\.0 has a time"
        ):
            read_workload(
                write("w.yaml", "runs: [{submit: 0, duration: 1h}, {submit: 2026-02-01, duration: 1h}]\n")
            )

    def test_invalid_row_does_not_set_the_kind_of_submit_times(self, write: Write) -> None:
        workload = read_workload(write("w.csv", "submit,duration\n2026-02-01,bad\n0,60\n9,60\n"))
        assert ([run.at_s for run in workload.runs], list(problems(workload))) == ([0.0, 9.0], [2])

    def test_yaml_runs_are_repeated(self, write: Write) -> None:
        workload = read_workload(
            write(
                "w.yaml",
                "name: mine\nruns:\n  - {submit: 10s, duration: 1h, gpus: 1, count: 3, every: 60s}\n"
                "  - {submit: 0, duration: 5m}\n",
            )
        )
        assert (workload.name, [run.at_s for run in workload.runs]) == ("mine", [0.0, 10.0, 70.0, 130.0])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("runs: [{submit: 0, duration: soon}]", r"runs\.0: duration"),
            ("runs: [{submit: 0}]", r"runs\.0: duration is empty"),
            ("runs: [{submit: 0, duration: 1h, count: 2}]", "every"),
            ("runs: [{submit: 0, duration: 1h, gpuss: 2}]", "gpuss"),
            ("runs: []", "none"),
            ("runs: {}", "not a list"),
        ],
    )
    def test_incomplete_yaml_is_refused(self, write: Write, text: str, message: str) -> None:
        with pytest.raises(SpecError, match=message):
            read_workload(write("w.yaml", text))

    def test_unknown_column_gives_a_suggestion(self, write: Write) -> None:
        with pytest.raises(SpecError, match="gpuz") as raised:
            read_workload(write("w.csv", "submit,duration,gpuz\n0,1h,1\n"))
        assert "gpus" in raised.value.hints[0]


def run_json(**changes: Any) -> dict[str, Any]:
    role = {
        "command": ["python", "train.py"],
        "name": "worker",
        "replicas": 2,
        "resources": {"cpu_milli": 2000, "memory_bytes": GIB, "gpus": 4, "gpu_models": ["A100"]},
    }
    spec = {
        "project": "mnist",
        "roles": [role],
        "queue": "vision",
        "priority": 70,
        "code": "0" * 64,
        "env": {"SECRET": "x"},
    }
    run = {
        "name": "alice/mnist/1",
        "phase": "succeeded",
        "spec": spec,
        "submitted_at": "2026-03-01T10:00:00Z",
        "started_at": "2026-03-01T10:10:00Z",
        "ended_at": "2026-03-01T11:10:00.500000Z",
    }
    return {**run, **changes}


class TestHistory:
    def test_runs_of_a_server(self, write: Write) -> None:
        listed = [
            run_json(),
            run_json(phase="cancelled", started_at=None),
            run_json(offline=True),
            {"name": "x"},
            run_json(submitted_at="2026-03-01T09:00:00Z"),
        ]
        workload = read_workload(write("h.json", json.dumps(listed)))
        early, run = workload.runs
        assert (early.at_s, run.at_s, run.duration_s, run.user, run.spec.queue, run.spec.priority) == (
            0.0,
            3600.0,
            3600.5,
            "alice",
            "vision",
            70,
        )
        assert requested(run) == (Resources(2000, GIB, 4, ("A100",)), 2)
        assert (run.spec.script, run.spec.code, run.spec.env) == ("mnist:train.py", None, {})
        assert sorted(problems(workload)) == [2, 3, 4]

    def test_history_without_runs_is_refused(self) -> None:
        with pytest.raises(SpecError, match="no runs"):
            workload_of_runs([], name="history", source="@history")


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "text", "format"),
        [
            ("p.csv", PHILLY, "philly"),
            ("o.csv", OPENB, "openb"),
            ("s.txt", SACCT, "sacct"),
            ("w.csv", "name,time,application,num_replicas,batch_size\n", "pollux"),
            ("w.csv", "\ufeffDuration, submit\n", "csv"),
            ("w.yml", "", "yaml"),
            ("h.json", "\n".join(["[", "]"]), "hopyard"),
        ],
    )
    def test_format_is_detected(self, write: Write, name: str, text: str, format: str) -> None:
        assert detect_format(write(name, text)) == format

    @pytest.mark.parametrize(
        ("content", "format", "message"),
        [
            (b"a,b,c\n1,2,3\n", None, "line 1: `a,b,c`"),
            (b"\xff\xfe\x00", None, "line 1: not text"),
            (b"submit,duration\n0,1h\n\xff,1h\n", None, "not text"),
            (b"submit,duration,submit\n0,1h,0\n", None, "twice"),
            (b"submit,duration\n", None, "no rows"),
            (b"", "csv", "empty"),
            (b'submit,duration\n"0,1h\n', None, "line"),
            (b"submit,duration\nx,1h\n", None, "line 2: submit"),
            (b"[{", None, "not JSON"),
            (b"{}", None, "no list"),
            (b"", "csvv", "--format"),
        ],
    )
    def test_unreadable_file_is_an_error_with_its_line(
        self, tmp_path: Path, content: bytes, format: str | None, message: str
    ) -> None:
        file = tmp_path / "w.csv"
        file.write_bytes(content)
        with pytest.raises(SpecError, match=message) as raised:
            read_workload(file, format=format)
        assert raised.value.hints or "twice" in message

    @pytest.mark.parametrize("format", [None, *FORMATS])
    def test_missing_file(self, tmp_path: Path, format: str | None) -> None:
        with pytest.raises(SpecError, match="there is no file"):
            read_workload(tmp_path / "none.csv", format=format)
        with pytest.raises(SpecError):
            read_workload(tmp_path, format=format)
