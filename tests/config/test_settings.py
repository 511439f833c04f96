"""`config.yaml` of the home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.config.quotas import QuotaSettings
from hopyard.config.server_limits import LimitSettings
from hopyard.config.settings import HomeSettings, NodeSettings, read_settings
from hopyard.errors import SpecError


def test_missing_file_gives_defaults(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "config.yaml") == HomeSettings()


def test_empty_file_and_empty_sections_give_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("node:\nserver: {}\n")
    assert read_settings(file) == HomeSettings()


def test_file_with_all_keys(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "node: {id: box, cpus: 8, memory: 32G, gpus: A100:2, gpu_memory: 40G, extras: {fpga: 2}, pool: "
        "fast, labels: {rack: a}}\nserver: {port: 8765, hosts: [Hop.example.org], url: "
        "'http://hop2.example.org:8765/', limits: {connections: 100, header_timeout: 5s, body_memory: "
        "1G, upload_per_s: 10M}}\nretention: {checkpoints: 0}\nscheduler: {preempt_grace: 1m30s}\n"
        "quotas: {storage_per_user: 500G, processes_per_replica: 100}\n"
        "containers: {base_image: 'lab:5000/python:3.11'}\n"
    )
    settings = read_settings(file)
    assert settings.node == NodeSettings(
        "box", 8000, 32 * 2**30, 2, "A100", "fast", {"rack": "a"}, {"fpga": 2}, 40 * 2**30
    )
    assert (settings.server.hosts, settings.server.url, settings.server.limits) == (
        ("hop.example.org",),
        "http://hop2.example.org:8765",
        LimitSettings(
            connections=100,
            connections_per_peer=50,
            header_timeout_s=5.0,
            body_memory_bytes=2**30,
            upload_bytes_per_s=10 * 2**20,
        ),
    )
    assert settings.quotas == QuotaSettings(500 * 2**30, 100)
    assert settings.containers.base_image == "lab:5000/python:3.11"
    assert (settings.server.port, settings.retention.checkpoints, settings.scheduler.preempt_grace_s) == (
        8765,
        0,
        90.0,
    )


def test_machine_of_several_nodes(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "nodes:\n  - {id: a, cpus: 2, gpus: A100:4, labels: {rack: x}}\n  - {id: b, pool: spare}\n"
    )
    first = NodeSettings("a", 2000, gpus=4, gpu_model="A100", labels={"rack": "x"})
    assert read_settings(file).nodes == (first, NodeSettings("b", pool="spare"))


def test_documented_example_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "config.md").read_text()
    file = tmp_path / "config.yaml"
    file.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    settings = read_settings(file)
    assert (settings.runs.max_output_bytes, settings.runs.max_metrics_bytes) == (2**30, 2**28)
    assert (settings.node.id, settings.quotas) == ("box", QuotaSettings(500 * 2**30, 16384))


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("nod: {}", "there is no key `nod`", "did you mean `node`?"),
        ("nodes: {}", "nodes: `{}` is not a list", "one `- …` line per entry"),
        ("nodes: [{cpus: 2}]", "nodes.0.id: missing", "give each node a name"),
        ("nodes: [{id: a}, {id: a}]", "nodes.1.id: `a` is the name of two nodes", "its own name"),
        ("node: {cpus: 2}\nnodes: [{id: a}]", "nodes: `node` is given, too", "move"),
        ("node: {cpu: 2}", "node: there is no key `cpu`", "did you mean `cpus`?"),
        ("node: {cpus: 0}", "node.cpus: `0` is not a number of CPUs", "0.5"),
        ("node: {id: a/b}", "node.id: `a/b` is not a name", "letters"),
        ("node: {labels: {rack: 3}}", "node.labels.rack: `3` is not a text", "quotes"),
        ("node: {memory: 0}", "node.memory: `0` is not what a machine has", "leave the line out"),
        ("node: {memory: -1G}", "node.memory: `-1G` is not an amount of memory", "8G"),
        ("node: {memory: 900T}", "node.memory: `900T` is not what a machine has", "leave the line out"),
        ("node: {cpus: 999999}", "node.cpus: `999999` is not what a machine has", "leave the line out"),
        ("node: {gpus: A100:9999}", "node.gpus: `A100:9999` is not what a machine has", "leave the line out"),
        (
            "node: {gpus: A100:1, gpu_memory: 9T}",
            "node.gpu_memory: `9T` is not what a machine has",
            "leave the line out",
        ),
        (
            "node: {gpu_memory: 40G}",
            "node.gpu_memory: memory of GPUs, but no GPUs are declared",
            "gpus: A100:2",
        ),
        ("node: {extras: {fpga: -2}}", "node.extras.fpga: `-2` is not a whole number from 1", ""),
        ("node: {extras: {gpu: 2}}", "node.extras.gpu: `gpu` has its own option", "--gpus"),
        ("node: 3", "node: `3` is not a mapping", "key: value"),
        (
            "server: {url: hop.example.org}",
            "server.url: `hop.example.org` is not the address of a server",
            "http://hop2",
        ),
        (
            "server: {url: https://hop.example.org}",
            "server.url: `https://hop.example.org` is not the address",
            "http://hop2",
        ),
        (
            'server: {hosts: ["http://x"]}',
            "server.hosts: `http://x` at 0 is not the name of a host",
            "without a port",
        ),
        (
            "server: {limits: {connections: 1}}",
            "server.limits.connections: `1` is not a whole number from 16",
            "",
        ),
        (
            "server: {limits: {body_memory: 1M}}",
            "server.limits.body_memory: `1M` is out of range",
            "allowed: 64M to 4T",
        ),
        (
            "server: {limits: {request: 1}}",
            "server.limits: there is no key `request`",
            "did you mean `requests_per_s`?",
        ),
        ("server: {port: 70000}", "server.port: `70000` is not a whole number from 0 to 65535", ""),
        ("retention: {checkpoints: -1}", "retention.checkpoints: `-1`", ""),
        ("scheduler: {preempt_grace: soon}", "scheduler.preempt_grace: `soon` is not a time", ""),
        ("scheduler: {preempt_grace: 25h}", "scheduler.preempt_grace: `25h` is more than a day", "60s"),
        ("quotas: {max_output: 1G}", "quotas.max_output: it is a key of another section", "below `runs:`"),
        ("runs: {cpus: 4}", "runs.cpus: it is a key of another section", "below `node:`"),
        ("runs: {max_metrics: 5K}", "runs.max_metrics: `5K` is too small", "1M or more"),
        ("max_output: 1G", "max_output: it is outside its section", "below `runs:`"),
        ("scheduler: {grace: 5s}", "scheduler: there is no key `grace`", ""),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, text: str, problem: str, hint: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_settings(file)
    assert problem in refused.value.message
    assert any(hint in line for line in refused.value.hints) or not hint


def test_database_must_be_a_postgresql_url(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("database: postgresql://me@db/hop\n")
    assert read_settings(file).database == "postgresql://me@db/hop"
    file.write_text("database: mysql://me@db/hop\n")
    with pytest.raises(SpecError, match="database: not the address of a PostgreSQL database"):
        read_settings(file)
