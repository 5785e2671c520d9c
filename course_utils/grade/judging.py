"""The process of one submission: run the student's cells, then the check, exercise by exercise.

It reads one JSON object from its standard input, and says on a pipe of its own what it begins and what it has found,
each line signed with a key that it was given: what a student prints, there or elsewhere, is no verdict.
"""

import ast
import builtins
import contextlib
import ctypes
import fcntl
import hashlib
import hmac
import importlib
import inspect
import json
import linecache
import os
import signal
import socket
import struct
import sys
import traceback
import types

from .. import cells
from ..processes import linux
from . import notebook

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
# Of these a student's code may replace nothing: every verdict rests on them.
_TRUSTED = (
    "course_utils",
    "torch",
    "torch.distributed",
    "torch.testing",
    "torch.linalg",
    "torch.nn.functional",
    "numpy",
    "math",
    "builtins",
    "json",
    "hmac",
)


def main():
    task = json.load(sys.stdin)
    key, pipe = bytes.fromhex(task.pop("key")), os.fdopen(task.pop("pipe"), "w")
    linux.end_with_parent(task["parent"])
    has_network = not (task["offline"] and leave_network())

    def say(**content):
        text = json.dumps(content)
        pipe.write(json.dumps([text, signature(text, key)]) + "\n")
        pipe.flush()

    from ..checks import evaluate
    from ..launch import LauncherError

    importlib.import_module(f"course_utils.checks.chapter_{task['chapter']}")
    say(ready=True, network=has_network)
    for exercise in task["exercises"]:
        say(begins=exercise["number"])
        before = functions()
        try:
            answer = answer_of(exercise, task["course"], task["cells"])
            result = evaluate(exercise["number"], answer)
            state, reason = result.state, result.reason
        except LauncherError as error:
            state, reason = "fault", str(error)
        except NotImplementedError as error:
            state, reason = ("wrong", said(error)) if str(error) else ("open", "not attempted")
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            state, reason = (
                ("wrong", said(error))
                if is_of_a_cell(error)
                else ("fault", "".join(traceback.format_exception(error))[-2000:])
            )
        changed = replaced(before)
        if changed:
            state, reason = "tampered", f"its code replaces {', '.join(changed[:3])}, on which verdicts rest"
        say(number=exercise["number"], state=state, reason=reason)
        if changed:
            break  # a new process judges the rest
    os._exit(0)


def signature(text, key):
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def answer_of(exercise, course, sources):
    """What the student's cell calls the answer, in a namespace like the notebook's."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    names = main.__dict__
    names.update(check=lambda *arguments: None, __name__="__main__")
    own = sources[exercise["cell"]]
    for where, texts in (("the chapter", course), ("cell", sources)):
        for i, source in enumerate(texts):
            if source is not own:
                define(source, f"{where} {i}", names)
    text = notebook.answer_and_check(own)[0]
    provide(names_missing(text, names), sources[: exercise["cell"]], names)
    run(text, f"exercise {exercise['number']}", names)
    return names[exercise["name"]]


def define(source, file, names):
    """Run those statements of a cell that import, define or assign literals;
    what fails is missed where it is needed.
    """
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.parse(source).body:
            if notebook.is_definition(node):
                with contextlib.suppress(Exception):
                    run_tree([node], source, file, names)


def names_missing(source, names):
    try:
        return notebook.names_read(source) - names.keys() - set(dir(builtins))
    except (SyntaxError, ValueError):
        return set()


def provide(missing, sources, names):
    """Run what gives a value to the names that are `missing`, and to those that this needs in turn:
    measurements, at worst.
    """
    chosen = []
    for i, source in reversed(list(enumerate(sources))):
        with contextlib.suppress(SyntaxError, ValueError):
            for node in reversed(ast.parse(source).body):
                text = ast.unparse(node)
                if missing & notebook.names_bound(text):
                    chosen.append((node, source, f"cell {i}"))
                    missing = (missing - notebook.names_bound(text)) | names_missing(text, names)
    for node, source, file in reversed(chosen):
        with contextlib.suppress(Exception):
            run_tree([node], source, file, names)


def run(source, file, names):
    run_tree(compile(source, file, "exec", ast.PyCF_ONLY_AST).body, source, file, names)


def run_tree(body, source, file, names):
    file = f"<{file}>"
    # as IPython keeps a cell's text
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(ast.Module(body, type_ignores=[]), file, "exec"), names)


def said(error):
    """The error in a line, with the last line of the student's that it came from."""
    if isinstance(error, SyntaxError):
        return f"the cell cannot be compiled: {error.msg}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<")]
    where = f", in line {frames[-1].lineno} of {frames[-1].filename.strip('<>')}: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def is_of_a_cell(error):
    """Whether it was raised in the student's code: in a cell, or where one was compiled."""
    if isinstance(error, SyntaxError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.startswith(("<exercise", "<cell")) for frame in frames)


def functions():
    """{(module or class, name): (value, its code)} of functions and classes on which verdicts rest."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name in _TRUSTED or name.startswith("course_utils."):
            for attribute, value in [*vars(module).items()]:
                if isinstance(value, _FUNCTIONS) or isinstance(value, type):
                    found[module, attribute] = (value, getattr(value, "__code__", None))
                if isinstance(value, type) and (
                    name.startswith("course_utils.") or value.__name__ in ("Tensor", "Module")
                ):
                    methods = {method: inspect.getattr_static(value, method) for method in dir(value)}
                    methods = {method: each for method, each in methods.items() if isinstance(each, _FUNCTIONS)}
                    found |= {
                        (value, method): (each, getattr(each, "__code__", None)) for method, each in methods.items()
                    }
    return found


def replaced(before):
    """The names of those of `functions()` that are others now, unless it was a library that wrapped
    them, as torch does.
    """
    names = []
    for (owner, attribute), (value, code) in before.items():
        new = inspect.getattr_static(owner, attribute, None)
        if new is value and getattr(new, "__code__", None) is code:
            continue
        own_code = getattr(inspect.unwrap(new), "__code__", None) if callable(new) else None
        outer = getattr(new, "__code__", None)
        is_wrapped = own_code is code and code is not None and outer is not None and not cells.is_own(outer.co_filename)
        if not is_wrapped:
            names.append(f"{owner.__name__}.{attribute}")
    return names


def leave_network():
    """Go on without any network but loopback; returns whether the system allowed that."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.unshare(_CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET):
        return False
    try:
        if uid != 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the marker's, who ends this
    main()
