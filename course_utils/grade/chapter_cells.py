"""Analyses cells: exercises, the names that a cell reads and binds, and statements that only define."""

import ast
import dis
import re

UNCOMPILABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
EXERCISE = re.compile(r"# Exercise (\d+\.\d+)\s*(?:\n|$)")
IN_RANKS = "%%ranks"  # the beginning of a cell that runs in persistent ranks
_A_CHECK = re.compile(r"course_utils\.chapters\.\w+\.check")
_IN_PLACE = re.compile(r"\s*%%(?:time|capture|prun)\b")  # cell magics that run their Python in the notebook


def exercises(nb):
    """Return {"9.2": index of the cell with its stub and check}, in the notebook's order.

    Raises ValueError if an exercise occurs twice.
    """
    found = {}
    for i, cell in enumerate(nb.cells):
        match = EXERCISE.match(cell.source) if cell.cell_type == "code" else None
        if match and match[1] in found:
            raise ValueError(f"cells {found[match[1]]} and {i} are both exercise {match[1]}")
        if match:
            found[match[1]] = i
    return found


def answer_and_check(source):
    """Split an exercise's cell into the student's part and the line that checks it ("" if there is none)."""
    answer, newline, last = source.rstrip("\n").rpartition("\n")
    return (answer.rstrip("\n"), last) if newline and re.fullmatch(r"check\(.*\)", last) else (source, "")


def of_notebook(source):
    """Return a cell's text, or "" if it runs in ranks, which have names of their own."""
    return "" if source.startswith(IN_RANKS) else source


def python_of(source):
    """Return a cell as the Python that IPython makes of it, with calls for magics, `!ls` and `f?`.

    Returns it unchanged if IPython fails; never raises. Lines keep their numbers.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    if match := _IN_PLACE.match(source):
        source = "#" + source[match.end() - 1 :] if "\n" in source else ""
    try:
        return TransformerManager().transform_cell(of_notebook(source))
    except (*UNCOMPILABLE, RuntimeError):  # IPython gives up after some hundreds of magics
        return source


def compiled(source, file="a cell"):
    """Compile a cell's text or tree, which may await at its top level. Raises one of UNCOMPILABLE."""
    return compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def statements(source, file="a cell"):
    """Return the statements of a cell's text. Raises one of UNCOMPILABLE."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(source, file, "exec", flags, dont_inherit=True).body


def names_read(source):
    """Return the global names that a cell (its text or tree) reads, including its functions, and builtins."""
    names, codes = set(), [_code_of(source)]
    for code in codes:
        loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        names |= {step.argval for step in dis.get_instructions(code) if step.opname in loads}
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return names


def names_bound(source):
    """Return the global names that a cell (its text or tree) binds at its top level."""
    steps = list(dis.get_instructions(_code_of(source)))
    stored = {step.argval for step in steps if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
    deleted = {step.argval for step in steps if step.opname == "DELETE_NAME"}
    return stored - deleted


def _code_of(source):
    return compiled(of_notebook(source) if isinstance(source, str) else source)


def is_definition(node, assigned=()):
    """Return whether a statement only defines, so that running it measures nothing.

    Such statements import, define a function or class, assign a literal, or assign to a name in `assigned`.
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


def check_imported(nodes):
    """Return the name of a module with checks that these statements import or name, or ""."""
    for node in nodes:
        for part in ast.walk(node):
            names = [getattr(part, "value", None)] if isinstance(part, ast.Constant) else []
            if isinstance(part, ast.Import):
                names = [each.name for each in part.names]
            elif isinstance(part, ast.ImportFrom):
                names = [part.module, *(f"{part.module}.{each.name}" for each in part.names)]
            for name in names:
                if isinstance(name, str) and _A_CHECK.fullmatch(name):
                    return name
    return ""
