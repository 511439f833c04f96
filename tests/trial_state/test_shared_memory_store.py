"""The shelf: states in shared memory, for several processes, some of which die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hopyard.errors import IntegrityError, NotFound, StorageFull
from hopyard.mop_runtime.state_transfer import StateServer, fetch
from hopyard.mop_runtime.transport.framing import FramedConnection
from hopyard.mop_runtime.transport.listener import ConnectionListener
from hopyard.trial_state import attempt_dir
from hopyard.trial_state.decode import decode
from hopyard.trial_state.decode_buffers import DecodeBuffers
from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import EncodedState, encode
from hopyard.trial_state.shared_memory_store import StateStore
from tests.mop_runtime.driver.state_listener import serve_states

SECRET = b"s" * 32
Opens = Callable[..., StateStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opens]:
    stores: list[StateStore] = []
    for name in ("memory", "disk", "other"):
        (tmp_path / name).mkdir()

    def open_named(name: str = "1.1", *, memory: str = "memory") -> StateStore:
        stores.append(StateStore(name, tmp_path / "disk", memory=tmp_path / memory))
        return stores[-1]

    yield open_named
    for store in stores:
        store.close()


def state(number: int, size: int = 50_000) -> EncodedState:
    return encode({"w": np.full(size, float(number))})


def number_in(store: StateStore, name: str) -> float:
    return float(decode(store.read(name))["w"][7])


def slots(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("slot-*"))


def test_state_written_by_one_store_is_read_by_another(open_store: Opens) -> None:
    store, other = open_store(), open_store()
    assert store.id == other.id
    encoded = state(3)
    assert store.put("1.1", encoded) == encoded.size
    assert other.has("1.1") and other.list_states() == ["1.1"] and number_in(other, "1.1") == 3
    with other.view("1.1") as view:
        assert digest(view) == digest(encoded.to_bytes())
        with pytest.raises(TypeError):
            view[0] = 1
    other.drop(["1.1", "never"])
    assert not store.has("1.1")
    for missing in ("1.1", "../x", "", "a/b"):
        with pytest.raises(NotFound):
            store.read(missing)


def test_freed_memory_is_reused(open_store: Opens, tmp_path: Path) -> None:
    """Twenty hops of two trials between two workers need few slots, and no reader sees bytes of another
    state."""
    stores = [open_store(), open_store()]
    last: dict[int, str] = {}
    for hop in range(20):
        for trial in range(2):
            here = stores[(hop + trial) % 2]
            if trial in last:
                assert number_in(here, last[trial]) == (hop - 1) * 10 + trial
            here.put(f"{hop}.{trial}", state(hop * 10 + trial))
            if trial in last:
                here.drop([last[trial]])
            last[trial] = f"{hop}.{trial}"
    assert len(slots(tmp_path)) <= 8
    for store in stores:
        store.drop(last.values())
        store.release_unused()
    assert len(slots(tmp_path)) <= 4 and all(store.allocated_bytes <= 2 * 500_000 for store in stores)


def test_state_is_never_read_partially_overwritten(open_store: Opens) -> None:
    """While a writer drops and puts at full speed, a reader gets either the state of that name or none."""
    writer, reader = open_store(), open_store()
    done = threading.Event()
    wrong: list[object] = []
    read = [0]

    def reading() -> None:
        while not done.is_set():
            for name in reader.list_states():
                try:
                    result = decode(reader.read(name))["w"]
                except NotFound:
                    continue
                read[0] += 1
                if not (result == float(name)).all():
                    wrong.append((name, result))

    thread = threading.Thread(target=reading)
    thread.start()
    for number in range(400):
        writer.put(str(number), state(number))
        if number:
            writer.drop([str(number - 1)])
    while not read[0]:
        pass
    done.set()
    thread.join()
    assert not wrong


def test_viewed_state_survives_drop(open_store: Opens) -> None:
    store = open_store()
    encoded = state(1)
    store.put("a", encoded)
    with store.view("a") as view:
        store.drop(["a"])
        store.put("b", state(2))
        assert digest(view) == digest(encoded.to_bytes())
    other = open_store()
    with pytest.raises(NotFound, match="dropped while"), other.view("b"):
        store.drop(["b"])


def test_state_put_twice_is_stored_once(open_store: Opens) -> None:
    store, other = open_store(), open_store()
    store.put("a", state(1))
    other.put("a", state(1))
    assert store.list_states() == ["a"] and number_in(store, "a") == 1
    with pytest.raises(ZeroDivisionError), store.allocate("b", 100):
        raise ZeroDivisionError
    assert not store.has("b")


def test_states_of_different_sizes_are_stored(open_store: Opens) -> None:
    store = open_store()
    for number, size in enumerate([10, 100_000, 5, 60_000, 200_000, 1]):
        store.put("x", state(number, size + 8))
        assert number_in(store, "x") == number
        store.drop(["x"])
    store.reserve(1_000_000)
    assert store.allocated_bytes >= 1_000_000


def test_full_memory_spills_to_disk_and_full_disk_is_an_error(open_store: Opens, tmp_path: Path) -> None:
    nowhere = open_store(memory="missing")
    nowhere.put("a", state(1))
    assert (tmp_path / "disk").rglob("state-a") and number_in(nowhere, "a") == 1
    with pytest.raises(StorageFull, match="no space for a state of") as error, nowhere.allocate("b", 1 << 60):
        pass
    assert error.value.hints
    nowhere.reserve(1 << 60)  # only meant well


def test_nearly_full_large_disk_has_space_for_states() -> None:
    assert attempt_dir.usable_bytes(13 << 30, 252 << 30) == 12 << 30
    assert attempt_dir.usable_bytes(10 << 20, 100 << 20) == 5 << 20
    assert attempt_dir.usable_bytes(4 << 20, 100 << 20) < 0


def test_states_are_exported_and_imported(open_store: Opens, tmp_path: Path) -> None:
    store, file = open_store(), tmp_path / "state"
    encoded = state(4)
    store.put("a", encoded)
    assert store.export_file("a", file) == encoded.size and file.read_bytes() == encoded.to_bytes()
    assert store.import_file("b", file) == encoded.size and number_in(store, "b") == 4
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(IntegrityError):
        store.import_file("c", file)
    assert store.list_states() == ["a", "b"]
    with pytest.raises(NotFound):
        store.export_file("none", file)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["state"]


DIES = """
import os, sys
from pathlib import Path
import numpy as np
from hopyard.trial_state.encode import encode
from hopyard.trial_state.shared_memory_store import StateStore
shelf = StateStore(sys.argv[2], Path(sys.argv[1]) / "disk", memory=Path(sys.argv[1]) / "memory")
for number in range(3):
    shelf.put(f"d{number}", encode({"w": np.full(50_000, float(number))}))
