"""The weights of a model, whatever the format: a spec, and float32 tensors under HF names, one at a time.

An open checkpoint has passed every header check and holds exactly the tensors its spec asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvops.errors import ModelNotFound
from kvops.models.gguf_header import read_gguf_header
from kvops.models.gguf_model import gguf_spec, gguf_tensors
from kvops.models.hf_model import hf_spec, hf_tensors, read_json
from kvops.models.layout import Array, TensorSource, check_tensors, expected_tensors
from kvops.models.spec import ModelSpec


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    spec: ModelSpec
    _sources: dict[str, TensorSource] = field(repr=False)
    on_read: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called when a tensor was read and taken."""

    @property
    def parameters(self) -> int:
        """How many values the weights have; tied embeddings count once."""
        return sum(math.prod(source.shape) for source in self._sources.values())

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """HF name and float32 array in HF layout (`[out, in]`), in the order of the forward pass.

        Each array is read when it is asked for: peak memory is one tensor and what the caller keeps.
        """
        for name in expected_tensors(self.spec):
            yield name, self._sources[name].read()
            self.on_read()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file or a folder in HF layout.

    Raises ModelNotFound, ModelCorrupt with the reason, ModelUnsupported with what is not supported.
    """
    if path.is_dir():
        spec = hf_spec(read_json(path / "config.json"))
        sources = hf_tensors(path, spec)
    elif path.is_file():
        header = read_gguf_header(path)
        spec = gguf_spec(header)
        sources = gguf_tensors(header, spec)
    else:
        raise ModelNotFound(
            f"{path} is neither a folder nor a file", hint="see what is there: kvops model list"
        )
    check_tensors(spec, sources, path.name)
    return Checkpoint(path, spec, sources)
