"""What the course is made, checked and recorded with; no part of the installed package."""

import codecs
import contextlib
import sys

# As the course does (course_utils.processes.terminal), which is not there yet when tools.install.bootstrap runs:
# without UTF-8 the standard output shows `?` for a character that it lacks.
with contextlib.suppress(AttributeError, LookupError):
    if codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
        sys.stdout.reconfigure(errors="replace")

# jsonschema, which nbformat imports, would build a grammar of web addresses: a second, and no notebook needs it.
sys.modules.setdefault("rfc3987_syntax", None)
