"""docs/gate.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvops.errors import UsageError
from kvops.testing import BY_NAME, DEFECTS
from kvops.testing.__main__ import main
from kvops.testing.defects import check_names
from kvops.testing.document import filled
from kvops.testing.wiring import OUTSIDE
from kvops.verify.checks import CHECKS
from kvops.verify.profile import load_profile

DOCUMENT = Path(__file__).parents[2] / "docs" / "gate.md"


def test_its_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert filled(text) == text, "run: python -m kvops.testing.document docs/gate.md"


def test_it_says_of_every_check_what_a_failure_means() -> None:
    _, _, section = DOCUMENT.read_text().partition("### When one fails")
    bullets = [line.partition(": ")[0] for line in section.splitlines() if line.startswith("- `")]
    told = [name for line in bullets for name in re.findall(r"`([a-z_.]+)`", line)]
    assert sorted(told) == sorted(check.id for check in CHECKS)


def test_its_profile_is_valid(tmp_path: Path) -> None:
    (found,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.S)
    (tmp_path / "ours.yaml").write_text(found)
    load_profile(str(tmp_path / "ours.yaml"))


def test_every_check_of_golive_has_a_defect_that_it_finds() -> None:
    covered = {defect.check for defect in DEFECTS}
    elsewhere = {"reach.gateway"}  # test_proxy
    golive = {entry.id for entry in load_profile("golive").checks}
    assert golive - covered - elsewhere == set()
    assert covered <= {check.id for check in CHECKS}


def test_names_are_unique_and_those_of_the_proxy_are_marked() -> None:
    assert len(BY_NAME) == len(DEFECTS)
    remarks = {"no_limit", "no_reuse", "role_first_token"}
    assert {one.name for one in DEFECTS if one.outside} == set(OUTSIDE) - remarks


def test_an_unknown_defect_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no defect 'wrong_usages'"):
        check_names(["wrong_usages"])
    assert main(["--defect", "leaks_block_per_request", "--upstream", "http://127.0.0.1:9"]) == 2
    assert "no defect 'leaks_block_per_request'" in capsys.readouterr().err


def test_all_defects_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--defect", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [defect.name for defect in DEFECTS]
