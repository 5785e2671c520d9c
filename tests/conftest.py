"""Shared test setup: GPU tests skipped without a GPU, a line per notebook at the end, figures, live notebooks."""

import os

# Before anything imports torch: threads that wait for the next operation sleep instead of spinning, since several tests
# run at a time, each with processes of its own, and a spinning thread takes the core from whomever it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import cloudpickle
import pytest

from tests.helpers.kernel import LIMIT_S, Notebook
from tests.helpers.slurm_cluster import slurm  # noqa: F401  one cluster for all test files of a process
from tests.helpers.torchrun import torchrun  # noqa: F401  and one torchrun


def pytest_configure(config):
    """While a worker of xdist collects the tests, its forkserver imports what all their launches need.

    Until that is done, each rank of a launch would import it for itself at its first optimizer.
    """
    if hasattr(config, "workerinput"):
        from course_utils.launch import warm

        warm()


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


@pytest.fixture(autouse=True)
def settings_end_with_their_test():
    """A setting that a test leaves in the environment would be found by the next one of its process."""
    before = _settings()
    yield
    after = _settings()
    for name in after:
        del os.environ[name]
    os.environ.update(before)
    assert after == before, f"left in the environment: {set(after.items()) ^ set(before.items())}"


def _settings():
    return {name: value for name, value in os.environ.items() if name.startswith("COURSE_")}


@pytest.fixture
def shown(monkeypatch):
    """The figures that were drawn, as they are when they are shown."""
    import matplotlib.pyplot as plt

    figures, close = [], plt.close
    monkeypatch.setattr(plt, "close", figures.append)
    yield figures
    for figure in figures:
        close(figure)


# ---- notebooks


@pytest.fixture(scope="session")
def _kernels(tmp_path_factory):
    """The kernel that most tests share, replaced when a test has broken it."""
    kernels = []
    yield lambda: kernels or kernels.append(Notebook(tmp_path_factory.mktemp("notebook"))) or kernels
    for kernel in kernels:
        kernel.close()


@pytest.fixture
def notebook(_kernels, request):
    """The shared notebook, warm; the test must leave nothing behind, and one that runs alone must do so within 2 s.

    A test that runs alone promises seconds. With a GPU for each worker NCCL would start first, which takes seconds of
    its own, so its workers are on the CPU.
    """
    kernels = _kernels()
    is_alone = request.node.get_closest_marker("alone") is not None
    try:
        if is_alone:
            kernels[0].run("os.environ['COURSE_DEVICE'] = 'cpu'")
        with kernels[0].leaving_nothing(2.0 if is_alone else LIMIT_S):
            yield kernels[0]
        if is_alone:
            kernels[0].run("del os.environ['COURSE_DEVICE']")
    except BaseException:
        kernels.pop().close()
        raise
    if request.node.stash.get(_FAILED, False):
        kernels.pop().close()


_FAILED = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_FAILED] = True  # the next test gets a new kernel
    return report


@pytest.fixture(scope="session")
def seen_notebook(tmp_path_factory):
    """A notebook that somebody looks at, for all tests of what is shown there."""
    notebook = Notebook(tmp_path_factory.mktemp("notebook"), COURSE_PANEL="1", PYTEST_CURRENT_TEST="")
    notebook.run("del os.environ['PYTEST_CURRENT_TEST']\nimport ipywidgets, matplotlib.figure")
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def new_notebook(tmp_path_factory):
    """Makes notebooks of the module's own: `new_notebook(setup=…, NAME="value of an environment variable")`."""
    made = []

    def make(**settings):
        made.append(Notebook(tmp_path_factory.mktemp("notebook"), **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
