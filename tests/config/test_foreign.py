"""Settings that come from other servers and guides: each is taken, or answered with the name and unit it has here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvops.config import foreign
from kvops.config.keys import leaf_keys
from kvops.config.load import check_document, load_config, load_document
from kvops.errors import ConfigError
from kvops.node.check import run_checks

LONG_CONTEXT = """
server:
  host: 0.0.0.0
  port: 8000
model:
  name: my-llm
  precision: bf16
  max_context_length: 32768
kv_cache:
  memory_fraction: 0.45
  quantization: none
runtime:
  max_batch_size: 32
  max_concurrent_requests: 64
  request_timeout_seconds: 120
gateway:
  rate_limit_per_second: 100
"""
KV_CACHE = """
service:
  max_concurrency: 32
  max_context_length: 8192
  cache_reserve_ratio: 0.7
  batch_window_ms: 20
  request_timeout_ms: 60000
"""


def said(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        check_document(yaml.safe_load(text), "file node.yaml")
    return f"{refused.value.message}\n{refused.value.hint}"


def test_the_sample_of_a_guide_to_long_contexts() -> None:
    told = said(LONG_CONTEXT)
    assert "4 settings are not valid" in told
    for words in (
        "model.precision (file node.yaml) is not a setting; did you mean model.weights_dtype? bf16",
        "kv_cache.quantization (file node.yaml) is not a setting; did you mean kv_cache.dtype? none is auto",
        "did you mean runtime.request_timeout? write 120 seconds as 120s",
        "gateway.rate_limit_per_second (file node.yaml) is not a setting; a rate is the gateway's",
    ):
        assert words in told


def test_the_sample_of_a_guide_to_the_kv_cache() -> None:
    told = said(KV_CACHE)
    for words in (
        "service.max_concurrency (file node.yaml) is not a setting; did you mean runtime.max_concurrent_requests?",
        "did you mean model.max_context_length?",
        "did you mean kv_cache.memory_fraction? a share of what weights and a step leave free",
        "did you mean runtime.batch_window? write 20 milliseconds as 20ms",
        "did you mean runtime.request_timeout? write 60000 milliseconds as 60s",
    ):
        assert words in told


def test_both_samples_with_the_names_they_have_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_API_KEYS", "k")
    document = {
        "server": {"host": "0.0.0.0", "port": 8000},
        "model": {"name": "my-llm", "weights_dtype": "bfloat16", "max_context_length": 32768},
        "kv_cache": {"memory_fraction": 0.45, "dtype": "auto"},
        "runtime": {
            "max_batch_size": 32, "max_concurrent_requests": 64, "request_timeout": "120s",
            "batch_window_ms": 20,
        },
    }  # fmt: skip
    runtime = load_document(document, "file node.yaml").config.runtime
    assert (runtime.max_concurrent_requests, runtime.request_timeout) == (64, 120)
    assert runtime.batch_window == pytest.approx(0.02)


def test_every_name_leads_to_a_setting_and_hides_none() -> None:
    for name, (ours, _) in foreign.NAMES.items():
        assert ours in leaf_keys(), name
    own = {key.rpartition(".")[2] for key in leaf_keys()}
    assert (foreign.NAMES.keys() | foreign.NOWHERE.keys()) & own == {"dtype"}


def test_dtype_in_the_wrong_place_leads_to_the_weights() -> None:
    assert "did you mean model.weights_dtype? for keys" in said("model: {dtype: int8}")


def test_a_variable_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_RUNTIME__REQUEST_TIMEOUT_MS", "60000")
    with pytest.raises(ConfigError) as refused:
        load_config(None)
    assert refused.value.hint == (
        "did you mean KVOPS_RUNTIME__REQUEST_TIMEOUT? write 60000 milliseconds as 60s"
    )


@pytest.mark.parametrize(
    ("field", "words"),
    [("concurrency", "max_running?"), ("priority", "class?"), ("keys", "kvops keys create")],
)
def test_names_of_a_tenant(field: str, words: str) -> None:
    assert words in said(f"tenants: {{acme: {{{field}: 1}}}}")
    assert words in said(f"tenant_defaults: {{{field}: 1}}")


@pytest.mark.parametrize(("given", "seconds"), [(20, 0.02), (2.5, 0.0025), ("20ms", 0.02), (0, 0)])
def test_a_window_in_milliseconds(given: object, seconds: float) -> None:
    loaded = load_document({"runtime": {"batch_window_ms": given}}, "file x")
    assert loaded.config.runtime.batch_window == pytest.approx(seconds)
    assert loaded.origins["runtime.batch_window"] == "file x"


@pytest.mark.parametrize("given", [True, "soon", 10_001, -1, [20]])
def test_a_window_that_is_none(given: object) -> None:
    for check in (check_document, load_document):
        with pytest.raises(ConfigError, match=r"runtime\.batch_window = "):
            check({"runtime": {"batch_window_ms": given}}, "file x")


def test_a_window_in_both_spellings_is_a_contradiction() -> None:
    for check in (check_document, load_document):
        with pytest.raises(ConfigError, match="are the same setting"):
            check({"runtime": {"batch_window_ms": 20, "batch_window": "20ms"}}, "file x")


@pytest.mark.parametrize(
    "given", ["vllm", "vLLM", {"kind": "vllm", "args": ["--tp", "2"]}, {"args": []}, 3, None]
)
def test_another_engine_is_told_how_it_goes(given: object) -> None:
    with pytest.raises(ConfigError) as refused:
        check_document({"engine": given}, "file x")
    assert "starts no engine but its own, builtin" in refused.value.message
    assert "kvops verify --node http://HOST:PORT" in refused.value.hint


def test_the_engine_of_this_version() -> None:
    assert load_document({"engine": "builtin"}, "file x").config.engine == "builtin"


def test_a_version_that_is_not_the_model(tiny_model: Path, kvops_home: Path) -> None:
    from kvops.models.store import resolve

    revision = resolve(str(tiny_model)).revision
    for version, status in ((revision, "pass"), (revision[:7], "pass"), ("0" * 12, "fail")):
        document = {
            "model": {"name": str(tiny_model), "version": version},
            "kv_cache": {"blocks": 64},
        }
        config = load_document(document, "file x").config
        (found,) = [one for one in run_checks(config) if one.check == "model"]
        assert found.status == status, found
    assert f"is at revision {revision}" in found.detail
    assert f"model.version: '{revision}'" in found.remedy
    assert "in quotes: 7 to 64 hex digits" in said("model: {version: 1.0}")
