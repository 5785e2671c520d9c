"""The process of one submission: for each exercise it runs the statements needed, the exercise's cell, and the check.

It reads one line of JSON from its standard input, and writes to a pipe what it begins and the verdicts. Each line is
signed with a key from its input, so that nothing a student prints counts as a verdict.

The answer runs in this process, or in a worker, together with the check. So a student who has read this code can
change a verdict, since code can reach all memory of its process. The usual attempts are refused.
"""

import ast
import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import linecache
import os
import sys
import traceback
import types
from collections import deque
from pathlib import Path

from .. import checks
from ..checks import judge as deadlines
from ..hardware import full_precision
from ..launch import LauncherError, warm
from ..processes import ending
from . import chapter_cells, isolation, needs, submissions, wording


def main():
    task = json.loads(sys.stdin.buffer.raw.readline())
    isolation.go_on_in_a_child(0, task["report"], task["pipe"])
    isolation.limit_memory(task["memory_bytes"])
    os.set_inheritable(task["pipe"], False)
    say = Reporter(task.pop("pipe"), bytes.fromhex(task.pop("key")))
    said = map(say, messages(task))
    del say  # so that no frame which a student's code can inspect has it
    deque(said, maxlen=0)
    os._exit(0)


class Reporter:
    """Sends messages to the marker, as lines signed with the key."""

    def __init__(self, pipe, key):
        self._pipe, self._key = os.fdopen(pipe, "wb", buffering=0), key

    def __call__(self, content):
        text = json.dumps(content)
        line = json.dumps([text, signature(text, self._key)]).encode() + b"\n"
        try:
            while line:
                line = line[self._pipe.write(line) :]
        except OSError as error:
            print(f"the verdict cannot be told: the code has closed files that it did not open ({error.strerror})")
            ending.flush()
            os._exit(1)


def signature(text, key):
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def messages(task):
    """Yield the messages about a notebook: that it is unreadable, or one before and one after each exercise."""
    chapters = {number: submissions.Chapter(**chapter) for number, chapter in task["chapters"].items()}
    try:
        submission = submissions.read(Path(_path(task["path"])), chapters, task["chapter"])
    except submissions.Unreadable as error:
        yield {"unreadable": str(error)}
        return
    chapter = submission.chapter
    located = {number: submissions.cell_of(number, chapter, submission.sources) for number in chapter.stubs}
    has_network = not (task["offline"] and isolation.leave_network())
    if task["writable"]:
        isolation.leave_files(*(list(map(_path, task[kind])) for kind in ("hidden", "writable")))
    warm()  # as a chapter's first cell does
    full_precision()
    # Longer than in class: nobody waits for the result, and submissions marked side by side slow one another down.
    deadlines.DEADLINE_S = max(deadlines.DEADLINE_S, round(task["limit_s"] / 3))
    checks.of_chapter(int(chapter.number))
    yield {"exercises": list(located), "network": has_network}
    for number, (cell, name) in located.items():
        if number in task["done"]:
            continue
        yield {"begins": number}
        state, reason = "missing", f"no cell defines {name}"
        if cell is not None:
            state, reason = judge(number, cell, name, chapter.sources, submission.sources)
        yield {"number": number, "state": state, "reason": wording.for_student(reason, task["memory_bytes"])[:5000]}
        if state == "tampered":
            return  # a new process judges the rest


def _path(text):
    return os.fsdecode(bytes.fromhex(text))


def judge(number, cell, name, course, sources):
    """Return (state, reason) of an exercise: the check's result, or what failed before it."""
    from ..checks import evaluate, intact

    before = intact.functions()
    try:
        result = evaluate(number, answer_of(number, cell, name, course, sources))
        state, reason = wording.of_a_limit(result.reason) or result.state, result.reason
    except LauncherError as error:
        state, reason = "fault", str(error)
    except NotImplementedError as error:
        state, reason = ("wrong", said(error)) if str(error) else ("open", "not attempted")
    except NoAnswer as error:
        state, reason = "wrong", str(error)
    except BaseException as error:
        if is_of_a_cell(error):
            state, reason = "wrong", said(error)
        else:
            state, reason = "fault", "".join(traceback.format_exception(error))[-2000:]
    if changed := intact.replaced(before):
        state, reason = "tampered", f"its code replaces {', '.join(changed[:3])}, on which verdicts rest"
    return state, reason


