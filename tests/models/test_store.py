"""A model in the store is whole, is what its manifest says, and goes only when nobody serves it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from kvops import paths, registry
from kvops.errors import (
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    ModelSourceError,
    ModelUnsupported,
    UsageError,
)
from kvops.models import store
from kvops.models.manifest import Manifest, read_manifest
from kvops.models.pull import pull
from kvops.models.sources import parse_source
from tests.harness import KVOPS
from tests.models.gguf_files import to_gguf
from tests.models.test_checkpoint import change_config, shard
from tests.tiny import make_tiny_model


class Quiet:
    def step(self, what: str, total: int | None) -> None:
        pass

    def advance(self, done: int) -> None:
        pass


def pull_local(path: Path, name: str | None = None, *, link: bool = False) -> tuple[Manifest, bool]:
    return pull(parse_source(str(path), link=link), Quiet(), name=name)


def folder_of(name: str) -> Path:
    return paths.models_dir() / name


def test_a_pulled_folder_is_copied_described_and_found(tiny_model: Path) -> None:
    manifest, fetched = pull_local(tiny_model)
    assert (fetched, manifest.name, manifest.family, manifest.linked) == (
        True,
        "tiny-llama",
        "llama",
        False,
    )
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in manifest.files} == names
    for file in manifest.files:
        content = (tiny_model / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    model = store.resolve("tiny-llama")
    weights = (tiny_model / "model.safetensors").read_bytes()
    assert model.path == folder_of("tiny-llama")
    assert model.revision == manifest.revision == hashlib.sha256(weights).hexdigest()[:12]
    assert [m.name for m in store.list_models()] == ["tiny-llama"]
    assert store.verify("tiny-llama") == []
    assert os.stat(paths.models_dir()).st_mode & 0o777 == 0o700


def test_a_pulled_gguf_resolves_to_its_file(tiny_model: Path, tmp_path: Path) -> None:
    manifest, _ = pull_local(to_gguf(tiny_model, tmp_path / "My Model.gguf"))
    assert manifest.name == "my-model"
    assert store.resolve("my-model").path == folder_of("my-model") / "My Model.gguf"


def test_shards_have_one_revision(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    shard(folder)
    manifest, _ = pull_local(folder)
    assert len([file for file in manifest.files if file.name.endswith(".safetensors")]) == 2
    assert store.resolve(str(folder)).revision == manifest.revision == store.resolve("m").revision


def test_a_path_is_a_model_too(tiny_model: Path) -> None:
    model = store.resolve(str(tiny_model))
    assert (model.name, model.path, model.manifest) == ("tiny-llama", tiny_model.resolve(), None)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nothing", "kvops model list"),
        ("", "kvops model list"),
        ("smollm", "did you mean smollm2-135m?"),
        ("smollm2-135m", "kvops model pull smollm2-135m"),
        ("no/such/path", "give the path"),
        ("../x", "give the path"),
    ],
)
def test_an_unknown_model_says_how_to_get_it(name: str, hint: str) -> None:
    with pytest.raises(ModelNotFound) as raised:
        store.resolve(name)
    assert raised.value.hint.startswith(hint)


def test_only_weights_and_text_enter_the_store(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    for name in (
        "modeling_evil.py",
        "pytorch_model.bin",
        "training.pt",
        "notes.txt",
        "other.safetensors",
    ):
        (folder / name).write_bytes(b"x")
    pull_local(folder)
    stored = {path.name for path in folder_of("m").iterdir()}
    assert stored == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "manifest.json",
    }


def test_pulling_again_checks_and_changes_nothing(tiny_model: Path) -> None:
    first, _ = pull_local(tiny_model)
    second, fetched = pull_local(tiny_model)
    assert (second, fetched) == (first, False)
    (folder_of("tiny-llama") / "config.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match=r"config\.json was changed"):
        pull_local(tiny_model)


def test_a_name_from_another_source_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    pull_local(tiny_model, "mine")
    other = make_tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="taken by a model from") as raised:
        pull_local(other, "mine")
    assert "--name" in raised.value.hint
    assert store.verify("mine") == []


@pytest.mark.parametrize("name", ["../evil", "UPPER", ".hidden", "a/b", "", "x" * 64])
def test_a_name_is_a_plain_file_name(name: str, tiny_model: Path) -> None:
    for use in (
        lambda: pull_local(tiny_model, name or "-"),
        lambda: store.verify(name),
        lambda: store.remove(name),
    ):
        with pytest.raises(UsageError, match="not valid"):
            use()


def test_links_are_not_copies_and_survive_removal(tiny_model: Path, tmp_path: Path) -> None:
    path = to_gguf(tiny_model, tmp_path / "big.gguf")
    manifest, _ = pull_local(path, link=True)
    assert manifest.linked
    assert store.resolve("big").path.is_symlink()
    assert store.verify("big") == []
    store.remove("big")
    assert path.is_file()
    assert store.list_models() == []


@pytest.mark.parametrize("how", ["cut", "unsupported", "no tokenizer"])
def test_a_pull_that_fails_leaves_nothing(how: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    if how == "cut":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "unsupported":
        change_config(folder, architectures=["OtherForCausalLM"])
    else:
        (folder / "tokenizer.json").unlink()
    with pytest.raises((ModelCorrupt, ModelUnsupported)):
        pull_local(folder)
    assert [path.name for path in paths.models_dir().iterdir() if path.is_dir()] == []
    assert store.list_models() == []
    with pytest.raises(ModelNotFound):
        store.resolve("m")


def test_two_pulls_at_once_make_one_model(tiny_model: Path, kvops_home: Path) -> None:
    command = [*KVOPS, "model", "pull", str(tiny_model)]
    env = os.environ | {"KVOPS_HOME": str(kvops_home)}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    both = [subprocess.Popen(command, env=env, **quiet) for _ in range(2)]
    said = sorted(process.communicate(timeout=60)[0].split()[0] for process in both)
    assert said == ["already", "pulled"]
    assert store.verify("tiny-llama") == []


def test_what_a_killed_pull_left_is_no_model_and_is_cleared(tiny_model: Path) -> None:
    left = paths.make_private(paths.models_dir() / ".pull-tiny-llama")
    (left / "model.safetensors").write_bytes(b"half")
    assert store.list_models() == []
    assert store.broken_models() == []
    pull_local(tiny_model)
    assert not left.exists()
    assert store.verify("tiny-llama") == []


def test_a_full_disk_is_an_error_with_its_reason(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own limit on file sizes stands in for the full disk."""
    import resource
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(ModelSourceError, match="cannot be stored: File too large"):
            pull_local(tiny_model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert store.list_models() == []


def test_tampering_is_found_file_by_file(tiny_model: Path) -> None:
    pull_local(tiny_model)
    folder = folder_of("tiny-llama")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer_config.json").unlink()
    (folder / "modeling.py").write_text("")
    faults = {fault.file: fault.reason for fault in store.verify("tiny-llama")}
    assert set(faults) == {"model.safetensors", "tokenizer_config.json", "modeling.py"}
    assert "SHA-256" in faults["model.safetensors"]
    assert "No such file" in faults["tokenizer_config.json"]
    assert "not in the manifest" in faults["modeling.py"]


def test_a_manifest_that_agrees_with_a_bad_file_does_not_help(tiny_model: Path) -> None:
    """Verify repeats the header checks: matching hashes alone are not enough."""
    pull_local(tiny_model)
    folder = folder_of("tiny-llama")
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    manifest = read_manifest(folder)
    assert manifest is not None
    forged = [
        msgspec.structs.replace(
            file, sha256=hashlib.sha256((folder / file.name).read_bytes()).hexdigest()
        )
        for file in manifest.files
    ]
    (folder / "manifest.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest, files=tuple(forged)))
    )
    assert "claims" in store.verify("tiny-llama")[0].reason


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff"])
def test_a_broken_manifest_is_named_and_can_be_removed(content: bytes, tiny_model: Path) -> None:
    pull_local(tiny_model)
    (folder_of("tiny-llama") / "manifest.json").write_bytes(content)
    assert store.list_models() == []
    assert store.broken_models() == ["tiny-llama"]
    with pytest.raises(ModelCorrupt, match="manifest of tiny-llama"):
        store.resolve("tiny-llama")
    store.remove("tiny-llama")
    assert store.broken_models() == []


def test_a_served_model_is_not_removed(tiny_model: Path) -> None:
    pull_local(tiny_model)
    me = psutil.Process()
    record = registry.NodeRecord(
        name="n1", pid=me.pid, pid_created=me.create_time(), url="http://127.0.0.1:1", control_url="http://127.0.0.1:2",
        model="tiny-llama", started_at=time.time(), version="0",
    )  # fmt: skip
    registry.write(record)
    with pytest.raises(UsageError, match="served by the node n1"):
        store.remove("tiny-llama")
    assert store.verify("tiny-llama") == []
    registry.remove("n1")
    store.remove("tiny-llama")
    with pytest.raises(ModelNotFound):
        store.verify("tiny-llama")


def test_a_store_that_others_may_write_is_not_used(tiny_model: Path) -> None:
    pull_local(tiny_model)
    paths.models_dir().chmod(0o777)
    with pytest.raises(ModelError, match="others may write"):
        store.resolve("tiny-llama")
