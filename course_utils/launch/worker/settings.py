"""Settings of the notebook's process by which workers compute, too: how numbers are made, shown and warned about.

What differs from rank to rank or belongs to a machine does not travel: seeds, numbers of threads, default devices.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def capture() -> dict[str, Any]:
    """{name: value} of this process's settings, of the libraries that it has imported."""
    values = {"warnings": [one for one in warnings.filters if _is_known(one[2])]}
    return values | {name: get() for name, (get, _) in _accessors().items()}


def restore(values: Mapping[str, Any]) -> None:
    """Make `values`, of another process, this one's: those that are not already."""
    accessors = _accessors()
    for name, value in values.items():
        if name in accessors and accessors[name][0]() != value:
            accessors[name][1](value)
    filters: Any = warnings.filters
    for one in reversed(values["warnings"]):  # the first that fits a warning decides
        if one not in filters:
            warnings.simplefilter("default", append=True)  # has warnings forget what it has decided
            del filters[-1]
            filters.insert(0, one)


def _accessors():
    """{name: (getter, setter)} for what is imported here."""
    found, numpy, torch = {}, sys.modules.get("numpy"), sys.modules.get("torch")
    if hasattr(numpy, "set_printoptions"):
        found["numpy.printoptions"] = (
            lambda: _plain(numpy.get_printoptions()),
            lambda value: numpy.set_printoptions(**value),
        )
        found["numpy.err"] = (numpy.geterr, lambda value: numpy.seterr(**value))
    if hasattr(torch, "set_printoptions"):  # else its import is not complete
        shown = torch._tensor_str.PRINT_OPTS
        found |= {
            "torch.printoptions": (lambda: dict(vars(shown)), lambda value: torch.set_printoptions(**value)),
            "torch.default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
            "torch.float32_matmul_precision": (
                torch.get_float32_matmul_precision,
                torch.set_float32_matmul_precision,
            ),
            "torch.deterministic_algorithms": (
                lambda: (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                ),
                lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
            ),
            "torch.anomaly": (
                lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
                lambda value: torch.autograd.set_detect_anomaly(*value),
            ),
        }
    return found


def _plain(options):
    """numpy's print options but for the functions among them, which may be anybody's."""
    return {name: value for name, value in options.items() if name not in ("formatter", "override_repr")}


def _is_known(category):
    """Whether a worker can name this class of warnings without importing more than it has."""
    return category.__module__.partition(".")[0] in ("builtins", "numpy", "torch", "__main__")
