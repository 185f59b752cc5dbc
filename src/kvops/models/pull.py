"""Bring a model into the store: fetch, check, hash, write the manifest, and only then give it its name."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from kvops import __version__, paths
from kvops.errors import ModelCorrupt, ModelSourceError, UsageError
from kvops.models import store
from kvops.models.hf_model import weight_files
from kvops.models.manifest import (
    FileEntry,
    Manifest,
    hash_file,
    read_manifest,
    revision_of,
    write_manifest,
)
from kvops.models.sources import Progress, Source


def pull(source: Source, progress: Progress, *, name: str | None = None) -> tuple[Manifest, bool]:
    """The model's manifest, and whether it was fetched now (False: it was there and verifies).

    Raises ModelSourceError, ModelCorrupt, ModelUnsupported, UsageError for a name taken by another source.
    """
    name = name or source.default_name
    store.check_name(name)
    folder = store.store_dir() / name
    with store.only_one(name):
        existing = read_manifest(folder)
        if existing is not None:
            _check_existing(existing, source, progress)
            return existing, False
        return _fetch(source, folder, progress), True


def _check_existing(existing: Manifest, source: Source, progress: Progress) -> None:
    name = existing.name
    if existing.source != source.label:
        raise UsageError(
            f"the name {name} is taken by a model from {existing.source}",
            hint=f"choose another with --name, or kvops model remove {name}",
        )
    progress.step(f"checking {name}", None)
    for fault in store.verify(name):
        raise ModelCorrupt(
            f"{name} is there, but {fault.file} {fault.reason}",
            hint=store.pull_again(existing),
        )


def _fetch(source: Source, folder: Path, progress: Progress) -> Manifest:
    temp = folder.with_name(f".pull-{folder.name}")
    shutil.rmtree(temp, ignore_errors=True)
    paths.make_private(temp)
    try:
        linked = source.fetch(temp, progress)
        manifest = _describe(source, temp, folder.name, linked, progress)
        source.check(manifest.files)
        write_manifest(temp, manifest)
        if folder.exists():
            raise ModelCorrupt(
                f"{folder.name} is there without a manifest",
                hint=f"kvops model remove {folder.name}",
            )
        temp.rename(folder)
        paths.fsync_folder(folder.parent)
    except OSError as error:
        raise ModelSourceError(
            f"{source.label} cannot be stored: {error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return manifest


def _describe(source: Source, temp: Path, name: str, linked: bool, progress: Progress) -> Manifest:
    found = sorted(path for path in temp.iterdir())
    ggufs = [path.name for path in found if path.suffix == ".gguf"]
    model = temp / ggufs[0] if ggufs else temp
    progress.step("checking the model", None)
    family, parameters = store.open_model(model)
    progress.step("hashing", sum(path.stat().st_size for path in found))
    files = {path.name: _hash_durable(path, progress) for path in found}
    weights = ggufs or [path.name for path in weight_files(temp)]
    return Manifest(
        name=name,
        source=source.label,
        revision=revision_of([files[weight] for weight in weights]),
        family=family,
        parameters=parameters,
        weights=ggufs[0] if ggufs else None,
        files=tuple(files.values()),
        linked=linked,
        pulled_at=time.time(),
        kvops_version=__version__,
    )


def _hash_durable(path: Path, progress: Progress) -> FileEntry:
    """The manifest must not outlive its files over a power cut."""
    entry = hash_file(path, progress.advance)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return entry
