"""What several test files need: the repository on the path, GPU tests skipped without one, a line per notebook at the end."""

import sys
from pathlib import Path

import pytest

# The tools are no part of the installed package; tests import them from the checkout.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


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
    lines = {value for report in terminalreporter.getreports("passed")
             for name, value in report.user_properties if name == "notebook"}
    if lines:
        terminalreporter.section("notebooks")
        for line in sorted(lines):
            terminalreporter.write_line(line)
