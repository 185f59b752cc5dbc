"""What can change live, what settings differ in, and settings of which a part is in force."""

from __future__ import annotations

from typing import Any

import pytest

from kvops.config.keys import leaf_keys, sections
from kvops.config.live import LIVE, applied, can_change_live, changes
from kvops.config.load import LoadedConfig, load_document


def loaded(origin: str = "old", **document: Any) -> LoadedConfig:
    return load_document(document, origin)


def test_what_is_listed_is_a_setting_or_a_section() -> None:
    assert set(LIVE) <= set(leaf_keys()) | sections()
    assert len(set(LIVE)) == len(LIVE)


@pytest.mark.parametrize(
    ("key", "live"),
    [
        ("tenants", True), ("tenants.acme.max_running", True), ("tenant_defaults.class", True),
        ("limits.n", True), ("runtime.max_queue", True), ("runtime.max_batch_size", False),
        ("kv_cache.blocks", False), ("server.port", False), ("tenantsx", False), ("name", False),
    ],
)  # fmt: skip
def test_a_setting_can_change_live_or_needs_a_restart(key: str, live: bool) -> None:
    assert can_change_live(key) is live


def test_changes_go_into_tables_and_follow_the_schema() -> None:
    before = loaded(tenants={"a": {"max_running": 1, "kv_quota": "50%"}, "b": {}}, limits={"n": 2})
    after = loaded(
        tenants={"a": {"max_running": 3, "kv_quota": 5}, "c": {"class": "batch"}},
        kv_cache={"blocks": 9},
    )
    found = [
        (one.key, one.before, one.after, one.live) for one in changes(before.config, after.config)
    ]
    assert found == [
        ("kv_cache.blocks", None, 9, False),
        ("tenants.a.kv_quota.blocks", None, 5, True),
        ("tenants.a.kv_quota.ratio", 0.5, None, True),
        ("tenants.a.max_running", 1, 3, True),
        ("tenants.c.class", None, "batch", True),
        ("limits.n", 2, 16, True),
    ]
    assert changes(before.config, before.config) == []


def test_only_what_can_change_live_is_applied() -> None:
    before = loaded(kv_cache={"blocks": 9}, runtime={"max_queue": 1, "max_batch_size": 4})
    wanted = loaded("new", kv_cache={"blocks": 10}, runtime={"max_queue": 2}, tenants={"a": {}})
    now = applied(before, wanted)
    runtime = now.config.runtime
    assert (now.config.kv_cache.blocks, runtime.max_batch_size, runtime.max_queue) == (9, 4, 2)
    assert list(now.config.tenants) == ["a"]
    assert now.origins["runtime.max_queue"] == "new"
    assert now.origins["kv_cache.blocks"] == "old"
    assert now.origins["limits.n"] == "default"
    assert now.config_hash not in (before.config_hash, wanted.config_hash)
    assert applied(before, loaded("new", **dict(before.document))).config == before.config


def test_every_setting_survives_being_taken_apart() -> None:
    full = loaded(
        server={"allow_networks": ["10.0.0.0/8"]},
        tenants={"a": {"class": "online", "kv_quota": "1MiB"}},
        tenant_defaults={"class": "batch"},
        runtime={"result_store": {"entries": 3}},
    )
    assert applied(full, full).config == full.config
