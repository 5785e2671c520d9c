"""The modules of a package, and what each of them imports, read from their text."""

import ast


def imported(tree, module, is_package):
    """(dotted module or name, line) for each import in a file, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def modules(package):
    """(path, its module's dotted name) for each file of the package but its own __init__.py."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if parts[1:] != ("__init__",):
            yield path, ".".join(parts).removesuffix(".__init__")
