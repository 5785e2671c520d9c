"""What the course is made, checked and recorded with; no part of the installed package."""

import sys

# jsonschema, which nbformat imports, would build a grammar of web addresses: a second, and no notebook needs it.
sys.modules.setdefault("rfc3987_syntax", None)
