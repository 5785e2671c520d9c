"""The file in which a student's predictions are kept: `predictions.json`, beside the notebooks.

{chapter: {name of the variable: {"question", "unit", "predicted", "measured"}}}, with "predicted" null if it was
skipped. Several notebooks may write at once: each change locks the folder, reads the file, and replaces it whole.
"""

import contextlib
import fcntl
import functools
import json
import os
from pathlib import Path

from ..whole_files import write_whole

NAME = "predictions.json"


@functools.cache
def here():
    """Return what is kept in the folder in which this process first asked: the notebook's, whatever cells do later."""
    return Kept(Path.cwd())


class Kept:
    """The predictions in `folder`. What cannot be written there is kept until this process ends.

    Methods call `say` with a sentence if the file cannot be written, once, or was damaged.
    """

    def __init__(self, folder):
        self.folder, self._unsaved, self._has_said = Path(folder), {}, False

    def read(self, say):
        """Return everything that is kept."""
        entries = {}
        with contextlib.suppress(OSError), self._alone():
            entries = self._load(say)
        return _merged(entries, self._unsaved)

    def answer(self, chapter, name, entry, say):
        """Keep an answer. What was measured stays beside it only if it is the same answer again."""
        old = self.read(say).get(chapter, {}).get(name, {})
        if "measured" in old and old["predicted"] == entry["predicted"]:
            entry = entry | {"measured": old["measured"]}
        self._write(chapter, name, entry, say)

    def measured(self, chapter, name, value, say):
        """Keep what was measured beside an answer that is kept."""
        entry = self.read(say).get(chapter, {}).get(name)
        if entry is not None:
            self._write(chapter, name, entry | {"measured": value}, say)

    def _write(self, chapter, name, entry, say):
        self._unsaved = _merged(self._unsaved, {chapter: {name: entry}})
        try:
            with self._alone():
                _replace(self.folder / NAME, _merged(self._load(say), self._unsaved))
        except OSError as error:
            if not self._has_said:
                say(f"{NAME} cannot be written here ({error.strerror}): predictions are kept until the kernel ends.")
            self._has_said = True
        else:
            self._unsaved = {}

    def _load(self, say):
        """Return what the file holds; a damaged one is kept aside. Raises OSError if that, or reading, fails."""
        path = self.folder / NAME
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
            _require_entries(entries)
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            aside = _free(path)
            os.rename(path, aside)
            say(f"{NAME} was damaged: it is kept as {aside.name}, and a new one begins.")
            return {}
        return entries

    @contextlib.contextmanager
    def _alone(self):
        """Within this block no other notebook reads or writes the file."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _merged(entries, newer):
    return entries | {chapter: entries.get(chapter, {}) | named for chapter, named in newer.items()}


def _require_entries(entries):
    """Raise ValueError unless `entries` has the form of the file."""
    chapters = entries.values() if isinstance(entries, dict) else [None]
    if not all(isinstance(named, dict) for named in chapters):
        raise ValueError
    if not all(isinstance(entry, dict) and "predicted" in entry for named in chapters for entry in named.values()):
        raise ValueError


def _free(path):
    """Return a name beside `path` that no file has."""
    number, found = 1, path.with_name(f"{path.stem}_damaged{path.suffix}")
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}_damaged_{number}{path.suffix}")
    return found


def _replace(path, entries):
    text = json.dumps({chapter: entries[chapter] for chapter in sorted(entries)}, indent=1, ensure_ascii=False) + "\n"
    write_whole(text, path, mode=0o600)  # nobody else's business
