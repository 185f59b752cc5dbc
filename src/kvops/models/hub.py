"""Models from the Hugging Face hub: safetensors, JSON and the chat template, each checked against the hub's hash.

HF_ENDPOINT and HF_TOKEN are honoured, as by the hub's own client.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kvops import paths
from kvops.errors import (
    KvopsError,
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    ModelSourceError,
    ModelUnsupported,
    UsageError,
)
from kvops.models.manifest import FileEntry
from kvops.models.sources import SHARD, TEXT_FILES, Progress, check_hash, name_from

_REFERENCE = re.compile(
    r"hf:([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([A-Za-z0-9][\w./-]{0,127}))?"
)
_SPARE_BYTES = 512 * 2**20


class HubSource:
    """`hf:ORG/NAME[@REV]`. An interrupted download is taken up where it ended."""

    def __init__(self, reference: str) -> None:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise UsageError(
                f"{reference[:80]!r} is no hub reference",
                hint="use hf:ORG/NAME or hf:ORG/NAME@REVISION",
            )
        self._repository, self._revision = match[1], match[2]
        self.label = reference
        self.default_name = name_from(match[1].split("/")[1])
        self._hashes: dict[str, str] = {}

    def fetch(self, into: Path, progress: Progress) -> bool:
        try:
            self._fetch(into, progress)
        except KvopsError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise _not_there(self.label, error) from error
        except (
            Exception
        ) as error:  # the transport under the hub's client, and its errors, change with its version
            raise _unreachable(self.label, error) from error
        return False

    def check(self, files: Iterable[FileEntry]) -> None:
        for file in files:
            if file.name in self._hashes:
                check_hash(file, self._hashes[file.name], self.label)

    def _fetch(self, into: Path, progress: Progress) -> None:
        progress.step(f"looking up {self.label}", None)
        info = HfApi().model_info(self._repository, revision=self._revision, files_metadata=True)
        wanted = [file for file in info.siblings or [] if _wanted(file.rfilename)]
        self._check_listing(wanted, into)
        cache = paths.make_private(
            paths.cache_dir() / "hub" / f"{name_from(self._repository)}-{info.sha}"
        )
        for file in wanted:
            progress.step(f"downloading {file.rfilename}", None)
            hf_hub_download(self._repository, file.rfilename, revision=info.sha, local_dir=cache)
        for file in wanted:
            shutil.move(cache / file.rfilename, into / file.rfilename)
        shutil.rmtree(cache)

    def _check_listing(self, wanted: list[Any], into: Path) -> None:
        names = [file.rfilename for file in wanted]
        if not any(SHARD.fullmatch(name) for name in names):
            raise ModelUnsupported(
                f"{self.label} has no safetensors", hint="kvops reads neither .bin nor pickles"
            )
        if "config.json" not in names:
            raise ModelCorrupt(f"{self.label} has no config.json")
        needed, free = sum(file.size or 0 for file in wanted), shutil.disk_usage(into).free
        if needed + _SPARE_BYTES > free:
            raise ModelSourceError(
                f"{self.label} needs {needed} bytes, the disk has {free}", hint="make room first"
            )
        self._hashes = {file.rfilename: file.lfs.sha256 for file in wanted if file.lfs is not None}


def _wanted(name: str) -> bool:
    return name in TEXT_FILES or SHARD.fullmatch(name) is not None


def _not_there(label: str, error: Exception) -> ModelError:
    if isinstance(error, GatedRepoError):
        return ModelSourceError(
            f"{label} is gated", hint="accept its terms on the hub and set HF_TOKEN"
        )
    return ModelNotFound(
        f"the hub has no {label}", hint="check the name; a private one needs HF_TOKEN"
    )


def _unreachable(label: str, error: Exception) -> ModelSourceError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
    return ModelSourceError(
        f"{label} cannot be downloaded: {reason}", hint="check the network and HF_ENDPOINT"
    )
