"""A worker that continues in another Python: the same process with the same pipes, but another interpreter.

execve keeps the process id, the process group, the descriptors, and the setting that the process ends with its parent.
So the launcher handles its output, messages, interrupts and end as those of any other worker.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ..forkserver.protocol import WorkerFds

# The first lines of a new interpreter's program: they import course_utils from the path of its __init__.py, the first
# argument, wherever the package lies. Run with -P, so that no module beside the notebook hides one of Python's.
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
    """Replace this new worker by the interpreter `python`. Raises OSError if it cannot be run."""
    fds = fds._replace(output=os.dup(1))  # the worker has already moved it to its streams
    for fd in filter(None, fds):
        os.set_inheritable(fd, True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    numbers = map(str, (rank, *fds))
    os.execve(python, [python, "-P", "-c", _GO_ON, INIT, *numbers, folder or ""], environment)
