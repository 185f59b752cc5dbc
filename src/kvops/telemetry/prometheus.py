"""Reading the Prometheus text format, bounded: a page of any size or content costs at most what is set here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvops.errors import NodeProtocolError

MAX_BYTES = 8 * 2**20
MAX_SAMPLES = 100_000

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Exposition:
    """Families by the name on their `# TYPE` line (a counter's with its `_total`), and every series once."""

    types: Mapping[str, str]
    series: Mapping[SeriesKey, float]
    duplicates: tuple[str, ...] = field(default=())
    """Names of families or series that the page states twice."""

    def value(self, name: str, **labels: str) -> float | None:
        """The one series with exactly these labels; None when the page has none."""
        return self.series.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all series of `name` whose labels include these; None when there are none."""
        wanted = labels.items()
        values = [v for (n, pairs), v in self.series.items() if n == name and wanted <= pairs]
        return sum(values) if values else None

    def labels(self, name: str) -> dict[str, str]:
        """Labels of the first series of `name`, for info metrics; empty when there is none."""
        return next((dict(pairs) for (n, pairs) in self.series if n == name), {})


def parse(text: str) -> Exposition:
    """Raises NodeProtocolError for a page that is too large or is not the text format."""
    if len(text) > MAX_BYTES:
        raise NodeProtocolError(f"/metrics is {len(text)} characters long, over {MAX_BYTES}")
    try:
        return _collect(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NodeProtocolError(f"/metrics is not the Prometheus text format: {error}") from None


def _collect(families: Iterable[Metric]) -> Exposition:
    types: dict[str, str] = {}
    series: dict[SeriesKey, float] = {}
    duplicates: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if family.type != "unknown" or not family.samples:
            if name in types:
                duplicates.append(name)
            types[name] = family.type
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key in series:
                duplicates.append(sample.name)
            series[key] = sample.value
        if len(series) > MAX_SAMPLES:
            raise NodeProtocolError(f"/metrics has more than {MAX_SAMPLES} series")
    return Exposition(types, series, tuple(dict.fromkeys(duplicates)))
