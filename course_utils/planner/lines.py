"""Named numbers with formula and source; a total holds the lines that it sums."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SCALES = {"bytes": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1}, "s": {"s": 1, "ms": 1e-3, "µs": 1e-6}}


@dataclass(frozen=True)
class Line:
    """One number: `value` in `unit` ("bytes", "s", or any other word).

    `formula` is in words and symbols, `source` is the publication, and `kind` tells programs which part of the work
    this is.
    """

    name: str
    value: float
    unit: str
    formula: str = ""
    source: str = ""
    parts: "tuple[Line, ...]" = ()
    kind: str = ""

    def __getitem__(self, name):
        """The part called `name`, at any depth; raises a KeyError that lists the names."""
        for line in self.all():
            if line.name == name:
                return line
        raise KeyError(f"no line {name!r} in {self.name}, which has {', '.join(line.name for line in self.all())}")

    def all(self) -> Iterator["Line"]:
        """All parts at any depth, each before its own parts."""
        for part in self.parts:
            yield part
            yield from part.all()

    def leaves(self, times: float = 1.0) -> "Iterator[tuple[Line, float]]":
        """The parts without parts, each with the value it adds: a line that is more than its parts repeats them."""
        if not self.value:
            return
        if not self.parts:
            yield self, times * self.value
            return
        times *= self.value / sum(part.value for part in self.parts)
        for part in self.parts:
            yield from part.leaves(times)

    def __str__(self):
        return "\n".join(self._rows(""))

    def _rows(self, indent):
        source = f"  [{self.source}]" if self.source else ""
        yield (
            f"{indent}{self.name:{max(1, 34 - len(indent))}s} {in_words(self.value, self.unit):>11s}  "
            f"{self.formula}{source}"
        ).rstrip()
        for part in self.parts:
            yield from part._rows(indent + "  ")


def total(name: str, unit: str, parts: Iterable[Line], formula: str = "", source: str = "") -> Line:
    """The sum of `parts` as a Line; parts that are 0 are dropped."""
    parts = tuple(part for part in parts if part.value)
    return Line(name, sum(part.value for part in parts), unit, formula or "the sum of these", source, parts)


def in_words(value: float, unit: str) -> str:
    """The number with three or four digits and a fitting unit: 1.2e9 bytes are "1.2 GB"."""
    scales = _SCALES.get(unit, {unit: 1})
    word = next((word for word, scale in scales.items() if abs(value) >= scale), list(scales)[-1])
    return f"{value / scales[word]:,.4g} {word}"
