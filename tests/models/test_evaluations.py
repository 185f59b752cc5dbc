"""Evaluations live in the manifest of the very files they were made of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvops import paths
from kvops.errors import ModelError
from kvops.models import store
from kvops.models.catalog import CATALOG
from kvops.models.manifest import FileEntry, Manifest, read_manifest, write_manifest
from tests.models.test_store import folder_of, pull_local
from tests.quality.test_figures import made
from tests.tiny import make_tiny_model


@pytest.fixture
def pulled(tiny_model: Path) -> Manifest:
    return pull_local(tiny_model)[0]


def test_a_record_survives_and_replaces_the_older_one_of_its_kind(
    pulled: Manifest, tiny_model: Path
) -> None:
    first, other = (made(10.1, kv=kv, files_sha256=pulled.digest) for kv in ("bfloat16", "int8"))
    again = made(10.2, files_sha256=pulled.digest)
    for one in (first, other, again):
        store.record(pulled, one)
    manifest = store.pulled(pulled.name)
    assert store.evaluations_of(manifest) == (other, again)
    assert msgspec.structs.replace(manifest, evaluations=()) == pulled
    assert store.verify(pulled.name) == []
    assert pull_local(tiny_model) == (manifest, False)
    assert [path.name for path in paths.models_dir().iterdir()] == [pulled.name]


def test_a_manifest_from_before_there_were_evaluations_is_read(pulled: Manifest) -> None:
    path = folder_of(pulled.name) / "manifest.json"
    fields = msgspec.json.decode(path.read_bytes())
    del fields["evaluations"]
    path.write_bytes(msgspec.json.encode(fields))
    assert store.pulled(pulled.name) == pulled


def test_other_files_have_no_part_in_it(pulled: Manifest, tmp_path: Path) -> None:
    store.record(pulled, made(files_sha256=pulled.digest))
    old = store.pulled(pulled.name)
    store.remove(pulled.name)
    with pytest.raises(ModelError, match="removed or replaced"):
        store.record(old, made(files_sha256=old.digest))
    assert not folder_of(pulled.name).exists()
    replaced, _ = pull_local(make_tiny_model(tmp_path / "tiny-llama", seed=1))
    assert (replaced.name, replaced.evaluations) == (pulled.name, ())
    with pytest.raises(ModelError, match="removed or replaced"):
        store.record(old, made(files_sha256=old.digest))
    assert store.pulled(pulled.name) == replaced


def test_a_manifest_whose_files_changed_forgets_at_the_next_record(pulled: Manifest) -> None:
    store.record(pulled, made(files_sha256=pulled.digest))
    manifest = store.pulled(pulled.name)
    first, *others = manifest.files
    changed = msgspec.structs.replace(
        manifest, files=(FileEntry(first.name, first.size, "0" * 64), *others)
    )
    assert store.evaluations_of(changed) == ()
    write_manifest(folder_of(pulled.name), changed)
    fresh = made(kv="int8", files_sha256=changed.digest)
    store.record(changed, fresh)
    kept = read_manifest(folder_of(pulled.name))
    assert kept is not None
    assert kept.evaluations == (fresh,)


def test_the_digest_is_of_names_and_contents_in_any_order(pulled: Manifest) -> None:
    turned = msgspec.structs.replace(pulled, files=tuple(reversed(pulled.files)))
    assert turned.digest == pulled.digest
    first, *others = pulled.files
    renamed = FileEntry("other.json", first.size, first.sha256)
    assert msgspec.structs.replace(pulled, files=(renamed, *others)).digest != pulled.digest


def test_the_catalog_knows_its_own_file(pulled: Manifest) -> None:
    entry = CATALOG["smollm2-135m"]
    file = FileEntry(Path(entry.member).name, entry.size, entry.sha256)
    manifest = msgspec.structs.replace(pulled, name=entry.name, files=(file,))
    known = store.evaluations_of(manifest)
    assert known == entry.evaluations
    assert {(one.weights, one.kv) for one in known} >= {("int8", "bfloat16"), ("int8", "int8")}
    assert all(one.verdict == "within" for one in known)
    own = made(10.3, files_sha256=manifest.digest)
    measured_here = msgspec.structs.replace(manifest, evaluations=(own,))
    assert store.evaluations_of(measured_here)[0] is own
    assert store.evaluations_of(pulled) == ()
