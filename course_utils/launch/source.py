"""The text of functions and classes that cells define, where running it again makes the same.

Where that is not certain (a closure, a class that was changed since, a function whose default is a tensor) there is no
text, and nothing is lost: such a thing travels by value, as to a worker.
"""

import ast
import inspect
import linecache
import symtable
import sys
import types
from dataclasses import dataclass

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Definition:
    """The `text` of a `def` or `class` at the top of a cell, and the global names in it.

    `needs` must be there before the text runs, as decorators, defaults and base classes must; `uses` only when what it
    defines is called.
    """

    text: str
    needs: set
    uses: set


def definition(name, value):
    """The Definition that has bound `value`, a cell's function or class, to `name`; None where it has no such text."""
    for file in {function.__code__.co_filename for function in _functions_in(value)}:
        text = "".join(linecache.getlines(file))
        try:
            for node in ast.parse(text).body:
                if getattr(node, "name", None) == name and _is_as_written(value, node, _codes(node)):
                    return _definition(text, node)
        except Exception:  # not Python alone, or an expression that cannot be looked up any more
            continue
    return None


def is_of_a_cell(value):
    """Whether `value` is a function or a class that a cell defines."""
    return isinstance(value, type | types.FunctionType) and value.__module__ == "__main__"


def is_python_s(name):
    return name.startswith("__") and name.endswith("__")


def _functions_in(value):
    members = vars(value).values() if isinstance(value, type) else [value]
    members = [inspect.unwrap(getattr(member, "fget", None) or member) for member in members]
    return [member for member in members if isinstance(member, types.FunctionType)]


def _definition(text, node):
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    text = "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    table = symtable.symtable(text, "<cell>", "exec")
    needs, uses = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}, set()
    for scope in table.get_children():
        if scope.get_type() == "class":
            needs |= _globals_in(scope)
            uses |= {name for method in scope.get_children() for name in _all_globals_in(method)}
        else:
            uses |= _all_globals_in(scope)
    return Definition(text, needs - {node.name}, uses)


def _globals_in(scope):
    return {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}


def _all_globals_in(scope):
    return _globals_in(scope).union(*map(_all_globals_in, scope.get_children()))


def _codes(node):
    """The code of all functions in a statement."""
    codes = [compile(ast.Module([node], []), "<cell>", "exec", dont_inherit=True)]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(codes)


def _is_as_written(value, node, codes):
    """Whether `value` is what `node`, a definition or expression, makes, with nothing that was hung onto it later."""
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
    if value.__code__.co_firstlineno != min([node.lineno, *(each.lineno for each in node.decorator_list)]):
        return False  # another of that name
    pairs = list(zip(node.args.defaults, value.__defaults__ or (), strict=True))
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults)
    pairs += [(default, value.__kwdefaults__[arg.arg]) for arg, default in keywords if default is not None]
    return all(_comes_to(default, given) for default, given in pairs)


def _has_more(value):
    return any(not is_python_s(name) for name in getattr(value, "__dict__", ()))


def _is_class_as_written(value, node, codes):
    if type(value) is not type or node.keywords or node.decorator_list or value.__qualname__ != node.name:
        return False
    if any("__init_subclass__" in vars(base) and is_of_a_cell(base) for base in value.__mro__[1:]):
        return False  # which runs as the text does, and may want what is there only later
    written = {}
    for each in node.body:
        if isinstance(each, _FUNCTIONS):
            written[each.name] = each
        elif isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            written[each.targets[0].id] = each.value
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            written |= {each.target.id: each.value} if each.value else {}
        elif not isinstance(each, ast.Pass) and not isinstance(getattr(each, "value", None), ast.Constant):
            return False  # made in a loop, or under an `if`
    members = vars(value)
    if {name for name in members if callable(members[name]) or not is_python_s(name)} - written.keys():
        return False
    bases = zip(node.bases, value.__bases__ if node.bases else (), strict=True)
    return all(_comes_to(base, given) for base, given in bases) and all(
        _is_as_written(members[name], each, codes) for name, each in written.items()
    )


def _comes_to(expression, value):
    """Whether a literal or a dotted name is `value` still. Raises ValueError for any other expression."""
    if all(isinstance(each, ast.Name | ast.Attribute | ast.Load) for each in ast.walk(expression)):
        return eval(ast.unparse(expression), vars(sys.modules["__main__"])) is value
    found = ast.literal_eval(expression)
    return type(found) is type(value) and found == value