shelf.drop(["d1"])
print("ready", flush=True)
sys.stdin.read()
"""


def run_killed_writer(folder: Path, name: str) -> None:
    """Runs a process that puts states and is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stdin.close()


def test_states_outlive_their_writer_and_drop_frees_memory(open_store: Opens, tmp_path: Path) -> None:
    store = open_store()
    run_killed_writer(tmp_path, "1.1")
    assert number_in(store, "d2") == 2 and store.list_states() == ["d0", "d2"]
    store.drop(["d0"])
    assert len(slots(tmp_path)) == 1
    store.drop(["d2"])
    assert not slots(tmp_path)


def test_remains_of_dead_attempts_are_removed(open_store: Opens, tmp_path: Path) -> None:
    living = open_store("2.1")
    living.put("a", state(1))
    run_killed_writer(tmp_path, "1.1")
    assert len(list((tmp_path / "memory").iterdir())) == 2
    open_store("3.1")
    names = {path.name for path in (tmp_path / "memory").iterdir()}
    assert names == {f"hopyard-{os.getuid()}-2.1", f"hopyard-{os.getuid()}-3.1"}
    attempt_dir.remove_dead_attempts(tmp_path / "memory")
    assert number_in(living, "a") == 1


def test_folder_of_other_user_is_not_used(open_store: Opens, tmp_path: Path) -> None:
    (tmp_path / "memory" / f"hopyard-{os.getuid()}-1.1").symlink_to(tmp_path / "other")
    store = open_store()
    store.put("a", state(1))
    assert not list((tmp_path / "other").iterdir()) and number_in(store, "a") == 1


# -- memory for decoded states -------------------------------------------------------------------------------


