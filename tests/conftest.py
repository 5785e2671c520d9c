"""What several test files need: GPU tests skipped without a GPU, a line per notebook at the end, figures to look at."""

import os

# Before anything imports torch: threads that wait for the next operation sleep instead of spinning, since several tests
# run at a time, each with processes of its own, and a spinning thread takes the core from whomever it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import cloudpickle
import pytest

from tests.helpers.slurm_cluster import slurm  # noqa: F401  one cluster for all test files of a process


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_terminal_summary(terminalreporter):
    """Print what tests recorded as the property `notebook`; pytest keeps passing tests silent."""
    lines = {
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "notebook"
    }
    if lines:
        terminalreporter.section("notebooks")
        for line in sorted(lines):
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True, scope="module")
def functions_travel_by_value(request):
    """As those of a cell do; a worker that got a name would import the test's module, and all that this imports."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def shown(monkeypatch):
    """The figures that were drawn, as they are when they are shown."""
    import matplotlib.pyplot as plt

    figures, close = [], plt.close
    monkeypatch.setattr(plt, "close", figures.append)
    yield figures
    for figure in figures:
        close(figure)
