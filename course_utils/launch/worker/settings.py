"""Settings of libraries that workers take over from the notebook: numerics, print options and warning filters.

Settings that differ between ranks or machines are not taken over: seeds, numbers of threads, default devices.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any


def capture() -> dict[str, Any]:
    """Return {name: value} of the settings of the libraries that this process has imported."""
    values = {"warnings": [one for one in warnings.filters if _is_known(one[2])]}
    return values | {name: get() for name, (get, _) in _accessors().items()}


def restore(values: Mapping[str, Any]) -> None:
    """Apply the settings `values` of another process, where they differ."""
    accessors = _accessors()
    for name, value in values.items():
        if name in accessors and accessors[name][0]() != value:
            accessors[name][1](value)
    filters: Any = warnings.filters
    for one in reversed(values["warnings"]):  # the first filter that matches decides
        if one not in filters:
            warnings.simplefilter("default", append=True)  # invalidates caches of past decisions
            del filters[-1]
            filters.insert(0, one)


def _accessors():
    """Return {name: (getter, setter)} for the libraries imported here."""
    found, numpy, torch = {}, sys.modules.get("numpy"), sys.modules.get("torch")
    if hasattr(numpy, "set_printoptions"):
        found["numpy.printoptions"] = (
            lambda: _plain(numpy.get_printoptions()),
            lambda value: numpy.set_printoptions(**value),
        )
        found["numpy.err"] = (numpy.geterr, lambda value: numpy.seterr(**value))
    if hasattr(torch, "set_printoptions"):  # else torch is not imported completely
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
    """Return numpy's print options without the functions among them, which may not be picklable."""
    return {name: value for name, value in options.items() if name not in ("formatter", "override_repr")}


def _is_known(category):
    """Return whether a worker can load this class of warnings without importing another library."""
    return category.__module__.partition(".")[0] in ("builtins", "numpy", "torch", "__main__")
