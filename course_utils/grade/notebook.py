"""The parts of a chapter's cells: exercises, and what a cell reads, gives a name to and only defines."""

import ast
import dis
import re

EXERCISE = re.compile(r"# Exercise (\d+\.\d+)\s*(?:\n|$)")
IN_RANKS = "%%ranks"  # how a cell begins that runs in persistent ranks
CHECK = re.compile(r"\n+(check\(.*\))\n*\Z")  # the last line of an exercise's cell


def exercises(nb):
    """{"9.2": index of its cell, a stub and its check}, in the notebook's order; ValueError if one stands twice."""
    found = {}
    for i, cell in enumerate(nb.cells):
        match = EXERCISE.match(cell.source) if cell.cell_type == "code" else None
        if match and match[1] in found:
            raise ValueError(f"cells {found[match[1]]} and {i} are both exercise {match[1]}")
        if match:
            found[match[1]] = i
    return found


def answer_and_check(source):
    """An exercise's cell in its two parts: what is to be written, and the line that checks it ("" if there is none)."""
    match = CHECK.search(source)
    return (source[: match.start()], match[1]) if match else (source, "")


def of_notebook(source):
    """A cell's text, "" for one that runs in ranks, which have names of their own."""
    return "" if source.startswith(IN_RANKS) else source


def names_read(source):
    """The names that a cell, its functions included, takes from the notebook or the builtins."""
    names, codes = set(), [compile(of_notebook(source), "a cell", "exec")]
    for code in codes:
        loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        names |= {step.argval for step in dis.get_instructions(code) if step.opname in loads}
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return names


def names_bound(source):
    """The names that a cell gives a value to at its top level."""
    steps = list(dis.get_instructions(compile(of_notebook(source), "a cell", "exec")))
    stored, deleted = ({s.argval for s in steps if s.opname == name} for name in ("STORE_NAME", "DELETE_NAME"))
    return stored - deleted


def is_definition(node, assigned=()):
    """Whether a statement imports, defines, or assigns a literal or to one of the names in `assigned`:
    no measurement runs.
    """
    if not isinstance(node, ast.Assign):
        return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
    if any(getattr(part, "id", None) in assigned for target in node.targets for part in ast.walk(target)):
        return True
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True
