"""Finds the statements of other cells that must run before an exercise's own cell.

Running a whole notebook takes minutes. Here only definitions run, and what the answer depends on, also through
functions: statements that bind a name which it reads, and statements that change such a value.
"""

import ast
import builtins
from dataclasses import dataclass

from . import chapter_cells

_ALWAYS = set(dir(builtins)) | {"get_ipython"}


@dataclass(frozen=True)
class Statement:
    """A statement at the top level of a cell; `bound` and `read` are the global names that it binds and reads."""

    node: ast.stmt
    source: str
    file: str
    bound: frozenset
    read: frozenset

    def is_definition(self):
        return chapter_cells.is_definition(self.node) or "run_cell_magic('writefile'" in self.source


def statements_of(source, file):
    """Return the Statements of a cell, or [] if Python cannot compile it."""
    found = []
    try:
        for node in chapter_cells.statements(source):
            tree = ast.Module([node], type_ignores=[])
            bound, read = chapter_cells.names_bound(tree), chapter_cells.names_read(tree)
            found.append(Statement(node, source, file, frozenset(bound), frozenset(read)))
    except chapter_cells.UNCOMPILABLE:
        return []
    return found


def _changed(node, modules):
    """Return the names whose values a statement changes, as x[0] = 1, x.part = 1 or x.append(1) do.

    Calls of functions of `modules` do not count.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return set()
    names = set()
    for part in ast.walk(node):
        is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
        if is_call:
            part = part.value.func
        elif not isinstance(getattr(part, "ctx", None), (ast.Store, ast.Del)):
            continue
        is_part_of_it = isinstance(part, (ast.Attribute, ast.Subscript))
        while isinstance(part, (ast.Attribute, ast.Subscript)):
            part = part.value
        if is_part_of_it and isinstance(part, ast.Name) and not (is_call and part.id in modules):
            names.add(part.id)
    return names


def needed(own, before, after, course):
    """Return the Statements to run, in order, before the exercise's cell, whose text is `own`.

    `before` and `after` are the Statements of the student's cells above and below it, `course` those of the chapter.
    Names bound above the cell are taken from there, as if the notebook had been run from top to bottom.
    """
    try:
        wanted = chapter_cells.names_read(own) - _ALWAYS
    except chapter_cells.UNCOMPILABLE:
        return []
    above = frozenset().union(*(each.bound for each in before))
    chosen, pool = set(), [(each, True) for each in before] + [(each, False) for each in (*after, *course)]
    imports = [each.bound for each, _ in pool if isinstance(each.node, (ast.Import, ast.ImportFrom))]
    modules = _imported(own).union(*imports)

    def is_needed(each, is_above):
        if each.bound & (wanted if is_above else wanted - above):
            return True
        return is_above and bool(wanted & _changed(each.node, modules))

    size = None
    while size != len(chosen):
        size = len(chosen)
        for each, is_above in pool:
            if id(each) not in chosen and is_needed(each, is_above):
                chosen.add(id(each))
                wanted |= each.read - _ALWAYS
    first = [each for each in course if each.is_definition() or id(each) in chosen]
    first += [each for each in after if each.is_definition()]
    first += [each for each in before if each.is_definition() or id(each) in chosen]
    return first + [each for each in after if id(each) in chosen]


def used(own, statements):
    """Return those of the Statements whose names the cell `own` reads, or a statement that it uses so."""
    wanted, found, size = chapter_cells.names_read(own), [], None
    while size != len(found):
        size = len(found)
        for each in statements:
            if each not in found and each.bound & wanted:
                found.append(each)
                wanted |= each.read
    return found


def _imported(source):
    trees = [node for node in chapter_cells.statements(source) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return set().union(*(chapter_cells.names_bound(ast.Module([node], type_ignores=[])) for node in trees))
