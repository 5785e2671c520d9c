"""Exports a launch to files that need no notebook: a program with the worker function, its arguments, a batch file.

Functions and classes of cells are written as source if they have one, to be read and changed. All else (arguments,
tensors, closures, objects) is pickled into a file beside the program, and refers to the program's definitions by name.
"""

from __future__ import annotations

import builtins
import functools
import os
import re
import sys
import textwrap
import types
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import slurm
from ...processes import payload
from . import source

if TYPE_CHECKING:
    from ..call import Call

_PROGRAM = '''"""{title}, as it was launched.

    torchrun --standalone --nproc-per-node {per_node} {name}.py                 on one machine
    sbatch {name}.sbatch                                     on a cluster; read it first

Each rank prints what it returns, shortened if it is long, and keeps nothing: run_as_launched() is where to save it.
{also}
"""

from __future__ import annotations

import sys

# Modules of your own are not copied: they stay in these folders, which every node must see.
sys.path += {folders}

{body}


def run_as_launched():
    import os
    import reprlib
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist

    from course_utils.processes import ending, payload

{join}    with Path(__file__).with_suffix(".arguments").open("rb") as file:
        given = payload.load(file.fileno(), globals())
    globals().update(given["names"])
    returned = {call}(*given["args"], **given["kwargs"])
    # To keep it: torch.save(returned, f"{name}_{{os.environ['RANK']}}.pt")
    shown = str(returned)
    if len(shown) > 1_000:
        shown = reprlib.repr(returned)
    sys.stdout.write(f"rank {{os.environ['RANK']}}: {{shown}}\\n")  # in one piece, so that ranks' lines do not mix
    if dist.is_initialized():
        dist.destroy_process_group()
    ending.leave()  # without Python's own end, in which a thread of gloo may abort


if __name__ == "__main__":
    run_as_launched()
'''
_JOIN = """\
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # or a rank that returns at once is gone while others connect to it
    if not on_gpu:
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # else Accelerate takes each rank for a job of its own
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    dist.init_process_group = lambda *args, **kwargs: None  # for a worker that would make the group itself
"""


def export(
    folder: str | os.PathLike[str], call: Call, num_nodes: int, per_node: int, gpus_per_node: int, joins: bool
) -> list[Path]:
    """Write NAME.py, NAME.arguments and NAME.sbatch into `folder`, and return their paths.

    `joins`: the program makes the process group, not the worker function. Raises NotSendable, before anything is
    written, if something cannot be pickled.
    """
    worker: Any = call.worker
    args, kwargs = call.args, call.kwargs
    written = _Written(worker, *args, *kwargs.values())
    called = written.names_of.get(id(worker)) or 'given["worker"]'
    is_method = isinstance(worker, types.MethodType) and getattr(worker.__self__, worker.__name__, None) == worker
    if is_method:  # looked up again in the program, so that its class there is used
        called += f".{worker.__name__}"
    given = {"worker": worker.__self__ if is_method else worker, "args": args, "kwargs": kwargs, "names": written.kept}
    try:
        given_fd = payload.dump(given, name_of=lambda value: written.names_of.get(id(value)))
    except Exception:
        os.close(call.dump())  # raises NotSendable, which names the cause
        raise
    folder, title = Path(folder), call.name
    name = _file_name(title, folder)
    program, arguments, batch = (folder / f"{name}.{kind}" for kind in ("py", "arguments", "sbatch"))
    with open(given_fd, "rb"):
        folder.mkdir(parents=True, exist_ok=True)
        payload.copy(given_fd, arguments)
    also = f"In {name}.arguments is what has no text here: {', '.join(['the arguments', *sorted(written.kept)])}."
    imports = sorted(written.imports, key=lambda line: (line.startswith("from"), line))
    installed = tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix))
    text = _PROGRAM.format(
        title=title,
        name=name,
        per_node=per_node,
        also=textwrap.fill(also, 100),
        folders=[path for path in map(os.path.abspath, sys.path) if not path.startswith(installed)],
        body="\n\n\n".join(filter(None, ["\n".join(imports), "\n".join(written.settings), *written.texts])),
        join=_JOIN if joins else "",
        call=called,
    )
    program.write_text(text, encoding="utf-8")
    share: dict[str, Any] = (
        {"gpus_per_node": gpus_per_node} if gpus_per_node else {"gpus_per_node": 0, "workers_per_node": per_node}
    )
    batch.write_text(str(slurm.Job("ddp", nodes=num_nodes, name=name, program=program.name, **share)))
    return [program, arguments, batch]


