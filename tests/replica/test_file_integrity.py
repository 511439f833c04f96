from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from hopyard.replica.file_integrity import has_end


def make(path: Path) -> bytes:
    match path.suffix:
        case ".json":
            return b'{"step": 3}'
        case ".pkl":
            return pickle.dumps([1, 2, 3])
        case ".safetensors":
            header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
            return len(header).to_bytes(8, "little") + header + b"abcd"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"x" * 100)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["a.json", "a.pkl", "a.safetensors", "a.pt", "a.ckpt", "a.npz"])
def test_files_that_were_cut_off_are_recognised(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = make(path)
    path.write_bytes(data)
    assert has_end(path)
    for size in (0, 6, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert not has_end(path), size


def test_lines_of_json_are_complete_after_each_line(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert has_end(tmp_path / "log.json")
    for text in ('{"a": 1}\n{"a": ', '{\n "a": 1,\n', "\n"):
        (tmp_path / "log.json").write_text(text)
        assert not has_end(tmp_path / "log.json"), text


def test_unknown_formats_do_not_show_their_end(tmp_path: Path) -> None:
    for name, data in (("a.txt", b""), ("a.bin", b"\0\1"), ("a.pt", b"\x80\x02old"), ("a.h5", b"no")):
        (tmp_path / name).write_bytes(data)
        assert has_end(tmp_path / name) is None
    assert has_end(tmp_path / "missing.pt") is False


def test_hdf5_file_is_complete_up_to_the_end_in_its_superblock(tmp_path: Path) -> None:
    head = b"\x89HDF\r\n\x1a\n"
    for version, start in ((0, 40), (2, 28)):
        sizes = bytes([version, 8]) if version else bytes([0, 0, 0, 0, 0, 8, 8, 0])
        data = bytearray(100)
        data[: 8 + len(sizes)] = head + sizes
        data[start : start + 8] = len(data).to_bytes(8, "little")
        path = tmp_path / f"{version}.h5"
        path.write_bytes(data)
        assert has_end(path)
        for size in (0, 6, 20, 99):
            path.write_bytes(data[:size])
            assert has_end(path) is False, size
