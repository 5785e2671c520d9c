"""Validation of sizes."""

from typing import Any


def require(name: str, value: Any, kind: type[int] | type[float], least: float | None = None) -> None:
    """Raise ValueError, naming the argument, unless `value` is a `kind` above 0 (or at least `least`)."""
    kinds = (int, float) if kind is float else int
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is {what} {'above 0' if least is None else f'from {least} up'}, not {value!r}")
