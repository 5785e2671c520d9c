"""The source of functions and classes that cells define, if running it again gives the same object.

If that is not certain (a closure, a class that was changed later, a function whose default is a tensor), there is no
source, and the object is pickled by value, as for a worker.
"""

import ast
import inspect
import linecache
import symtable
import sys
import types
from dataclasses import dataclass


@dataclass
class Definition:
    """The `text` of a `def` or `class` at the top level of a cell, and the global names in it.

    `needs` are names that must exist before the text runs, as of decorators, defaults and base classes (not of
    annotations, which are not evaluated). `uses` must exist when the definition is called. `dotted` are all expressions
    such as `torch.nn`.
    """

    text: str
    needs: set[str]
    uses: set[str]
    dotted: set[str]


def definition(name: str, value: object) -> Definition | None:
    """Return the Definition that bound `value`, a cell's function or class, to `name`; None if there is no source."""
    for code in {function.__code__ for function in _functions_in(value)}:
        text = "".join(linecache.getlines(code.co_filename))
        try:
            for node in ast.parse(text).body:
                if getattr(node, "name", None) == name and _is_as_written(value, node, _codes(node)):
                    return _definition(text, node)
        except Exception:  # a cell with magics, or an expression that cannot be evaluated any more
            continue
    return None


def is_of_a_cell(value: object) -> bool:
    """Return whether `value` is a function or class that a cell defines."""
    return isinstance(value, type | types.FunctionType) and value.__module__ == "__main__"


def _functions_in(value):
    members = vars(value).values() if isinstance(value, type) else [value]
    members = [inspect.unwrap(getattr(member, "fget", None) or member) for member in members]
    return [member for member in members if isinstance(member, types.FunctionType)]


def _definition(text, node):
    text = "\n".join(text.split("\n")[_first_line(node) - 1 : node.end_lineno])
    needs, uses = set(), set()
    scopes = [symtable.symtable(f"from __future__ import annotations\n{text}", "<cell>", "exec")]
    for scope in scopes:
        scopes += scope.get_children()
        names = {each.get_name() for each in scope.get_symbols() if each.is_global() and not each.is_imported()}
        (needs if scope.get_type() in ("module", "class") else uses).update(names)
    dotted = {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return Definition(text, needs - {node.name}, uses, dotted)


def _first_line(node):
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _codes(node):
    """Return the code objects of all functions in a statement, compiled as in its cell."""
    codes = [compile(ast.Module([node], []), "<cell>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(codes)


def _is_as_written(value, node, codes):
    """Return whether `value` is exactly what `node`, a definition or expression, makes: nothing was changed later."""
    if isinstance(node, ast.expr):
        return _comes_to(node, value)
    if isinstance(node, ast.ClassDef):
        return isinstance(value, type) and _is_class_as_written(value, node, codes)
    for _ in node.decorator_list:
        if _has_more(value):
            return False
        value = getattr(value, "__wrapped__", None) or getattr(value, "fget", None)
    if not isinstance(value, types.FunctionType) or value.__code__ not in codes or _has_more(value):
        return False
    if value.__code__.co_firstlineno != _first_line(node):
        return False  # another function of that name
    written = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return all(_comes_to(*pair) for pair in zip(written, given, strict=True))


def _is_python_s(name):
    return name.startswith("__") and name.endswith("__")


def _has_more(value):
    return any(not _is_python_s(name) for name in getattr(value, "__dict__", ()))


def _is_class_as_written(value, node, codes):
    members, written = vars(value), {}
    if type(value) is not type or node.keywords or node.decorator_list or "__init_subclass__" in members:
        return False  # other code, such as a metaclass or decorator, takes part in making it
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            written[each.name] = each
        elif isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            written[each.targets[0].id] = each.value
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            written |= {each.target.id: each.value} if each.value else {}
        elif not isinstance(each, ast.Pass) and not isinstance(getattr(each, "value", None), ast.Constant):
            return False  # made in a loop, or under an `if`
    if {name for name in members if callable(members[name]) or not _is_python_s(name)} - written.keys():
        return False
    if not all(_comes_to(*pair) for pair in zip(node.bases, value.__bases__ if node.bases else (), strict=True)):
        return False
    return all(_is_as_written(members[name], each, codes) for name, each in written.items())


def _comes_to(expression, value):
    """Return whether a literal or a dotted name still evaluates to `value`. Raises ValueError for other expressions."""
    if all(isinstance(each, ast.Name | ast.Attribute | ast.Load) for each in ast.walk(expression)):
        return eval(ast.unparse(expression), vars(sys.modules["__main__"])) is value
    found = ast.literal_eval(expression)
    return type(found) is type(value) and found == value
