"""Markdown pages without the links that lead to what their readers do not have."""

import os
import re

LINK = re.compile(r"(?P<see>[:,;]? see )?!?\[(?P<text>[^\]]*)\]\((?P<to>[^)\s]+)\)")


def without_links(text, name, is_lost):
    """The page `name` of the course without what leads to files for which `is_lost(path)` is true.

    Rows of tables and badges with such a link are left out; of other links only the text is kept, and nothing of
    `see [text](page)`.
    """

    def leads_nowhere(link):
        path = link["to"].partition("#")[0]
        target = os.path.normpath(os.path.join(os.path.dirname(name), path))
        return bool(path) and not re.match(r"\w+:", path) and is_lost(target)

    def without(link):
        return "" if link["see"] else link["text"]

    lines = []
    for line in text.splitlines():
        lost = any(leads_nowhere(link) for link in LINK.finditer(line))
        if not (lost and line.startswith(("|", "[!["))):
            lines.append(LINK.sub(lambda link: without(link) if leads_nowhere(link) else link[0], line))
    return "\n".join(lines) + "\n"