def _file_name(title, folder):
    """Return a file name that overwrites only an earlier export, and hides no module.

    A program's own folder comes first in sys.path.
    """
    name = re.sub(r"\W+", "_", title.strip("<>"))
    spec = PathFinder.find_spec(name)
    is_module = spec is not None and spec.has_location
    is_free = not is_module and not (folder / f"{name}.py").exists()
    return name if is_free or (folder / f"{name}.arguments").exists() else f"run_{name}"


class _Written:
    """The program's parts: imports, settings, and definitions in an order that runs; `kept` holds all other values."""

    def __init__(self, *given):
        self.imports, self.settings, self.texts, self.kept = set(), [], [], {}
        self.names_of = {}  # id of a function or class written as text → its name
        self._notebook = {name: value for name, value in vars(sys.modules["__main__"]).items() if name[:2] != "__"}
        self._is_ready, self._wanted = {}, []
        self._import(given[0])
        for value in given:
            self._want_parts(value)
        while self._wanted:
            name = self._wanted.pop(0)
            if name in self._notebook and name not in self.kept and not self._defines(name):
                self.kept[name] = self._notebook[name]
                self._want_parts(self._notebook[name])

    def _import(self, worker):
        """Have the program import a worker function that is defined in a module, as a reader expects."""
        name = getattr(worker, "__name__", "run_as_launched")
        is_free = name != "run_as_launched" and self._notebook.get(name, worker) is worker
        if isinstance(worker, types.FunctionType) and is_free and not source.is_of_a_cell(worker):
            if worker.__module__ and (line := _import_line(name, worker)) is not None:
                self.imports.add(line)
                self.names_of[id(worker)] = name

    def _want_parts(self, value):
        """Add to the wanted names what cells define of `value`: the function or class itself, or an object's class."""
        if isinstance(value, functools.partial):
            self._want_parts(value.func)
        if isinstance(value, types.MethodType):
            self._want_parts(value.__self__)
        for part in (value, type(value)):
            if source.is_of_a_cell(part) and self._notebook.get(part.__name__) is part:
                self._wanted.append(part.__name__)

    def _defines(self, name):
        """Return whether the program defines `name` as the notebook does; add the definition if that is possible."""
        if name not in self._notebook:
            return hasattr(builtins, name)
        if name not in self._is_ready:
            self._is_ready[name] = False  # ends the recursion if two need each other
            self._is_ready[name] = self._define(name, self._notebook[name])
        return self._is_ready[name]

    def _define(self, name, value):
        if source.is_of_a_cell(value):
            return self._write(name, value)
        if (line := _import_line(name, value)) is not None:
            self.imports.add(line)
        elif _is_plain(value):
            self.settings.append(f"{name} = {value!r}")
        else:
            return False
        return True

    def _write(self, name, value):
        """Add the source of a cell's function or class, if it has one and the program defines all that it needs."""
        found = source.definition(name, value) if name != "run_as_launched" else None
        if found is None or not all([self._defines(need) for need in sorted(found.needs)]):
            return False
        needed = [self._notebook.get(need) for need in found.needs]
        if any(source.is_of_a_cell(each) and not isinstance(each, type) for each in needed):
            return False  # a decorator, which is called at once and may use later definitions
        self.texts.append(found.text)
        self.names_of[id(value)] = name
        self._wanted += sorted(found.uses)
        for first, _, rest in (dotted.partition(".") for dotted in found.dotted):
            module = self._notebook.get(first)
            if isinstance(module, types.ModuleType) and f"{module.__name__}.{rest}" in sys.modules:
                self.imports.add(f"import {module.__name__}.{rest}")  # the parent may not import it
        return True


def _import_line(name, value):
    """Return the line that imports `value` as `name`, or None."""
    if isinstance(value, types.ModuleType) and value.__spec__ and sys.modules.get(value.__name__) is value:
        start, what = "import", value.__name__
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        start, what = f"from {value.__module__} import", value.__qualname__
        if getattr(sys.modules.get(value.__module__ or ""), what, None) is not value:
            return None
    else:
        return None
    return f"{start} {what}" if what == name else f"{start} {what} as {name}"


def _is_plain(value, depth=2):
    """Return whether `value` can be written as a short literal."""
    if type(value) in (list, tuple, dict):
        parts = [*value, *value.values()] if type(value) is dict else value
        return depth > 0 and len(value) < 50 and all(_is_plain(part, depth - 1) for part in parts)
    if type(value) in (int, float):
        return abs(value) < 1e300  # infinity and NaN have no literal
    return value is None or type(value) is bool or (type(value) in (str, bytes) and len(value) < 1000)
