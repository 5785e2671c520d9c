"""Output in a locale without UTF-8 (LC_ALL=C), which lacks some characters, and output that nobody reads on."""

import codecs
import contextlib
import os
import sys


def print_what_can_be():
    """Have stdout print `?` for a character that its encoding lacks, instead of raising UnicodeEncodeError."""
    with contextlib.suppress(AttributeError, LookupError):  # a notebook's stdout, or None
        if codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8":
            sys.stdout.reconfigure(errors="replace")


def say(text, file=None):
    """Print to `file`, by default stdout; once nobody reads it, as after `| head`, go on without."""
    file = file or sys.stdout
    try:
        print(text, file=file, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
