"""Files that are whole or not there."""

import os
import tempfile
from pathlib import Path


def write_whole(text, path):
    """Write the file at once, so that an interrupt cannot leave half of it, nor cost the one before."""
    path = Path(path)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, 0o644)  # mkstemp's 0600 would hide the file from a class
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
