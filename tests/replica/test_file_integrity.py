from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from hopyard.replica.file_integrity import is_torn


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
    assert not is_torn(path)
    for size in (0, 6, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert is_torn(path), size


def test_lines_of_json_are_complete_after_each_line(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert not is_torn(tmp_path / "log.json")
    for text in ('{"a": 1}\n{"a": ', '{\n "a": 1,\n', "\n"):
        (tmp_path / "log.json").write_text(text)
        assert is_torn(tmp_path / "log.json"), text


def test_unknown_formats_are_complete(tmp_path: Path) -> None:
    for name, data in (("a.txt", b""), ("a.bin", b"\0\1"), ("a.pt", b"\x80\x02old format")):
        (tmp_path / name).write_bytes(data)
        assert not is_torn(tmp_path / name)
    assert is_torn(tmp_path / "missing.pt")
