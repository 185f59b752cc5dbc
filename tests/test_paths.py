from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvops import paths


def test_kvops_home_moves_all_four_folders(kvops_home: Path) -> None:
    folders = {paths.config_dir(), paths.state_dir(), paths.cache_dir(), paths.data_dir()}
    assert folders == {kvops_home / kind for kind in ("config", "state", "cache", "data")}


def test_without_it_the_xdg_variables_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVOPS_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert paths.nodes_dir() == tmp_path / "kvops" / "nodes"


def test_a_write_replaces_whole_and_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "record.json"
    paths.write_atomic(file, b"one")
    paths.write_atomic(file, b"two")
    assert file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file_and_no_temp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    paths.write_atomic(file, b"old")

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        paths.write_atomic(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.glob(".record*")) == []


def test_a_pipe_that_is_named_as_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        paths.open_regular(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"words")
    with paths.open_regular(tmp_path / "file") as opened:
        assert opened.read() == b"words"