def test_empty_arena_is_reused() -> None:
    arenas = DecodeBuffers()
    data = state(1).to_bytes()
    view = arenas.acquire(len(data))
    view[:] = data
    array = decode(view)["w"]
    part = array[5:10]
    del view, array
    other = arenas.acquire(len(data))
    other[:] = bytes(len(data))
    assert (part == 1.0).all() and arenas.allocated_bytes > 2 * len(data)
    del part, other
    for _ in range(10):
        arenas.acquire(len(data))
    assert arenas.allocated_bytes < 3 * len(data)
    for size in range(1, 20):
        arenas.acquire(size * 100_000)
    assert arenas.allocated_bytes < 20 * 1_000_000


def test_arena_is_retained_by_tensor_in_it() -> None:
    torch = pytest.importorskip("torch")
    arenas = DecodeBuffers()
    data = encode([torch.nn.Parameter(torch.ones(5000)), torch.zeros(5000)]).to_bytes()
    view = arenas.acquire(len(data))
    view[:] = data
    tensor = decode(view)[0]
    del view
    arenas.acquire(len(data))[:] = b"\xff" * len(data)
    assert torch.equal(tensor.data, torch.ones(5000))


# -- between hosts -------------------------------------------------------------------------------------------


def test_state_is_fetched_from_another_host(open_store: Opens) -> None:
    local, remote = open_store("1"), open_store("2")
    encoded = state(5)
    remote.put("a", encoded)
    listener = serve_states(SECRET, remote, host="127.0.0.1")
    address = f"127.0.0.1:{listener.port}"
    assert fetch("a", ["127.0.0.1:1", address], SECRET, local) == encoded.size
    assert number_in(local, "a") == 5 and fetch("a", [], SECRET, local) == 0
    with pytest.raises(NotFound, match=r"no worker has state `b`.*not stored on this host"):
        fetch("b", [address], SECRET, local)
    with pytest.raises(NotFound, match="secret"):
        fetch("b", [address], b"another", local)
    with pytest.raises(NotFound, match="not an address"):
        fetch("b", ["nonsense"], SECRET, local)
    listener.close()


def test_state_with_wrong_digest_is_refused(open_store: Opens) -> None:
    local, remote = open_store("1"), open_store("2")
    remote.put("a", state(5))
    lying = StateServer(remote)
    lying.add_digest("a", "0" * 64)

    def serve(wire: FramedConnection) -> None:
        lying.send_state(wire, wire.receive_head()[0])

    listener = ConnectionListener(SECRET, serve, host="127.0.0.1")
    with pytest.raises(NotFound, match="not 0000"):
        fetch("a", [f"127.0.0.1:{listener.port}"], SECRET, local)
    assert not local.has("a")
    lying.discard(["a"])
    assert fetch("a", [f"127.0.0.1:{listener.port}"], SECRET, local) > 0
    listener.close()


def test_unreachable_source_is_tried_last(open_store: Opens) -> None:
    local, remote, other = open_store("1"), open_store("2"), open_store("3")
    remote.put("a", state(5))
    remote.put("b", state(6))
    listener = serve_states(SECRET, remote, host="127.0.0.1")
    away = serve_states(SECRET, other, host="127.0.0.1")
    away.close()
    sources = [f"127.0.0.1:{away.port}", f"127.0.0.1:{listener.port}"]
    assert fetch("a", sources, SECRET, local) > 0
    requests: list[object] = []
    back = ConnectionListener(SECRET, requests.append, host="127.0.0.1", port=away.port)
    assert fetch("b", sources, SECRET, local) > 0
    assert not requests
    listener.close()
    with pytest.raises(NotFound):
        fetch("c", sources, SECRET, local)
    assert requests, "where nobody else has it"
    back.close()


def test_silent_source_times_out(open_store: Opens) -> None:
    local, done = open_store(), threading.Event()

    def serve(wire: FramedConnection) -> None:
        wire.receive_head()
        wire._sock.sendall(b"\0\0\0\2")  # the begin of an answer
        done.wait(20)

    listener = ConnectionListener(SECRET, serve, host="127.0.0.1")
    with pytest.raises(NotFound, match="timed out waiting for a message"):
        fetch("a", [f"127.0.0.1:{listener.port}"], SECRET, local, receive_timeout_s=0.2)
    done.set()
    listener.close()
