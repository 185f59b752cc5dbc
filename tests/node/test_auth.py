"""Keys: where they come from, what is refused, and that nothing but their digest is compared."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest
import yaml

from kvops.errors import ConfigError, InvalidApiKey
from kvops.node.auth import AdminToken, TenantSalts, bearer, load_keys


def write_keys(path: Path, rows: object, mode: int = 0o600) -> Path:
    path.write_text(yaml.safe_dump(rows))
    path.chmod(mode)
    return path


def row(name: str, tenant: str = "acme") -> dict[str, str]:
    return {
        "id": name,
        "tenant": tenant,
        "sha256": hashlib.sha256(f"key-{name}".encode()).hexdigest(),
    }


def test_without_keys_everyone_is_the_default_tenant() -> None:
    assert load_keys(None).identify(None).tenant == "default"


def test_keys_of_a_file(tmp_path: Path) -> None:
    ring = load_keys(write_keys(tmp_path / "keys.yaml", [row("a"), row("b", "other")]))
    caller = ring.identify("Bearer key-b")
    assert (caller.tenant, caller.key_id) == ("other", "b")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic key-a", "key-a", "Bearer key-A", "Bearer é"]
)
def test_anything_but_a_known_key_is_refused(tmp_path: Path, header: str | None) -> None:
    ring = load_keys(write_keys(tmp_path / "keys.yaml", [row("a")]))
    with pytest.raises(InvalidApiKey):
        ring.identify(header)


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVOPS_API_KEYS", "one, two")
    assert load_keys(None).identify("Bearer two").tenant == "default"
    with pytest.raises(ConfigError, match="KVOPS_API_KEYS"):
        load_keys(write_keys(tmp_path / "keys.yaml", [row("a")]))


@pytest.mark.parametrize(
    "rows",
    [
        {},
        "x",
        [{"id": "a"}],
        [row("a") | {"extra": "b"}],
        [row("a") | {"sha256": "12"}],
        [row("a") | {"sha256": "z" * 64}],
        [row("a") | {"tenant": 3}],
        [row("a"), row("a")],
    ],
)
def test_a_bad_keys_file_is_refused(tmp_path: Path, rows: object) -> None:
    with pytest.raises(ConfigError):
        load_keys(write_keys(tmp_path / "keys.yaml", rows))


def test_a_keys_file_that_all_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod"):
        load_keys(write_keys(tmp_path / "keys.yaml", [row("a")], mode=0o644))


def test_the_admin_token_is_made_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / "node" / "admin.token"
    AdminToken(file)
    token = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = AdminToken(file)
    assert file.read_text() == token
    assert again.accepts(f"Bearer {token}")
    assert not again.accepts(f"Bearer {token}x")
    assert not again.accepts(None)


def test_salts_differ_by_tenant_and_by_node(tmp_path: Path) -> None:
    one, other = TenantSalts(tmp_path / "a"), TenantSalts(tmp_path / "b")
    assert one.of("x") == TenantSalts(tmp_path / "a").of("x")
    assert len({one.of("x"), one.of("y"), other.of("x")}) == 3


def test_bearer() -> None:
    assert bearer("bearer  abc ") == "abc"
    assert bearer("Bearer") is None


@pytest.mark.parametrize(
    "kept", [b"", b"\n", b"short", b"\xff" * 60, b"a secret with blanks in it " * 3]
)
@pytest.mark.parametrize("kind", [AdminToken, TenantSalts])
def test_a_secret_that_is_cut_or_weak_is_refused(
    tmp_path: Path, kept: bytes, kind: type[AdminToken | TenantSalts]
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(kept)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="43 or more") as caught:
        kind(file)
    assert str(file) in caught.value.hint


def test_a_folder_in_place_of_a_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the secret"):
        AdminToken(tmp_path)


def test_the_hash_of_no_key_is_refused(tmp_path: Path) -> None:
    empty = row("a") | {"sha256": hashlib.sha256(b"").hexdigest()}
    with pytest.raises(ConfigError, match="empty key"):
        load_keys(write_keys(tmp_path / "keys.yaml", [empty]))
