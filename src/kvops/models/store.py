"""The models of this machine: `models_dir()/<name>/` with the files and a manifest.

A folder with a manifest is a whole model: pulls build elsewhere and rename, removals rename first.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from kvops import paths, registry
from kvops.errors import KvopsError, ModelCorrupt, ModelError, UsageError
from kvops.models.catalog import CATALOG
from kvops.models.evaluation import Evaluation
from kvops.models.hf_model import weight_files
from kvops.models.manifest import (
    MANIFEST,
    Manifest,
    hash_file,
    read_manifest,
    revision_of,
    write_manifest,
)
from kvops.models.missing import not_pulled

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    path: Path
    """A .gguf file, or a folder in HF layout."""
    revision: str
    """First 12 hex digits of the weights' SHA-256."""
    source: str
    manifest: Manifest | None = None
    """None for a model that lies outside the store."""


class Fault(msgspec.Struct, frozen=True):
    file: str
    reason: str


def resolve(name_or_path: str) -> StoredModel:
    """A pulled model by its name, else a model by its path (whose weights are hashed now).

    Raises ModelNotFound, ModelCorrupt.
    """
    if _NAME.fullmatch(name_or_path):
        manifest = read_manifest(store_dir() / name_or_path)
        if manifest is not None:
            return _stored(manifest)
    path = Path(name_or_path).expanduser()
    if name_or_path and (path.is_dir() or path.is_file()):
        return _outside(path.resolve())
    raise not_pulled(name_or_path, _names())


def list_models() -> list[StoredModel]:
    """The pulled models that can be read, by name."""
    manifests = (_readable_manifest(folder) for folder in _folders())
    return [_stored(manifest) for manifest in manifests if manifest is not None]


def broken_models() -> list[str]:
    """Names of folders in the store that hold no readable manifest."""
    return [folder.name for folder in _folders() if _readable_manifest(folder) is None]


def verify(name: str) -> list[Fault]:
    """Hash every file again, read the headers again; what is wrong, file by file. Raises ModelNotFound."""
    model = pulled(name)
    folder = store_dir() / name
    faults = [
        fault for entry in model.files if (fault := _compare(folder, entry.name, entry.sha256))
    ]
    known = {entry.name for entry in model.files} | {MANIFEST}
    faults += [
        Fault(p.name, "is not in the manifest")
        for p in sorted(folder.iterdir())
        if p.name not in known
    ]
    return faults or _open_all(_stored(model))


def check_unchanged(manifest: Manifest, advance: Callable[[int], None] = lambda _: None) -> None:
    """Hash every file; `advance` is told the bytes done. Raises ModelCorrupt with the first that was changed."""
    for entry in manifest.files:
        fault = _compare(store_dir() / manifest.name, entry.name, entry.sha256, advance)
        if fault is not None:
            raise ModelCorrupt(
                f"{manifest.name}: {fault.file} {fault.reason}", hint=pull_again(manifest)
            )


def pull_again(manifest: Manifest) -> str:
    """The commands that replace a damaged model by a whole one."""
    source = manifest.source.removeprefix("catalog:")
    name = manifest.name
    return f"kvops model remove {name}, then kvops model pull {source} --name {name}"


def remove(name: str) -> None:
    """Delete a pulled model; links are deleted, not what they point to. Raises as `check_removable`."""
    folder = check_removable(name)
    doomed = folder.with_name(f".removed-{name}-{os.getpid()}")
    with only_one(name):
        folder.rename(doomed)
    shutil.rmtree(doomed)


def check_removable(name: str) -> Path:
    """The model's folder. Raises ModelNotFound, UsageError while a node of this machine serves the model."""
    check_name(name)
    folder = store_dir() / name
    if not folder.is_dir():
        raise not_pulled(name, _names())
    for node in registry.running():
        if node.model == name:
            raise UsageError(
                f"{name} is served by the node {node.name}",
                hint=f"kvops node stop --node {node.name}",
            )
    return folder


def evaluations_of(manifest: Manifest) -> tuple[Evaluation, ...]:
    """What is known of these very files: evaluated on this machine, and after those what the catalog says."""
    known = (
        *manifest.evaluations,
        *(one for model in CATALOG.values() for one in model.evaluations),
    )
    return tuple(one for one in known if one.files_sha256 == manifest.digest)


