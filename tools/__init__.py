"""Tools that make, check and record the course; not part of the installed package."""

import codecs
import contextlib
import sys

# As in course_utils.processes.terminal, which tools.install.bootstrap cannot import yet: a standard output without
# UTF-8 shows `?` for characters that it lacks.
with contextlib.suppress(AttributeError, LookupError):
    if codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
        sys.stdout.reconfigure(errors="replace")

# jsonschema, imported by nbformat, would spend a second on a grammar of URLs that no notebook needs.
sys.modules.setdefault("rfc3987_syntax", None)
