"""Configuration: precedence and origin of every value, and errors that name the key and the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kvops.config.environment import NO_SETTINGS
from kvops.config.keys import leaf_keys
from kvops.config.load import check_document, load_config, read_document
from kvops.config.schema import NodeConfig
from kvops.config.wanted import wanted
from kvops.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    loaded = load_config(None, {})
    assert loaded.config == NodeConfig()
    assert set(loaded.origins.values()) == {"default"}
    assert list(loaded.origins) == leaf_keys()


def test_the_example_shows_every_setting_and_its_default() -> None:
    example = Path(__file__).parents[2] / "configs" / "node.yaml"
    assert load_config(example).config == NodeConfig()
    uncommented = re.sub(r"(?m)^( *)# ( *[a-z_]+:)", r"\1\2", example.read_text())
    shown = yaml.safe_load(uncommented)

    def is_in(document: object, key: str) -> bool:
        name, _, rest = key.partition(".")
        found = isinstance(document, dict) and name in document
        return found and (not rest or is_in(document[name], rest))

    assert [key for key in leaf_keys() if not is_in(shown, key)] == []
    del shown["kv_cache"]["bytes"], shown["kv_cache"]["memory_fraction"]
    NodeConfig.model_validate(shown)


def test_precedence_and_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "server: {port: 1, control_port: 1, host: 127.0.0.2}\nname: filed")
    monkeypatch.setenv("KVOPS_SERVER__PORT", "2")
    monkeypatch.setenv("KVOPS_SERVER__CONTROL_PORT", "2")
    loaded = load_config(file, {"server.port": 3, "model.name": None})
    server = loaded.config.server
    assert (server.port, server.control_port, server.host) == (3, 2, "127.0.0.2")
    assert loaded.origins["server.port"] == "command line"
    assert loaded.origins["server.control_port"] == "environment KVOPS_SERVER__CONTROL_PORT"
    assert loaded.origins["server.host"] == f"file {file}"
    assert loaded.origins["model.name"] == "default"
    assert loaded.config.name == "filed"


def test_units(tmp_path: Path) -> None:
    file = write(
        tmp_path, "kv_cache: {bytes: 2GiB}\nruntime: {queue_timeout: 20ms, request_timeout: 5m}"
    )
    config = load_config(file, {}).config
    assert (
        config.kv_cache.bytes,
        config.runtime.queue_timeout,
        config.runtime.request_timeout,
    ) == (2**31, 0.02, 300)


@pytest.mark.parametrize(
    ("text", "named", "near"),
    [
        ("server: {prot: 1}", "server.prot", "server.port"),
        ("runtime: {max_batchsize: 1}", "runtime.max_batchsize", "runtime.max_batch_size"),
        ("max_queue: 1", "max_queue", "runtime.max_queue"),
        ("serverr: {port: 1}", "serverr.port", "server.port"),
        ("nonsense: 1", "nonsense", "kv_cache"),
        ("server: 5", "server", "section"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(
    tmp_path: Path, text: str, named: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), {})
    assert named in caught.value.message
    assert near in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runtime: {max_batch_size: 0}", ["runtime.max_batch_size", "0", "1"]),
        ("runtime: {queue_timeout: soon}", ["runtime.queue_timeout", "soon", "20ms"]),
        ("runtime: {over_length: cut}", ["runtime.over_length", "cut", "truncate_head"]),
        ("server: {port: 70000}", ["server.port", "70000", "65535"]),
        ("name: Über", ["name", "Über"]),
        ("kv_cache: {block_size: 17}", ["kv_cache.block_size", "17", "16"]),
    ],
)
def test_a_bad_value_is_named_with_its_bound(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), {})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name: a\nname: b", "twice"),
        ("server: {port: 1, port: 2}", "twice"),
        ("a: &a [x, x]\nb: [*a, *a]", "alias"),
        ("- 1", "mapping"),
        ("{", "not valid YAML"),
        ("!!python/object/apply:os.system [echo]", "not valid YAML"),
        ("[" * 5000, "cannot be read"),
        ("x" * (2**20 + 1), "bound"),
    ],
)
def test_a_file_that_plays_tricks_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), {})
    assert word in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml", {})


def test_an_unknown_variable_is_an_error_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVOPS_ADMIN_TOKEN", "x")
    load_config(None, {})
    monkeypatch.setenv("KVOPS_SERVER__PROT", "1")
    with pytest.raises(ConfigError, match="KVOPS_SERVER__PORT"):
        load_config(None, {})


def test_an_open_bind_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="API keys"):
        load_config(None, {"server.host": "0.0.0.0"})
    monkeypatch.setenv("KVOPS_API_KEYS", "secret")
    assert load_config(None, {"server.host": "0.0.0.0"}).config.server.host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert load_config(None, {"server.host": host}).config.server.host == host


def test_the_hash_follows_the_values_not_their_origin(tmp_path: Path) -> None:
    file = write(tmp_path, "name: a")
    assert load_config(file, {}).config_hash == load_config(None, {"name": "a"}).config_hash
    assert load_config(file, {}).config_hash != load_config(None, {}).config_hash


def test_the_sample_file_is_valid() -> None:
    sample = Path(__file__).parents[2] / "configs" / "node.yaml"
    loaded = load_config(sample, {})
    given = {f"{section}.{key}" for section, keys in yaml.safe_load(sample.read_text()).items()
             if isinstance(keys, dict) for key in keys}  # fmt: skip
    assert given <= set(leaf_keys())
    assert loaded.config.runtime == NodeConfig().runtime
    assert loaded.config.limits == NodeConfig().limits


def error_of(file: Path | None, overrides: dict[str, object] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    assert caught.value.hint
    return caught.value


def test_every_fault_is_said_at_once_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "runtime: {max_batch_size: 0, queue_timeout: soon}\nserver: {prot: 1}")
    monkeypatch.setenv("KVOPS_SERVER__PORT", "x")
    text = error_of(file, {"name": "bad name/.."}).message
    for words in (
        f"runtime.max_batch_size = 0 (file {file}): expected a whole number from 1 to 1024",
        f"runtime.queue_timeout = 'soon' (file {file}): expected a time such as 20ms",
        f"server.prot (file {file}) is not a setting; did you mean server.port?",
        "server.port = 'x' (environment KVOPS_SERVER__PORT): expected a whole number from 0 to 65535",
        "name = 'bad name/..' (command line): expected lower-case letters",
    ):
        assert words in text


@pytest.mark.parametrize("key", [key for key in leaf_keys() if wanted(key) != "text"])
def test_no_setting_answers_in_the_words_of_a_library(key: str) -> None:
    text = str(error_of(None, {key: "\0"}))
    assert key in text
    assert "command line" in text
    assert not any(
        word in text for word in ("Input", "String should", "pydantic", "unable to parse")
    )


def test_a_yaml_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, "name: a\nserver: {port: 1\n")
    text = error_of(file).message
    assert f"{file}, line 3" in text
    assert "byte string" not in text


def test_two_pool_sizes_of_one_origin_contradict(tmp_path: Path) -> None:
    file = write(tmp_path, "kv_cache: {bytes: 1GiB, blocks: 20}")
    text = error_of(file).message
    assert "kv_cache.blocks = 20 and kv_cache.bytes = '1GiB'" in text
    assert str(file) in text


def test_a_pool_size_replaces_that_of_a_weaker_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "kv_cache: {blocks: 20}")
    monkeypatch.setenv("KVOPS_KV_CACHE__BYTES", "1MiB")
    loaded = load_config(file, {})
    assert (loaded.config.kv_cache.blocks, loaded.config.kv_cache.bytes) == (None, 2**20)
    assert loaded.origins["kv_cache.blocks"] == "default"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("KVOPS_PORT", "KVOPS_SERVER__PORT"),
        ("KVOPS_SERVER_PORT", "KVOPS_SERVER__PORT"),
        ("KVOPS_KV_CACHE_BLOCKS", "KVOPS_KV_CACHE__BLOCKS"),
        ("KVOPS_ZZZ", "unset it"),
    ],
)
def test_a_variable_that_is_no_setting_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "9")
    error = error_of(None)
    assert name in error.message
    assert near in error.hint


def test_variables_that_are_read_elsewhere_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NO_SETTINGS - {"KVOPS_API_KEYS_FILE"}:
        monkeypatch.setenv(name, "x")
    assert load_config(None).config == NodeConfig()


def test_a_path_in_a_file_is_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "keys.yaml").write_text("[]")
    text = "server: {api_keys_file: keys.yaml}\nmodel: {name: ./tiny.gguf}"
    file = write(folder, text)
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("etc/node.yaml")).config
    assert config.server.api_keys_file == folder / "keys.yaml"
    assert config.model.name == str(folder / "tiny.gguf")
    (folder / "keys.yaml").unlink()
    assert str(folder / "keys.yaml") in error_of(file).message


@pytest.mark.parametrize("device", ["tpu", "cuda:x", ""])
def test_a_device_that_cannot_be_is_refused_by_name(device: str) -> None:
    assert "auto, cpu, cuda" in error_of(None, {"runtime.device": device}).message


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("2020-01-01", "date"),
        ("2020-01-01T00:00:00Z", "datetime"),
        ("!!set {a, b}", "set"),
        ("!!binary aGk=", "bytes"),
        (".nan", "nan"),
        ("-.inf", "-inf"),
        ("0x1" + "0" * 5000, "64 bits"),
        (r'"\uD800"', "Unicode"),
        ("[1, {2: 3}]", "int"),
    ],
)
def test_what_is_no_json_is_named(tmp_path: Path, value: str, named: str) -> None:
    file = write(tmp_path, f"alerts: {{rules: [{{name: A, for: {value}}}]}}")
    for read in (load_config, lambda file: check_document(read_document(file), f"file {file}")):
        with pytest.raises(ConfigError) as caught:
            read(file)
        assert caught.value.message.startswith("alerts.rules.0.for")
        assert named in caught.value.message
        assert str(file) in caught.value.hint


def test_a_set_where_the_schema_takes_a_list(tmp_path: Path) -> None:
    file = write(tmp_path, "alerts: {disabled: !!set {a, b}}")
    with pytest.raises(ConfigError, match=r"alerts\.disabled .*set"):
        check_document(read_document(file), "file")


PATHS = [
    ("server.api_keys_file", "server: {api_keys_file: %s}"),
    ("server.tls.cert", "server: {tls: {cert: %s, key: k}}"),
    ("server.tls.key", "server: {tls: {cert: c, key: %s}}"),
    ("alerts.rules_file", "alerts: {rules_file: %s}"),
    ("alerts.channels.pager.url_file", "alerts: {channels: {pager: {url_file: %s}}}"),
    ("kv_cache.shared_prefixes.0", "kv_cache: {shared_prefixes: [%s]}"),
    ("warmup.prefixes.acme.0", "warmup: {prefixes: {acme: [%s]}}"),
    ("model.name", "model: {name: %s}"),
    ("server.host", "server: {host: %s}"),
]


@pytest.mark.parametrize(("key", "text"), PATHS)
@pytest.mark.parametrize("value", [r'"/a\0b"', r'"~\0/b"', '""'])
def test_a_nul_and_an_empty_path_are_refused_by_name(
    tmp_path: Path, key: str, text: str, value: str
) -> None:
    file = write(tmp_path, text % value)
    with pytest.raises(ConfigError) as caught:
        check_document(read_document(file), f"file {file}")
    assert caught.value.message.startswith(f"{key} = ")
    assert "not empty and without a NUL" in caught.value.message


def test_a_home_of_nobody(tmp_path: Path) -> None:
    file = write(tmp_path, "alerts: {rules_file: ~no-such-user/rules.yaml}")
    with pytest.raises(ConfigError, match="~no-such-user") as caught:
        load_config(file)
    assert "without ~" in caught.value.hint