class NoAnswer(Exception):
    """Raised if the exercise's cell has run and does not define the answer, or takes it from a check."""


def answer_of(number, cell, name, course, sources):
    """Run the exercise's cell in a namespace like the notebook's, and return the answer, the value of `name`.

    Raises NoAnswer, or what the cell raises.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    names = main.__dict__
    names.update(get_ipython=shell_of(main), __name__="__main__")
    texts = [needs.statements_of(source, f"cell {i}") for i, source in enumerate(sources)]
    of_course = [each for source in course for each in needs.statements_of(source, "the chapter")]
    own = chapter_cells.answer_and_check(sources[cell])[0]
    above, below = sum(texts[:cell], []), sum(texts[cell + 1 :], [])
    needed = needs.needed(own, above, below, of_course)
    try:
        body = chapter_cells.statements(own, f"<exercise {number}>")
        nodes = [*body, *(each.node for each in needs.used(own, needed))]
    except chapter_cells.UNCOMPILABLE:
        nodes = []  # running the cell says so
    if module := chapter_cells.check_imported(nodes):
        raise NoAnswer(f"its code uses {module}, the module that judges it: write the answer without it")
    for each in needed:
        with contextlib.suppress(Exception, SystemExit):  # if it is needed, the cell will fail
            run([each.node], each.source, each.file, names)
    names["check"] = lambda *_: None
    run(chapter_cells.statements(own, f"<exercise {number}>"), own, f"exercise {number}", names)
    if name not in names:
        raise NoAnswer(f"the exercise's cell gives no value to {name}")
    return names[name]


def shell_of(main):
    """Return a `get_ipython` whose shell uses the names of the module `main`, for magics, `!ls` and `f?` in cells."""
    shell = _shell()
    shell.user_module, shell.user_ns = main, main.__dict__
    return lambda: shell


@functools.cache
def _shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def enable_gui(self, gui=None):
            """Do nothing for `%matplotlib inline`, since nothing is shown here."""

    return Shell.instance(config=Config({"HistoryManager": {"enabled": False}}))


def run(body, source, file, names):
    """Run statements of a cell, which may await, as a notebook does."""
    file = f"<{file}>"
    # IPython keeps a cell's text in the same way.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    awaited = eval(chapter_cells.compiled(ast.Module(body, type_ignores=[]), file), names)
    if awaited is not None:
        asyncio.run(awaited)


def said(error):
    """Return the error as one line of text, with the student's innermost line."""
    if isinstance(error, SyntaxError):
        return f"the cell cannot be compiled: {error.msg}, line {error.lineno}"
    try:
        text = str(error)
    except Exception:
        text = "(whose text cannot be made)"
    kind = f"{type(error).__name__}: {text}"
    if isinstance(error, SystemExit):
        kind = "sys.exit(), exit() or quit() ended the cell"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith("<")]
    where = f", in line {frames[-1].lineno} of {frames[-1].filename.strip('<>')}: {frames[-1].line}" if frames else ""
    return f"{kind}{where}"


def is_of_a_cell(error):
    """Return whether an error was raised in the student's code: while a cell ran or was compiled."""
    if isinstance(error, chapter_cells.UNCOMPILABLE) and any(
        frame.name in ("statements", "compiled") for frame in traceback.extract_tb(error.__traceback__)[-1:]
    ):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, SyntaxError) or any(frame.filename.startswith(("<exercise", "<cell")) for frame in frames)


if __name__ == "__main__":
    main()
