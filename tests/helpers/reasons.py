"""The sentences that a chapter's check may say, read from its source, and which of them a reason holds."""

import ast
import re

FEWEST_WORDS = 4  # in what is a sentence, and no name or number


def sentences(path):
    """{line: pattern} for each sentence in a check's functions; what is filled in may be anything."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed_over = set(_no_reasons(tree))
    return {
        node.lineno: pattern
        for node in ast.walk(tree)
        if _is_text(node) and node not in passed_over and (pattern := _pattern(node))
    }


def _pattern(node):
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    fixed = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None for part in parts]
    num_words = sum(len(re.findall(r"\b[A-Za-z]+\b", text)) for text in fixed if text)
    if num_words < FEWEST_WORDS or (fixed[-1] or "").endswith("\n"):  # a name, a number, or a program
        return None
    literal = [r"\{\}" if text is None else re.escape(text) for text in fixed]
    return re.compile("".join(literal).replace(r"\{\}", ".*"), re.DOTALL)  # `{}` is filled in by format()


def _no_reasons(tree):
    """What no answer is told: the parts of longer strings, docstrings, patterns, and what the functions below find."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    made = {function.name: _values_of(function, ast.Return) for function in functions}
    tables = made | {
        name: [node.value] for node in tree.body if isinstance(node, ast.Assign) for name in _names(*node.targets)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield from (part for value in node.values for part in ast.walk(value))
        elif _calls(node, "re."):
            yield from ast.walk(node.args[0])
    for function in functions:
        found = [*_said_to_whom_passes(function, made), *_about_the_machine(function), *_places(function, tables)]
        yield from (part for value in found if value for part in ast.walk(value))


def _said_to_whom_passes(function, made):
    """What a check returns, with what is assigned to the names in it, and what functions return for it."""
    if function.name.startswith("check_"):
        yield from _with_their_names(made[function.name], function)
        yield from (value for name in _names(*made[function.name]) & made.keys() for value in made[name])


def _about_the_machine(function):
    """The exceptions that are not Wrong, and the bodies of functions that only report on the machine.

    Such a function returns at once, whatever the answer, if a call without arguments says so.
    """
    errors = [error for error in _values_of(function, ast.Raise) if not _calls(error, "Wrong")]
    yield from _with_their_names(errors, function)
    for node in function.body[:2]:  # perhaps behind a docstring
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Return) and isinstance(node.test, ast.UnaryOp):
            if isinstance(node.test.operand, ast.Call) and not node.test.operand.args:
                yield function


def _places(function, tables):
    """Where something happens: the arguments of `case(…)` and strings of tables.

    The latter are those that become `what` in `for what, x in table: … case(what)`.
    """
    cases = [node for node in ast.walk(function) if _calls(node, "case")]
    yield from cases
    names = _behind(_names(*cases), function)
    for loop in (node for node in ast.walk(function) if isinstance(node, (ast.For, ast.comprehension))):
        looked_up = [value for name in _behind(_names(loop.iter), function) & tables.keys() for value in tables[name]]
        rows = [row for value in looked_up for node in ast.walk(value) for row in _rows(node)]
        for target in (node for node in ast.walk(loop.target) if isinstance(node, ast.Tuple)):
            for i, item in enumerate(target.elts):
                if isinstance(item, ast.Name) and item.id in names:
                    yield from (row[i] for row in rows if len(row) == len(target.elts) and _is_text(row[i]))


def _rows(node):
    """What a loop over this table, or over its items(), gives."""
    if isinstance(node, ast.Dict):
        return list(zip(node.keys, node.values))
    return [node.elts] if isinstance(node, ast.Tuple) else []


def _behind(names, function):
    """These names, and those in what is assigned to them in the function."""
    while more := _names(*(value for to, value in _assigned(function) if names & _names(to))) - names:
        names = names | more
    return names


def _with_their_names(values, function):
    """These values, and what is assigned to the names in them in the function."""
    return [*values, *(value for target, value in _assigned(function) if _names(target) & _names(*values))]


def _assigned(node):
    """(target, value) of each assignment in it."""
    return [(part.targets[0], part.value) for part in ast.walk(node) if isinstance(part, ast.Assign)]


def _values_of(function, kind):
    """What is returned, or raised, in the function."""
    found = [
        getattr(node, "value", getattr(node, "exc", None)) for node in ast.walk(function) if isinstance(node, kind)
    ]
    return [value for value in found if value]


def _names(*nodes):
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _is_text(node):
    return isinstance(node, (ast.JoinedStr, ast.Constant))


def _calls(node, name):
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(name)
