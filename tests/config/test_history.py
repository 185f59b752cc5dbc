"""Versions of settings: whole on disk before they count, bounded, checked when read, and one step back is one step."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from kvops import paths
from kvops.config.history import KEPT, History
from kvops.config.load import LoadedConfig, load_document
from kvops.errors import ConfigError


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "node" / "config")


def settings(queue: int) -> LoadedConfig:
    return load_document({"runtime": {"max_queue": queue}}, "file f")


def good(history: History, queue: int) -> int:
    version = history.record(settings(queue), "me")
    history.mark_good(version.id)
    return version.id


def test_a_version_keeps_what_who_when_and_why(history: History) -> None:
    assert history.versions() == ()
    assert history.current() is None
    version = history.record(settings(7), "me", "more room")
    assert history.current() == version
    assert (version.id, version.author, version.note, version.good) == (1, "me", "more room", False)
    assert version.config_hash == settings(7).config_hash
    assert history.document(version) == {"runtime": {"max_queue": 7}}
    assert json.loads(history.current_file.read_text()) == {"runtime": {"max_queue": 7}}
    assert load_document(history.document(version), "v").config == settings(7).config


def test_the_same_again_is_no_new_version(history: History) -> None:
    first = history.record(settings(7), "me")
    assert history.record(settings(7), "you", "again") == first
    assert history.record(settings(8), "me").id == 2
    assert history.record(settings(7), "me").id == 3


def test_all_is_private(history: History) -> None:
    history.record(settings(7), "me")
    files = [path for path in history.folder.rglob("*") if path.is_file() and path.name != "lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [history.folder, history.folder / "versions"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_what_is_kept_is_bounded_and_the_last_good_one_stays(history: History) -> None:
    first = good(history, 1)
    for queue in range(2, KEPT + 10):
        history.record(settings(queue), "me")
    versions = history.versions()
    assert len(versions) == KEPT
    assert versions[0].id == first
    assert versions[-1].id == KEPT + 9
    assert len(list((history.folder / "versions").iterdir())) == KEPT
    assert history.last_good().id == first


def test_each_rollback_goes_one_good_version_further_back(history: History) -> None:
    one, two, bad = good(history, 1), good(history, 2), history.record(settings(3), "me").id
    for expected in (two, one):
        target = history.last_good()
        assert target.id == expected
        back = history.record(settings(target.id), "me", restores=target.origin)
        assert back.id > bad
        history.mark_good(back.id)
    with pytest.raises(ConfigError, match="no earlier version"):
        history.last_good()


def test_a_rollback_passes_over_what_says_the_same(history: History) -> None:
    one = good(history, 1)
    good(history, 2)
    good(history, 1)
    assert history.last_good().id == one + 1


def test_a_version_that_changed_on_disk_is_refused(history: History) -> None:
    version = history.record(settings(7), "me")
    (file,) = (history.folder / "versions").iterdir()
    file.write_text(file.read_text().replace("7", "8"))
    with pytest.raises(ConfigError, match="SHA-256"):
        history.document(version)
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        history.document(version)


def index_with(**fields: object) -> str:
    usual = {"id": 1, "at": 1.0, "author": "me", "config_hash": "c", "digest": "0" * 64}
    return json.dumps({"versions": [usual | fields]})


BROKEN = [
    "", "{}", "{}x", "[1]", '{"versions": [{"id": 1}]}', "[" * 100_000,
    index_with(at=1e300), index_with(at=-1e300), index_with(id=0), index_with(digest="../x"),
]  # fmt: skip


def test_the_shortest_index_is_readable(history: History) -> None:
    history.folder.mkdir(parents=True)
    (history.folder / "index.json").write_text(index_with())
    assert [one.id for one in history.versions()] == [1]


@pytest.mark.parametrize("text", BROKEN)
def test_an_index_that_is_broken_is_said_and_can_be_put_aside(history: History, text: str) -> None:
    history.record(settings(7), "me")
    index = history.folder / "index.json"
    index.write_text(text)
    with pytest.raises(ConfigError, match="history of settings") as caught:
        history.versions()
    assert str(index) in caught.value.message
    assert history.put_aside().read_text() == text
    assert history.record(settings(7), "me").id == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_a_write_that_fails_leaves_the_version_before(
    history: History, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    first = history.record(settings(1), "me")
    write, calls = paths.write_atomic, iter(range(9))

    def fail(path: Path, data: bytes) -> None:
        if next(calls) == failing:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(paths, "write_atomic", fail)
    with pytest.raises(OSError, match="No space"):
        history.record(settings(2), "me")
    monkeypatch.undo()
    assert history.versions() == (first,)
    assert history.document(first) == {"runtime": {"max_queue": 1}}
    assert json.loads(history.current_file.read_text()) == {"runtime": {"max_queue": 1}}
    assert history.record(settings(2), "me").id == 2


def test_what_the_current_version_says_follows_the_index(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.record(settings(1), "me")
    write = paths.write_atomic

    def fail(path: Path, data: bytes) -> None:
        if path == history.current_file:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(paths, "write_atomic", fail)
    second = history.record(settings(2), "me")
    assert history.current() == second, "it counts"
    assert json.loads(history.current_file.read_text()) == {"runtime": {"max_queue": 1}}
    monkeypatch.undo()
    assert history.current() == second
    assert json.loads(history.current_file.read_text()) == {"runtime": {"max_queue": 2}}
    history.current_file.unlink()
    history.record(settings(2), "me")
    assert json.loads(history.current_file.read_text()) == {"runtime": {"max_queue": 2}}


def test_a_version_that_is_not_kept(history: History) -> None:
    with pytest.raises(ConfigError, match="no version 4"):
        history.version(4)
    history.record(settings(1), "me")
    with pytest.raises(ConfigError) as caught:
        history.version(4)
    assert "v1 to v1" in caught.value.hint
