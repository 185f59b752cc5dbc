"""Settings from variables, from files that variables name, and from systemd's credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.config.load import load_config
from kvops.errors import ConfigError


def private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def error() -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None)
    return str(caught.value)


def test_a_variable_names_the_file_of_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = private(tmp_path / "v", "7\n")
    monkeypatch.setenv("KVOPS_RUNTIME__MAX_QUEUE_FILE", str(file))
    loaded = load_config(None)
    assert loaded.config.runtime.max_queue == 7
    assert loaded.origins["runtime.max_queue"] == "environment KVOPS_RUNTIME__MAX_QUEUE_FILE"
    assert load_config(None, {"runtime.max_queue": 9}).config.runtime.max_queue == 9


def test_a_value_from_two_places_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = private(tmp_path / "v", "7")
    monkeypatch.setenv("KVOPS_RUNTIME__MAX_QUEUE_FILE", str(file))
    monkeypatch.setenv("KVOPS_RUNTIME__MAX_QUEUE", "7")
    text = error()
    assert "KVOPS_RUNTIME__MAX_QUEUE and" in text
    assert "KVOPS_RUNTIME__MAX_QUEUE_FILE" in text


def test_a_file_that_cannot_be_trusted_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = private(tmp_path / "v", "7")
    monkeypatch.setenv("KVOPS_RUNTIME__MAX_QUEUE_FILE", str(file))
    file.chmod(0o644)
    assert f"chmod 600 {file}" in error()
    file.unlink()
    assert (
        f"runtime.max_queue (environment KVOPS_RUNTIME__MAX_QUEUE_FILE): cannot read {file}"
        in error()
    )
    file.write_bytes(b"\xff")
    file.chmod(0o600)
    assert "no text" in error()


def test_credentials_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    private(tmp_path / "kvops.runtime.max_queue", "7\n")
    private(tmp_path / "another.services", "x")
    private(tmp_path / "kvops.api_keys", "of another reader")
    loaded = load_config(None)
    assert loaded.config.runtime.max_queue == 7
    assert loaded.origins["runtime.max_queue"] == "credential kvops.runtime.max_queue"
    private(tmp_path / "kvops.runtime.max_queu", "7")
    assert "did you mean runtime.max_queue?" in error()


def test_a_table_is_json_and_a_key_in_one_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_TENANTS", '{"acme": {"max_running": 3}}')
    assert load_config(None).config.tenants["acme"].max_running == 3
    monkeypatch.setenv("KVOPS_TENANTS", '{"acme": {"max_runing": 3}}')
    text = error()
    assert "tenants.acme.max_runing (environment KVOPS_TENANTS) is not a setting" in text
    assert "did you mean max_running?" in text
    monkeypatch.delenv("KVOPS_TENANTS")
    monkeypatch.setenv("KVOPS_TENANTS__ACME__MAX_RUNNING", "3")
    assert "as JSON in KVOPS_TENANTS" in error()


def test_a_secret_of_another_reader_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_ALERT_URL_PAGER", "https://example.org/x")
    load_config(None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: {a: {clas: batch}}", ["tenants.a.clas", "did you mean class?"]),
        ("tenants: {a: {kv_quota: {block: 3}}}", ["did you mean blocks?"]),
        ("alerts: {channels: {a: {url: x}}}", ["alerts.channels.a.url", "url_file"]),
        ("tenants: {a: {zzz: 1}}", ["the keys here are class, max_running"]),
        ("tenant: {}", ["tenant (file", "is not a setting"]),
        ("server: {tsl: {}}", ["server.tsl", "did you mean"]),
        ("runtime: {result_stor: {entries: 1}}", ["did you mean runtime.result_store.entries?"]),
    ],
)
def test_a_misspelt_key_in_a_table_is_named_with_the_nearest(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_empty_sections_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("server:\nruntime: {}\nkv_cache: {blocks: }\n")
    assert load_config(file).config == load_config(None).config


def test_paths_in_tables_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(
        "kv_cache: {shared_prefixes: [a.txt]}\nwarmup: {prefixes: {t: [/b.txt, c.txt]}}\n"
        "alerts: {channels: {ops: {kind: webhook, url_file: u}}, rules_file: r.yaml}\n"
    )
    config = load_config(file).config
    assert config.kv_cache.shared_prefixes == (tmp_path / "a.txt",)
    assert config.warmup.prefixes["t"] == (Path("/b.txt"), tmp_path / "c.txt")
    assert config.alerts.channels["ops"].url_file == tmp_path / "u"
    assert config.alerts.channels["ops"].kind == "webhook"
    assert config.alerts.rules_file == tmp_path / "r.yaml"


def test_a_slip_in_a_variable_that_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_HOEM", "/x")
    assert "did you mean KVOPS_HOME?" in error()
    monkeypatch.delenv("KVOPS_HOEM")
    monkeypatch.setenv("KVOPS_SERVER__API_KEY_FILES", "/x")
    assert "did you mean KVOPS_SERVER__API_KEYS_FILE?" in error()
