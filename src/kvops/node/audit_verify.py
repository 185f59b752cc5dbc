"""Reads an audit back: is each line what the next one says it is, from the first file to the last?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvops.node.audit_chain import GENESIS, TORN, Record, digest, files_of, read_record
from kvops.node.audit_kept import KEPT


@dataclass(frozen=True)
class Fault:
    """The first line that is not what it has to be."""

    file: str
    line: int
    """From 1."""
    why: str


@dataclass
class Verdict:
    files: int = 0
    records: int = 0
    first_seq: int | None = None
    """Over 1: older files are gone."""
    kept_from: int | None = None
    """With which `seq` the chain says that it begins, since `audit.keep` let older files go; None where no line does:
    there is one file, or it was written before chains told of it."""
    last_seq: int | None = None
    last_hash: str | None = None
    """Kept elsewhere, it proves later that the end was not cut off."""
    torn: int = 0
    """Lines that a crash cut short and that the next one tells of."""
    lost: int = 0
    """Records that could not be written, as the chain itself tells."""
    held_back: int = 0
    """Refusals of nobody known that share a line."""
    unfinished: bool = False
    """The end of the last line is missing: it is being written, or a crash cut it short."""
    fault: Fault | None = None

    @property
    def whole(self) -> bool:
        return self.fault is None and self.records > 0


@dataclass
class _Walk:
    """Where in the chain a reader is."""

    verdict: Verdict = field(default_factory=Verdict)
    before: bytes | None = None
    """The line before, without its end."""
    before_unreadable: bool = False

    def step(self, line: bytes) -> str | None:
        """Why the line does not follow the one before."""
        record = read_record(line)
        if record is None:
            why = "it is no record" if self.before_unreadable else None
        else:
            why = self._follows(record)
            self._count(record)
        self.before, self.before_unreadable = line, record is None
        return why

    def _follows(self, record: Record) -> str | None:
        last = self.verdict.last_seq
        if self.before is None:
            begins = record["seq"] > 1 or record["prev"] == GENESIS
            return None if begins else "the chain does not begin here"
        if record["prev"] != digest(self.before):
            return "it does not name the line before"
        if last is not None and record["seq"] != last + 1:
            return f"seq is {record['seq']}, not {last + 1}"
        tells = record.get("event") == TORN and record.get("bytes") == len(self.before)
        if self.before_unreadable and not tells:
            return "the line before is no record, and this one does not tell that a crash cut it"
        return None

    def _count(self, record: Record) -> None:
        found = self.verdict
        found.records += 1
        found.first_seq = record["seq"] if found.first_seq is None else found.first_seq
        found.last_seq = record["seq"]
        event, number = record.get("event"), record.get("records", 0)
        found.torn += event == TORN
        found.lost += number if event == "lost" else 0
        if event == KEPT and isinstance(record.get("from"), int):
            found.kept_from = record["from"]
        found.held_back += number if event == "held_back" else 0


def verify(folder: Path) -> Verdict:
    """Stops at the first fault. Raises OSError."""
    walk, files = _Walk(), files_of(folder)
    verdict = walk.verdict
    for at, file in enumerate(files):
        verdict.files += 1
        for number, (line, ended) in enumerate(lines_of(file), 1):
            if not ended and at == len(files) - 1:
                verdict.unfinished = True
                break
            why = "the end of the line is missing" if not ended else walk.step(line)
            if why is not None:
                verdict.fault = Fault(file.name, number, why)
                return verdict
        if walk.before_unreadable:
            verdict.fault = Fault(file.name, number, "it is no record")
            return verdict
    if files and (why := _beginning_gone(verdict)):
        verdict.fault = Fault(files[0].name, 1, why)
    verdict.last_hash = None if walk.before is None else digest(walk.before)
    return verdict


def _beginning_gone(found: Verdict) -> str | None:
    begins, told = found.first_seq, found.kept_from
    if begins is None or told is None or begins <= told:
        return None
    return f"the chain begins with seq {begins}, and says that it was kept from {told} on: older files were removed"


def lines_of(file: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line without its end, and whether it had one."""
    with file.open("rb") as opened:
        for line in opened:
            yield line.removesuffix(b"\n"), line.endswith(b"\n")
