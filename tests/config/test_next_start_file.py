"""The file of a node's start is known for as long as the node runs."""

from __future__ import annotations

from pathlib import Path

from kvops.config.live import applied
from kvops.config.load import load_config, load_document


def test_what_is_applied_keeps_the_file_of_the_start(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("runtime: {max_queue: 3}")
    started = load_config(file)
    in_force = applied(started, load_document({"runtime": {"max_queue": 4}}, "reload"))
    assert (in_force.file, in_force.config.runtime.max_queue) == (file, 4)
    assert load_config(None).file is None
