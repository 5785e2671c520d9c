"""Atomic file writes."""

import os
import tempfile
from pathlib import Path


def write_whole(text, path, mode=0o644):
    """Write the file atomically, so that an interrupt leaves either the old file or the new one."""
    path = Path(path)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, mode)  # mkstemp's 0600 would hide the file from a class
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
