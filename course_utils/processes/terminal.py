"""Where the locale has no UTF-8 (LC_ALL=C), a terminal or pipe lacks some of the characters that the course prints."""

import codecs
import contextlib
import sys


def print_what_can_be():
    """Have the standard output show `?` for a character that it lacks; Python would raise UnicodeEncodeError."""
    with contextlib.suppress(AttributeError, LookupError):  # a notebook's, or none at all
        if codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
            sys.stdout.reconfigure(errors="replace")
