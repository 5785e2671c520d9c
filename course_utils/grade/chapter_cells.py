"""The parts of a chapter's cells: exercises, and what a cell reads, gives a name to and only defines."""

import ast
import dis
import re

UNCOMPILABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
EXERCISE = re.compile(r"# Exercise (\d+\.\d+)\s*(?:\n|$)")
IN_RANKS = "%%ranks"  # how a cell begins that runs in persistent ranks
_IN_PLACE = re.compile(r"\s*%%(?:time|capture|prun)\b")  # cell magics whose Python gives names to the notebook


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
    answer, newline, last = source.rstrip("\n").rpartition("\n")
    return (answer.rstrip("\n"), last) if newline and re.fullmatch(r"check\(.*\)", last) else (source, "")


def of_notebook(source):
    """A cell's text, "" for one that runs in ranks, which have names of their own."""
    return "" if source.startswith(IN_RANKS) else source


def python_of(source):
    """A cell as the Python that IPython makes of it: magics, `!ls` and `f?` are calls; as it is where it is no Python.

    Raises nothing. Lines keep their numbers.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    if match := _IN_PLACE.match(source):
        source = "#" + source[match.end() - 1 :] if "\n" in source else ""
    try:
        return TransformerManager().transform_cell(of_notebook(source))
    except (*UNCOMPILABLE, RuntimeError):  # it gives up after some hundreds of magics
        return source


def compiled(source, file="a cell"):
    """The code of a cell's text or tree, which may await at its top level. Raises one of UNCOMPILABLE."""
    return compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def statements(source, file="a cell"):
    """The statements of a cell's text. Raises one of UNCOMPILABLE."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(source, file, "exec", flags, dont_inherit=True).body


def names_read(source):
    """The names that a cell (its text or tree), its functions included, takes from the notebook or the builtins."""
    names, codes = set(), [_code_of(source)]
    for code in codes:
        loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        names |= {step.argval for step in dis.get_instructions(code) if step.opname in loads}
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return names


def names_bound(source):
    """The names that a cell (its text or tree) gives a value to at its top level."""
    steps = list(dis.get_instructions(_code_of(source)))
    stored = {step.argval for step in steps if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
    deleted = {step.argval for step in steps if step.opname == "DELETE_NAME"}
    return stored - deleted


def _code_of(source):
    return compiled(of_notebook(source) if isinstance(source, str) else source)


def is_definition(node, assigned=()):
    """Whether a statement imports, defines, or assigns a literal or to one of the names in `assigned`:
    no measurement runs.
    """
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return isinstance(node, kinds)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if any(getattr(part, "id", None) in assigned for target in targets for part in ast.walk(target)):
        return True
    try:
        ast.literal_eval(node.value or ast.Constant(None))
    except (*UNCOMPILABLE, TypeError):
        return False
    return True