def record(evaluated: Manifest, evaluation: Evaluation) -> None:
    """Keep an evaluation in the manifest, in the place of an older one of the same formats and device.

    Raises ModelError when the model is gone or was replaced since `evaluated` was read.
    """
    name, kind = evaluated.name, (evaluation.weights, evaluation.kv, evaluation.device)
    with only_one(name):
        manifest = read_manifest(store_dir() / name)
        if manifest is None or manifest.digest != evaluated.digest:
            raise ModelError(
                f"{name} was removed or replaced while it was evaluated",
                hint=f"kvops model eval {name} evaluates what is there now",
            )
        others = tuple(
            one
            for one in manifest.evaluations
            if one.files_sha256 == manifest.digest and (one.weights, one.kv, one.device) != kind
        )
        kept = msgspec.structs.replace(manifest, evaluations=(*others, evaluation))
        write_manifest(store_dir() / name, kept)


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """One change of a model at a time: who comes second waits, then sees what the first has made."""
    path = store_dir() / f".{name}.lock"
    with _locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> IO[str]:
    """The open and locked file at `path`: one that was removed while we waited for it is another's past."""
    while True:
        lock = path.open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()


def pulled(name: str) -> Manifest:
    """The manifest of a pulled model. Raises ModelNotFound, ModelCorrupt."""
    check_name(name)
    manifest = read_manifest(store_dir() / name)
    if manifest is None:
        raise not_pulled(name, _names())
    return manifest


def check_name(name: str) -> None:
    """Raises UsageError for a name that is no plain lower-case file name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"model name {name!r} is not valid",
            hint="use lower-case letters, digits, . _ - (at most 63)",
        )


def store_dir() -> Path:
    """The store's folder, made if it is missing. Raises ModelError when others may write into it."""
    folder = paths.make_private(paths.models_dir())
    state = folder.stat()
    if state.st_mode & 0o022 or state.st_uid not in (os.getuid(), 0):
        raise ModelError(
            f"others may write into the model store {folder}", hint=f"chmod go-w {folder}"
        )
    return folder


def _stored(manifest: Manifest) -> StoredModel:
    folder = store_dir() / manifest.name
    path = folder / manifest.weights if manifest.weights else folder
    return StoredModel(
        name=manifest.name,
        path=path,
        revision=manifest.revision,
        source=manifest.source,
        manifest=manifest,
    )


def _outside(path: Path) -> StoredModel:
    files = weight_files(path) if path.is_dir() else [path]
    revision = revision_of([hash_file(file) for file in files])
    name = path.name if path.is_dir() else path.stem
    return StoredModel(name=name, path=path, revision=revision, source=str(path))


def _names() -> list[str]:
    return [folder.name for folder in _folders()]


def _folders() -> list[Path]:
    return sorted(
        folder
        for folder in store_dir().iterdir()
        if folder.is_dir() and _NAME.fullmatch(folder.name)
    )


def _readable_manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except KvopsError:
        return None


def _compare(
    folder: Path, name: str, sha256: str, advance: Callable[[int], None] = lambda _: None
) -> Fault | None:
    try:
        found = hash_file(folder / name, advance)
    except OSError as error:
        return Fault(name, f"cannot be read: {error.strerror}")
    return (
        None
        if found.sha256 == sha256
        else Fault(name, "was changed since it was pulled (SHA-256 differs)")
    )


def _open_all(model: StoredModel) -> list[Fault]:
    try:
        open_model(model.path)
    except KvopsError as error:
        return [Fault(model.path.name, error.message)]
    return []


def open_model(path: Path) -> tuple[str, int]:
    """Family and parameter count, after every check that serving makes. Raises ModelCorrupt, ModelUnsupported."""
    from kvops.models.chat import load_chat_template
    from kvops.models.checkpoint import open_checkpoint
    from kvops.models.tokenizer import load_tokenizer

    checkpoint = open_checkpoint(path)
    load_tokenizer(path)
    load_chat_template(path)
    return checkpoint.spec.family, checkpoint.parameters
