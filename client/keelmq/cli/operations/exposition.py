"""Reads the text of `/metrics`, and compares two readings of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Reading:
    """The metrics of one node at one moment. Lines that are no samples are passed over."""

    def __init__(self, text: str = "") -> None:
        self._samples: dict[str, list[Sample]] = {}
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None:
                continue
            name, labels, value = found.groups()
            self._samples.setdefault(name, []).append(Sample(dict(_labels(labels or "")), _number(value)))

    def __bool__(self) -> bool:
        return bool(self._samples)

    def all(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of that name that have these labels."""
        return [each for each in self._samples.get(name, ()) if labels.items() <= each.labels.items()]

    def value(self, name: str, default: float = 0.0, **labels: str) -> float:
        """Return the sum of these samples; `default` when there is none."""
        found = self.all(name, **labels)
        return sum(each.value for each in found) if found else default

    def largest(self, name: str, default: float = 0.0) -> float:
        return max((each.value for each in self.all(name)), default=default)


def increase(before: Reading, after: Reading, name: str, **labels: str) -> float:
    """Return by how much a counter grew; a counter that fell began anew."""
    grown = after.value(name, 0.0, **labels) - before.value(name, 0.0, **labels)
    return grown if grown >= 0 else after.value(name, 0.0, **labels)


def quantile(before: Reading, after: Reading, name: str, share: float) -> float | None:
    """Return the upper bound of the bucket that this share of a histogram's events between the readings reaches; None
    when there were none.
    """
    bounds = sorted({_number(each.labels["le"]) for each in after.all(f"{name}_bucket")})
    grown = {bound: _up_to(after, name, bound) - _up_to(before, name, bound) for bound in bounds}
    total = grown[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    return next(bound for bound in bounds if grown[bound] >= share * total)


def _up_to(reading: Reading, name: str, bound: float) -> float:
    return sum(each.value for each in reading.all(f"{name}_bucket") if _number(each.labels["le"]) == bound)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)


def _number(text: str) -> float:
    try:
        return float(text)  # also +Inf and NaN
    except ValueError:
        return 0.0
