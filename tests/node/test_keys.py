"""Keys change while a node runs: the file, what is done to it, and that no key which is good is ever refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvops.config.schema import Server
from kvops.errors import ConfigError, InvalidApiKey, UsageError
from kvops.node.access import Access
from kvops.node.auth import KeyRing, NoKeys
from kvops.node.keys import changes
from kvops.node.keys.changes import NewKey
from kvops.node.keys.file import ApiKey, digest_of, read_keys, write_keys
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode
from tests.node.conftest import HTTP, KEYS, eventually, model_of


def keys_of(node: RunningNode) -> Path:
    return node.home / "keys.yaml"


def status(node: RunningNode, secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return HTTP.get(f"{node.url}/v1/models", headers=headers).status_code


def metric(node: RunningNode, name: str) -> float:
    for line in HTTP.get(f"{node.url}/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def test_a_key_is_long_random_and_kept_as_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "kvops" / "keys.yaml"
    new = changes.create(file, "acme", "ci", None)
    assert new.secret.startswith("kvk_")
    assert len(new.secret) == len("kvk_") + 43, "256 bits"
    assert new.secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    (kept,) = read_keys(file)
    assert (kept.id, kept.tenant, kept.digest) == ("ci", "acme", digest_of(new.secret))
    assert kept.expires is None
    assert len({changes.create(file, "acme", None, None).secret for _ in range(5)}) == 5


def test_several_keys_of_a_tenant_and_their_ends(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    first = changes.create(file, "acme", None, 30.0)
    second = changes.create(file, "acme", None, None)
    ring = KeyRing(read_keys(file))
    for new in (first, second):
        assert ring.identify(f"Bearer {new.secret}").key_id == new.key.id
    gone = [ApiKey("x", "acme", digest_of(first.secret), expires=time.time() - 1)]
    ring.replace(gone)
    with pytest.raises(InvalidApiKey, match="expired at 20"):
        ring.identify(f"Bearer {first.secret}")
    with pytest.raises(InvalidApiKey, match="not known"):
        ring.identify(f"Bearer {second.secret}")


def test_a_rotation_keeps_the_old_key_for_the_overlap_and_the_lifetime(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    old = changes.create(file, "acme", "ci", 86400.0)
    new, ending = changes.rotate(file, "ci", 60.0, new_id="ci-2", lifetime=None)
    kept = {key.id: key for key in read_keys(file)}
    assert kept["ci"].digest == old.key.digest
    assert kept["ci"].expires is not None
    assert abs(kept["ci"].expires - time.time() - 60) < 30
    assert kept["ci"].expires == pytest.approx(ending.expires, abs=1)
    assert kept["ci-2"].expires is not None
    assert abs(kept["ci-2"].expires - time.time() - 86400) < 30, "as long as the old one"
    assert new.key.tenant == "acme"


def test_a_rotation_never_prolongs_the_old_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    old = changes.create(file, "acme", "ci", 10.0)
    _, ending = changes.rotate(file, "ci", 3600.0, new_id=None, lifetime=None)
    assert ending.expires == pytest.approx(old.key.expires, abs=1.1)


def test_a_key_that_is_ending_names_its_successor(tmp_path: Path) -> None:
    """What its own cut lifetime would give, a further successor would die with it."""
    file = tmp_path / "keys.yaml"
    changes.create(file, "acme", "ci", 86400.0)
    changes.rotate(file, "ci", 60.0, new_id="ci-2", lifetime=None)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="its successor is ci-2") as refused:
        changes.rotate(file, "ci", 3600.0, new_id=None, lifetime=None)
    assert refused.value.hint == "kvops keys rotate ci-2"
    assert file.read_bytes() == before
    changes.revoke(file, ["ci-2"])
    with pytest.raises(UsageError, match="ci-2 is revoked"):
        changes.rotate(file, "ci", 3600.0, new_id=None, lifetime=None)


def test_what_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    changes.create(file, "acme", "ci", None)
    write_keys(file, [*read_keys(file), ApiKey("past", "acme", digest_of("p"), expires=1.0)])
    before = file.read_bytes()
    for wrong in (
        lambda: changes.create(file, "acme", "ci", None),
        lambda: changes.create(file, "no blanks", None, None),
        lambda: changes.create(file, "acme", "../x", None),
        lambda: changes.rotate(file, "none", 1.0, new_id=None, lifetime=None),
        lambda: changes.rotate(file, "past", 1.0, new_id=None, lifetime=None),
        lambda: changes.revoke(file, ["ci", "none"]),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert file.read_bytes() == before
    assert [key.id for key in changes.revoke_expired(file)] == ["past"]


def test_the_last_key_revoked_closes_the_node_for_everyone(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    new = changes.create(file, "acme", "ci", None)
    changes.revoke(file, ["ci"])
    assert read_keys(file) == []
    access = Access(Server(api_keys_file=file))
    for header in (None, "Bearer x", f"Bearer {new.secret}"):
        with pytest.raises(InvalidApiKey):
            access.keys.identify(header)
    assert isinstance(Access(Server()).keys, NoKeys)


def test_times_in_a_file_written_by_hand(tmp_path: Path) -> None:
    def read(expires: str) -> float | None:
        file = tmp_path / "keys.yaml"
        file.write_text(f"- {{id: a, tenant: t, sha256: {'ab' * 32}, expires: {expires}}}\n")
        file.chmod(0o600)
        return read_keys(file)[0].expires

    assert read("2026-12-31T00:00:00Z") == read('"2026-12-31T01:00:00+01:00"') == 1798675200
    assert read("null") is None
    for wrong in ("soon", "2026-12-31", "2026-12-31T00:00:00", "5", "true", "[]"):
        with pytest.raises(ConfigError, match="expires"):
            read(wrong)


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    changes.create(real, "acme", None, None)
    real.chmod(0o640)
    link = tmp_path / "keys.yaml"
    link.symlink_to(real)
    changes.create(link, "acme", None, None)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert len(read_keys(real)) == 2


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    workers = [
        threading.Thread(target=lambda n=n: [changes.create(file, f"t{n}", None, None) for _ in range(8)])
        for n in range(4)
    ]  # fmt: skip
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Counter(key.tenant for key in read_keys(file)) == {f"t{n}": 8 for n in range(4)}


def test_a_ring_is_swapped_whole() -> None:
    """Each of two keys is in every ring that is ever in force, at another place and among others."""
    stays = [ApiKey(f"stays-{n}", "acme", digest_of(f"secret {n}")) for n in range(2)]
    rings = [
        [ApiKey(f"r{n}", "other", digest_of(f"r{n}")) for n in range(size)] for size in (0, 3, 200)
    ]
    ring = KeyRing(stays)
    done = threading.Event()

    def swap() -> None:
        for at, others in enumerate(itertools.cycle(rings)):
            if done.is_set():
                return
            ring.replace([*others, *stays] if at % 2 else [*stays[::-1], *others])

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for at in range(20_000):
            assert ring.identify(f"Bearer secret {at % 2}").key_id == f"stays-{at % 2}"
    finally:
        done.set()
        swapper.join()


async def test_a_broken_file_keeps_the_ring_and_is_said(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    new = changes.create(file, "acme", "ci", None)
    access = Access(Server(api_keys_file=file))
    (watched,) = access.watched
    good = file.read_bytes()
    for broken in (b"", b"[", b"- {id: ci}", b"{}", good.replace(b"ci", b"")):
        file.write_bytes(broken)
        await watched.look()
        assert watched.fault
        assert access.keys.identify(f"Bearer {new.secret}").key_id == "ci"
    assert watched.failures == 5
    file.unlink()
    await watched.look()
    assert "cannot read" in (watched.fault or "")
    file.write_bytes(good)
    file.chmod(0o644)
    await watched.look()
    assert "readable by everyone" in (watched.fault or "")
    file.chmod(0o600)
    await watched.look()
    assert watched.fault is None
    assert watched.reloads == 1


async def test_the_watch_outlives_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvops.node import watched as module

    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    file = tmp_path / "keys.yaml"
    changes.create(file, "acme", None, None)
    calls = 0

    def reload() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ZeroDivisionError

    files = module.WatchedFiles("api_keys", (file,), reload)
    running = asyncio.create_task(files.run())
    changes.create(file, "acme", None, None)
    async with asyncio.timeout(30):
        while files.reloads == 0:  # noqa: ASYNC110 - it is a number
            await asyncio.sleep(0.01)
    assert (files.failures, files.fault) == (1, None)
    running.cancel()


@contextmanager
def asking(node: RunningNode, holder: list[NewKey], seen: Counter[int]) -> Iterator[list[NewKey]]:
    """Requests without pause, with the key that `holder` names at the time: the keys that are in use now."""
    done, used = threading.Event(), holder * 3
    body = {"model": model_of(node, KEYS["alice"]), "prompt": "x", "max_tokens": 1}

    def ask(at: int) -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not done.is_set():
                used[at] = holder[0]
                headers = {"Authorization": f"Bearer {used[at].secret}"}
                if at == 0:
                    answer = client.post(f"{node.url}/v1/completions", json=body, headers=headers)
                else:
                    answer = client.get(f"{node.url}/v1/models", headers=headers)
                seen[answer.status_code] += 1

    workers = [threading.Thread(target=ask, args=(at,)) for at in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield used
    finally:
        done.set()
        for worker in workers:
            worker.join()


def test_no_good_key_is_refused_while_the_file_is_swapped(keyed_node: RunningNode) -> None:
    file = keys_of(keyed_node)
    holder = [changes.create(file, "acme", None, None)]
    eventually(lambda: status(keyed_node, holder[0].secret) == 200, "the first key is in force", 60)
    seen: Counter[int] = Counter()
    old: list[NewKey] = []
    with asking(keyed_node, holder, seen) as used:
        for _ in range(4):
            for at in range(10):  # others come and go meanwhile
                changes.create(file, "churn", f"churn-{at}", None)
            new, _ = changes.rotate(file, holder[0].key.id, 60.0, new_id=None, lifetime=None)
            eventually(lambda: status(keyed_node, new.secret) == 200, "the new key", 60)  # noqa: B023
            assert status(keyed_node, holder[0].secret) == 200, "the old one, in the overlap"
            old.append(holder[0])
            holder[0] = new
            changes.revoke(file, [f"churn-{at}" for at in range(10)])
        eventually(lambda: all(key is holder[0] for key in used), "the last key in use", 60)
        changes.revoke(file, [each.key.id for each in old])
        for each in old:
            eventually(lambda: status(keyed_node, each.secret) == 401, "the revoked keys", 60)  # noqa: B023
    assert set(seen) == {200}, seen
    assert seen[200] > 50
    assert status(keyed_node, KEYS["bob"]) == 200, "keys of before are untouched"


def test_a_key_ends_on_time_without_a_change_of_the_file(keyed_node: RunningNode) -> None:
    file = keys_of(keyed_node)
    new = changes.create(file, "acme", None, 4.0)
    eventually(lambda: status(keyed_node, new.secret) == 200, "in force", 60)
    before = file.stat()
    eventually(lambda: status(keyed_node, new.secret) == 401, "expired", 60)
    assert time.time() >= (new.key.expires or 0)
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    headers = {"Authorization": f"Bearer {new.secret}"}
    answer: dict[str, Any] = HTTP.get(f"{keyed_node.url}/v1/models", headers=headers).json()
    assert "expired" in answer["error"]["message"]


def stale_files(node: RunningNode) -> tuple[str, ...]:
    upkeep = node.snapshot().upkeep
    assert isinstance(upkeep, Known)
    return upkeep.value.stale_files


def test_a_running_node_says_that_its_file_is_broken(keyed_node: RunningNode) -> None:
    file = keys_of(keyed_node)
    record = keyed_node.home / "state" / "nodes" / keyed_node.name / "node.json"
    assert json.loads(record.read_text())["api_keys_file"] == str(file), "where kvops keys finds it"
    good = file.read_bytes()
    stale = 'kvops_file_stale{file="api_keys"}'
    assert metric(keyed_node, stale) == 0
    failed = metric(keyed_node, 'kvops_file_reloads_total{file="api_keys",outcome="failed"}')
    file.write_bytes(b"- broken")
    eventually(lambda: metric(keyed_node, stale) == 1, "said", 60)
    assert status(keyed_node, KEYS["alice"]) == 200
    assert stale_files(keyed_node) == ("api_keys",)
    assert metric(keyed_node, "kvops_stale_files") == 1
    file.write_bytes(good)
    eventually(lambda: metric(keyed_node, stale) == 0, "mended", 60)
    assert stale_files(keyed_node) == ()
    name = 'kvops_file_reloads_total{file="api_keys",outcome="failed"}'
    assert metric(keyed_node, name) > failed
    assert metric(keyed_node, 'kvops_api_keys{state="active"}') == len(
        [key for key in read_keys(file) if not key.expired(time.time())]
    )
    log = (keyed_node.home / "state" / "nodes" / keyed_node.name / "node.log").read_text()
    assert "not_reloaded" in log
    assert not any(secret in log for secret in KEYS.values())
