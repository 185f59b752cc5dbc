from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import UsageError
from kvops.load.fairness import tenants


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "keys"
    file.write_text(text)
    return str(file)


def test_keys_are_read_by_name_and_shared_out_to_the_noise(tmp_path: Path) -> None:
    found = tenants(
        written(tmp_path, "# two are loud\n\nbob k1\nquiet k2 # ours\namy k3\n"), "quiet"
    )
    assert found.quiet == "k2"
    assert [found.key_of_noise(number) for number in range(4)] == ["k1", "k3", "k1", "k3"]


def test_without_a_file_all_have_the_runs_own_key() -> None:
    found = tenants(None, "quiet")
    assert (found.quiet, found.key_of_noise(3)) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no tenant"),
        ("quiet k1\n", "holds quiet"),
        ("loud k1\nbob k2\n", "holds loud, bob"),
        ("quiet k1\nquiet k2\n", "line 2"),
        ("quiet\n", "line 1"),
        ("quiet k1 k2\n", "line 1"),
        ("quiet k1\nloud schlüssel\n", "line 2"),
    ],
)
def test_a_wrong_file_names_its_line_and_no_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        tenants(written(tmp_path, text), "quiet")
    said = f"{caught.value} {caught.value.hint}"
    assert words in said
    assert not any(key in said for key in ("k1", "k2", "schlüssel"))


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none", tmp_path, tmp_path / "binary"):
        with pytest.raises(UsageError, match="--tenant-keys"):
            tenants(str(path), "quiet")
