"""Addresses of ports: paths and host names."""

from __future__ import annotations

from hopyard.domain.ids import RunId
from hopyard.server.ports.port_address import PortAddress, split_port_host, split_port_path
from hopyard.server.protocol import AllowedHosts

RUN = RunId("1m8d4nt4d0dxycj62rp1")


def test_paths_name_run_rank_and_port() -> None:
    assert split_port_path(f"/runs/{RUN}/ports/8888/a/b") == (
        PortAddress(RUN, "8888"),
        f"/runs/{RUN}/ports/8888",
    )
    address = PortAddress(RUN, "web", 3)
    assert address.path == f"/runs/{RUN}/ranks/3/ports/web"
    assert split_port_path(f"{address.path}/") == (address, address.path)
    assert split_port_path(address.path) == (address, address.path)


def test_other_paths_are_none() -> None:
    for path in (
        "/runs",
        f"/runs/{RUN}",
        f"/runs/{RUN}/ports/",
        f"/runs/{RUN}/ports/0/",
        "/runs/../ports/1/",
    ):
        assert split_port_path(path) is None


def test_host_names_name_run_rank_and_port() -> None:
    for address in (PortAddress(RUN, "8888"), PortAddress(RUN, "80", 12)):
        assert split_port_host(f"{address.host_label}.localhost:81") == (address, "localhost:81")
        # the API must not answer at another spelling of the name
        assert split_port_host(f"P{address.host_label[1:].upper()}.localhost:81")[0] == address
    for host in ("localhost:81", "p8888.localhost", f"p8888-{RUN}", "plain.example.org", ""):
        assert split_port_host(host) == (None, host)


def test_ids_that_fit_no_host_name_have_no_label() -> None:
    assert PortAddress(RunId("Upper-case"), "80").host_label == ""
    assert PortAddress(RunId("a" * 64), "80").host_label == ""


def test_only_names_below_allowed_hosts_are_accepted() -> None:
    hosts = AllowedHosts(["hop.example.org"])
    label = PortAddress(RUN, "8888").host_label
    for name in ("localhost:81", "hop.example.org"):
        assert hosts.is_allowed(f"{label}.{name}".encode())
    for name in (
        f"{label}.evil.org",
        f"{label}",
        f"x.{label}.localhost",
        "x.localhost",
        f"{label}.127.0.0.1",
    ):
        assert not hosts.is_allowed(name.encode())
