"""A worker that goes on in another Python: the same process, with the same pipes, as another interpreter.

execve keeps all that the launcher holds a worker by: its number, its group, its descriptors, and that it ends with its
parent. So what it prints, logs, returns and raises, its interrupt and its end come as from any other worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ..forkserver.protocol import WorkerFds

# Begins an interpreter with the package of whoever starts it, wherever it lies and whatever lies beside it: run with
# -P, so that no module beside the notebook is taken for one of Python's. Its first argument is the package's
# __init__.py.
IMPORT_PACKAGE = """
import importlib.util, sys
init = sys.argv[1]
spec = importlib.util.spec_from_file_location("course_utils", init)
sys.modules["course_utils"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
"""
INIT = str(Path(__file__).resolve().parents[2] / "__init__.py")
_GO_ON = (
    IMPORT_PACKAGE
    + """
from course_utils.launch.worker.worker import go_on
go_on(sys.argv[2:])
"""
)


def become(python: str, rank: int, folder: str | None, fds: WorkerFds) -> NoReturn:
    """In a new worker: be the interpreter `python` from here on. Raises OSError where it cannot be run."""
    fds = fds._replace(output=os.dup(1))  # the worker has taken it for its streams already
    for fd in filter(None, fds):
        os.set_inheritable(fd, True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    numbers = map(str, (rank, *fds))
    os.execve(python, [python, "-P", "-c", _GO_ON, INIT, *numbers, folder or ""], environment)
