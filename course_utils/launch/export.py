"""A launch as files that need no notebook: the worker with all that it uses, its arguments, and a batch file."""

import ast
import inspect
import linecache
import sys
import textwrap
import types
from pathlib import Path

from .. import slurm
from ..processes import payload
from .call import worker_name

_PROGRAM = '''"""{name}, as it was launched from a notebook.

    torchrun --standalone --nproc-per-node {per_node} {name}.py                 on one machine
    sbatch {name}.sbatch                                     on a cluster; read it first

Each rank prints what it returns. What the function was called with is in {name}.arguments.
"""

{imports}

{body}


def main():
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    with open(Path(__file__).with_suffix(".arguments"), "rb") as file:
        given = payload.load(file.fileno())
    globals().update(given["names"])
    said = "rank {{}}: {{}}\\n".format(dist.get_rank(), {name}(*given["args"], **given["kwargs"]))
    sys.stdout.write(said)  # in one piece, so that ranks' lines do not mix
    dist.destroy_process_group()
    ending.leave()  # without Python's own end, in which a thread of gloo may abort


if __name__ == "__main__":
    main()
'''
_NEEDED = ("import os", "import sys", "from pathlib import Path", "import torch", "import torch.distributed as dist",
           "from course_utils.processes import ending, payload")  # fmt: skip


def export(folder, worker, args, kwargs, num_nodes, per_node, gpus_per_node):
    """Write NAME.py, NAME.arguments and NAME.sbatch into `folder`, and return their paths.

    Raises ValueError for a worker that is no function of a notebook or a module, or whose text is not known any more.
    """
    if not isinstance(worker, types.FunctionType) or worker.__name__ == "<lambda>":
        raise ValueError(f"{worker_name(worker)} cannot be written to a file: export takes a function that has a name")
    imports, pieces, kept = _collect(worker)
    name = worker.__name__
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    program, arguments, batch = (folder / f"{name}.{kind}" for kind in ("py", "arguments", "sbatch"))
    imports = sorted({*_NEEDED, *imports}, key=lambda line: (line.startswith("from"), line))
    program.write_text(
        _PROGRAM.format(name=name, per_node=per_node, imports="\n".join(imports), body="\n\n\n".join(pieces))
    )
    payload.write({"args": args, "kwargs": kwargs, "names": kept}, arguments)
    share = {"gpus_per_node": gpus_per_node} if gpus_per_node else {"gpus_per_node": 0, "workers_per_node": per_node}
    batch.write_text(str(slurm.Job("ddp", nodes=num_nodes, name=name, program=program.name, **share)))
    return [program, arguments, batch]


def _collect(worker):
    """(import lines, source texts and settings in an order that runs, {name: what has to be kept as it is})"""
    imports, pieces, kept, seen = set(), [], {}, set()

    def visit(thing):
        for name, value in _used(thing).items():
            if name in seen:
                continue
            seen.add(name)
            if isinstance(value, types.ModuleType):
                imports.add(_import_line(name, value))
            elif _is_of_a_cell(value):
                visit(value)
                pieces.append(_source(value))
            elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) and _can_be_imported(value):
                imports.add(f"from {value.__module__} import {value.__qualname__}{_as(value.__qualname__, name)}")
            elif _is_plain(value):
                pieces.insert(0, f"{name} = {value!r}")
            else:
                kept[name] = value

    seen.add(worker.__name__)
    if _is_of_a_cell(worker):
        visit(worker)
        pieces.append(_source(worker))
    else:
        imports.add(f"from {worker.__module__} import {worker.__qualname__}")
    return imports, pieces, kept


def _used(thing):
    """{name: value} of what the text of a cell's function or class names, and that is no builtin."""
    known = dict(vars(sys.modules["__main__"]))
    if isinstance(thing, types.FunctionType):
        known = thing.__globals__ | inspect.getclosurevars(thing).nonlocals
    names = {node.id for node in ast.walk(ast.parse(_source(thing))) if isinstance(node, ast.Name)}
    return {name: known[name] for name in sorted(names) if name in known and name != thing.__name__}


def _is_of_a_cell(value):
    return isinstance(value, type | types.FunctionType) and value.__module__ == "__main__"


def _source(value):
    """The text of a cell's function or class. inspect finds no class of a cell, so both are
    looked for by their names.
    """
    functions = [value, *vars(value).values()] if isinstance(value, type) else [value]
    for function in (function for function in functions if isinstance(function, types.FunctionType)):
        text = "".join(linecache.getlines(function.__code__.co_filename))
        for node in ast.walk(ast.parse(text)) if text else ():
            if getattr(node, "name", None) == value.__name__:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    raise ValueError(f"the text of {value.__qualname__} is not known any more: run its cell again, then export")


def _can_be_imported(value):
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return getattr(module, value.__qualname__, None) is value


def _import_line(name, module):
    parent, _, last = module.__name__.rpartition(".")
    if name == module.__name__:
        return f"import {name}"
    return f"from {parent} import {last}" if parent and name == last else f"import {module.__name__} as {name}"


def _as(what, name):
    return "" if what == name else f" as {name}"


def _is_plain(value):
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return False
