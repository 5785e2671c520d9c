"""Finds the notebooks in the submitted folders, gives each a unique name, and reports other files."""

import os
import stat
import zipfile
from pathlib import Path

# Some browsers add .txt or .json to a notebook's name.
_NOTEBOOKS = (".ipynb", ".ipynb.txt", ".ipynb.json")
# Folders in which Jupyter and macOS keep copies; macOS writes ._name beside a file, too.
_MADE = {".ipynb_checkpoints", "__MACOSX"}
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".xz", ".bz2")


def find(paths):
    """Return [(name, path, why it is skipped, "" for a notebook)] of all files at `paths` and in folders there.

    They are in the order of their names, without regard to case.

    Names are unique: if two files would have the same name, all are named by what their paths do not have in common.
    Hidden files in a folder, which an operating system or editor makes, have the name "". One with a notebook's suffix
    has a name of its own, since somebody may have handed it in. In names, characters that are not printed, such as line
    breaks and marks for writing from right to left, and bytes that are no UTF-8 are written as \\n or \\u202e.

    Raises FileNotFoundError for a path that does not exist, or a folder without notebooks.
    """
    paths = [Path(path) for path in paths]
    found = {}  # {absolute path: (folder, path, why not)}
    for path in paths:
        if path.is_dir():
            inside = list(_files_in(path))
            if not any(not why for _, why in inside):
                raise FileNotFoundError(f"{path} holds no notebook: name the folder with the students' .ipynb files")
        elif os.path.lexists(path):
            inside = [(path, _why_not(path, is_named=True))]
        else:
            raise FileNotFoundError(f"there is no {path}")
        for file, why in inside:
            found.setdefault(os.path.abspath(file), (path, file, why or _why_hidden(path, file)))
    seen = [each for each in found.values() if not _is_nobodys(each[0], each[1])]
    # Where each student has a folder, its name says whose the notebook is.
    is_each_a_folder = len(paths) > 1 and all(map(os.path.isdir, paths))
    namings = (_from_their_common_folder(seen), lambda _, file: _stem(file), lambda _, file: file.as_posix())
    for naming in namings if is_each_a_folder else (_inside, *namings):
        names = [legible(naming(folder, file)) for folder, file, _ in seen]
        if len(set(names)) == len(names):
            break
    hidden = [("", file, "is hidden") for folder, file, _ in found.values() if _is_nobodys(folder, file)]
    named = [(name, file, why) for name, (_, file, why) in zip(names, seen, strict=True)]
    return sorted(named, key=lambda each: (each[0].casefold(), each[0])) + hidden


def _files_in(folder):
    unreadable = []
    for place, folders, files in os.walk(folder, onerror=unreadable.append):
        folders.sort()
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted(files + links):
            path = Path(place) / name
            is_folder = name in links
            yield path, "is a link to a folder, which is not followed" if is_folder else _why_not(path, is_inside=True)
    for error in unreadable:
        yield Path(error.filename), f"is a folder that cannot be read ({error.strerror})"


def legible(text):
    """Return `text` with an escape for each character that is not printed, so that a line shows all of it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _why_not(path, is_named=False, is_inside=False):
    """Return why a file is skipped, or "" if it may be a notebook. Opens only plain files.

    A link inside a submitted folder may lead to another's submission, or to a file of the lecturer's.
    """
    try:
        status = path.stat()
    except OSError as error:
        broken = path.is_symlink() and isinstance(error, FileNotFoundError)
        return "is a link to a file that is not there" if broken else f"cannot be read ({error.strerror})"
    if is_inside and path.is_symlink():
        return "is a link, which is not followed: put a copy in its place"
    if not stat.S_ISREG(status.st_mode):
        return "is no plain file but a pipe, socket or device"
    suffix = path.suffix.lower()
    if suffix in _ARCHIVES or _is_zip(path):
        return "is an archive: unpack it, and mark what is in it"
    is_notebook = is_named or path.name.lower().endswith(_NOTEBOOKS)
    return "" if is_notebook else "is no notebook: its name does not end in .ipynb"


def _is_zip(path):
    try:
        return zipfile.is_zipfile(path)
    except OSError:
        return False


def _why_hidden(folder, file):
    is_hidden = any(part.startswith(".") for part in _parts(folder, file))
    return "is hidden, since its name or its folder's begins with a dot: give it another" if is_hidden else ""


def _is_nobodys(folder, file):
    """Return whether a file in a folder is hidden, and so called that no student can have handed it in."""
    parts = _parts(folder, file)
    is_made = _MADE.intersection(parts) or any(part.startswith("._") for part in parts)
    is_notebook = file.name.lower().endswith(_NOTEBOOKS)
    return bool(is_made) or (not is_notebook and any(part.startswith(".") for part in parts))


def _parts(folder, file):
    """Return the names on the way from a folder to a file in it; none if the file itself was named."""
    return () if file == folder else file.relative_to(folder).parts


def _inside(folder, file):
    return _stem(Path(file.name) if file == folder else file.relative_to(folder))


def _from_their_common_folder(seen):
    """Return a naming by the part of a file's path below the last folder in which all files and named folders are."""
    places = [os.path.dirname(os.path.abspath(folder)) for folder, *_ in seen]
    common = os.path.commonpath(places) if places else os.sep
    return lambda _, file: _stem(Path(os.path.relpath(os.path.abspath(file), common)))


def _stem(file):
    """Return a notebook's path without its suffix; of other files the whole path."""
    return (file.with_suffix("") if file.suffix.lower() == ".ipynb" else file).as_posix()
