"""What the store remembers of a pulled model: where it came from, each file's size and SHA-256, what was evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kvops import paths
from kvops.errors import ModelCorrupt
from kvops.models.evaluation import Evaluation

MANIFEST = "manifest.json"
_CHUNK = 2**20


class FileEntry(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    revision: str
    """First 12 hex digits of the weights' SHA-256."""
    family: str
    parameters: int
    weights: str | None
    """The .gguf file, or None for a folder in HF layout."""
    files: tuple[FileEntry, ...]
    linked: bool
    """The files are links to where they were pulled from."""
    pulled_at: float
    """Unix seconds."""
    kvops_version: str
    evaluations: tuple[Evaluation, ...] = ()
    """Made on this machine. Only those whose `files_sha256` is the `digest` are of these files."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over the files' SHA-256 and names: tokenizer and template, not the weights alone."""
        return _digest_of(self.files)


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none. Raises ModelCorrupt for one that cannot be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ModelCorrupt(
            f"the manifest of {folder.name} cannot be read: {error}",
            hint=f"kvops model remove {folder.name}, then pull it again",
        ) from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    paths.write_atomic(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


def hash_file(path: Path, advance: Callable[[int], None] = lambda _: None) -> FileEntry:
    """Size and SHA-256 of the file, in one pass; `advance` is told the bytes done. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
    return FileEntry(path.name, size, digest.hexdigest())


def revision_of(weights: list[FileEntry]) -> str:
    """Of one file its SHA-256, of shards the SHA-256 over theirs by name; the first 12 hex digits."""
    whole = weights[0].sha256 if len(weights) == 1 else _digest_of(weights)
    return whole[:12]


def _digest_of(files: Iterable[FileEntry]) -> str:
    listing = "".join(
        f"{entry.sha256}  {entry.name}\n" for entry in sorted(files, key=lambda e: e.name)
    )
    return hashlib.sha256(listing.encode()).hexdigest()
