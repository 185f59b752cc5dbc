"""A node says at start what is known of the quality of its formats, and `auto` follows it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvops.models import store
from kvops.models.catalog import CATALOG
from kvops.models.manifest import FileEntry, Manifest
from kvops.models.store import StoredModel, resolve
from kvops.node.quality import quality_line
from kvops.node.wire import EngineInfo
from tests.harness import run_kvops, start_node
from tests.models.test_store import pull_local
from tests.quality.test_figures import made


@pytest.fixture
def pulled(tiny_model: Path) -> Manifest:
    return pull_local(tiny_model)[0]


def line(model: StoredModel, weights: str = "int8", kv: str = "bfloat16") -> str:
    from kvops.models.checkpoint import open_checkpoint

    info = EngineInfo(
        spec=open_checkpoint(model.path).spec, parameters=1, weights_dtype=weights, kv_dtype=kv,
        device="cpu", max_model_len=512, pool_blocks=32, block_size=16, bytes_per_block=1,
    )  # fmt: skip
    return quality_line(info, model)


def knowing(pulled: Manifest, perplexity: float, margin: float = 0.002) -> StoredModel:
    store.record(pulled, made(perplexity, margin, files_sha256=pulled.digest))
    return resolve(pulled.name)


def test_never_evaluated_has_a_next_step(pulled: Manifest, tiny_model: Path) -> None:
    assert line(resolve("tiny-llama")) == (
        "int8 weights with bfloat16 KV: not evaluated; "
        "next: kvops model eval tiny-llama --weights int8 --kv bfloat16"
    )
    assert "kvops model pull" in line(resolve(str(tiny_model)))
    assert line(resolve("tiny-llama"), "float32", "float32").endswith("exact")


def test_evaluated(pulled: Manifest) -> None:
    good = knowing(pulled, 10.01)
    assert line(good) == (
        "int8 weights with bfloat16 KV: +0.10 % perplexity on 4 096 tokens, "
        "97.0 % the same top token, recall 15 of 15"
    )
    assert "not evaluated" in line(good, kv="int8")
    assert line(knowing(pulled, 10.3)).endswith(
        "more than 1 %: leave model.weights_dtype and kv_cache.dtype to auto"
    )
    assert "inconclusive: kvops model eval" in line(knowing(pulled, 10.1, margin=0.02))


def test_the_catalog_is_named_where_the_figures_are_its_own(pulled: Manifest) -> None:
    entry = CATALOG["smollm2-135m"]
    file = FileEntry(Path(entry.member).name, entry.size, entry.sha256)
    model = resolve(pulled.name)
    shipped = msgspec.structs.replace(pulled, files=(file,))
    assert line(msgspec.structs.replace(model, manifest=shipped)).endswith("says the catalog")


def test_figures_of_other_files_are_none(pulled: Manifest) -> None:
    known = knowing(pulled, 10.01)
    assert known.manifest is not None
    first, *others = known.manifest.files
    changed = msgspec.structs.replace(
        known.manifest, files=(msgspec.structs.replace(first, sha256="0" * 64), *others)
    )
    assert "not evaluated" in line(msgspec.structs.replace(known, manifest=changed))


def test_a_start_tells_and_auto_follows(
    pulled: Manifest, kvops_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, object] = {
        "model": {"name": pulled.name},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1},
    }
    knowing(pulled, 12.0)
    node = start_node(kvops_home, settings, name="careful")
    report = node.log.read_text()
    assert node.stop() == 0
    assert "quality            float32 weights and KV: exact" in report
    assert report.index(" quality ") < report.index(" ready ")
    settings["model"] = {"name": pulled.name, "weights_dtype": "bfloat16"}
    node = start_node(kvops_home, settings, name="untried")
    report = node.log.read_text()
    assert node.stop() == 0
    assert "bfloat16 weights with bfloat16 KV: not evaluated" in report
    command = report.partition("next: kvops ")[2].partition("\n")[0].split()
    done = run_kvops(*command, "--tokens", "256", env={"KVOPS_HOME": str(kvops_home)})
    monkeypatch.setenv("KVOPS_HOME", str(kvops_home))  # start_node took it away
    assert "recorded" in done.stdout, done.stdout + done.stderr
    assert "perplexity on 256 tokens" in line(resolve(pulled.name), "bfloat16")
