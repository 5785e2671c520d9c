"""Output in a locale without UTF-8 (LC_ALL=C), which lacks some of the characters that the course prints."""

import codecs
import contextlib
import sys


def print_what_can_be():
    """Have stdout print `?` for a character that its encoding lacks, instead of raising UnicodeEncodeError."""
    with contextlib.suppress(AttributeError, LookupError):  # a notebook's stdout, or None
        if codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
            sys.stdout.reconfigure(errors="replace")
