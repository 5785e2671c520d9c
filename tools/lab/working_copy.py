"""A student's own copy of the notebooks, made once by `make lab` and never overwritten; `git pull` does not affect it.

Everything in notebooks/ is handed out, with outputs removed, since those would answer every prediction. When the course
changes, unchanged files are updated. If the student has changed a file, the new version is put beside it:
03_v2_name.ipynb.
"""

import fcntl
import hashlib
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

from course_utils.whole_files import write_whole

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "notebooks"
# In the copy: for each course file the names under which it was handed out, oldest first, with a digest of each.
HANDED_OUT = ".handed_out.json"
# What somebody who works in the course itself has predicted there; each copy has its student's own.
PREDICTIONS = "predictions*.json"


def place():
    """The folder of this user's copy: MY_COURSE, else in the user's own checkout, else in the home folder."""
    given = os.environ.get("MY_COURSE")
    if given:
        return Path(given).expanduser().absolute()
    return (ROOT if os.access(ROOT, os.W_OK) else Path.home()) / "my_course"


def bring_up_to_date(folder, course=COURSE):
    """Make or update the copy in `folder`; return (theirs, newer) names for each file put beside a changed one.

    Raises OSError if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # other students must not read the answers
    offered = []
    with _alone(folder):
        handed_out = _read(folder)
        try:
            for source in _files(course):
                name = source.relative_to(course).as_posix()
                text = without_outputs(source, language_info=_language_info())
                offered += _hand_out(folder, name, text, handed_out.setdefault(name, {}))
        finally:
            write_whole(json.dumps(handed_out, indent=1), folder / HANDED_OUT)
    return offered


def _language_info():
    """What the kernel says of its language; with it in a notebook, JupyterLab changes nothing when it opens it."""
    from ipykernel.ipkernel import IPythonKernel

    return IPythonKernel.language_info


def without_outputs(path, **metadata):
    """The text of a course file as it is handed out; `metadata` is put into a notebook's."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    nb = json.loads(text)
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    nb["metadata"] |= metadata
    return json.dumps(nb, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _files(course):
    """The course's files, without leftovers of running them."""
    for path in sorted(course.rglob("*")):
        parts = path.relative_to(course).parts
        is_leftover = path.match(PREDICTIONS) or any(part.startswith((".", "__")) for part in parts)
        if path.is_file() and not is_leftover:
            yield path


def _hand_out(folder, name, text, versions):
    """Hand out the file `name` if it is new or changed, and update `versions`, {file: digest}."""
    digest = _digest(text, name)
    there = [file for file in versions if (folder / file).exists()]
    if there and list(versions.values())[-1] == digest:
        return []
    latest = there[-1] if there else None
    if latest and _digest(_text(folder / latest), latest) == versions[latest]:
        target = latest
    else:
        target = _free(folder, name, versions, digest)
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    write_whole(text, folder / target)
    versions.pop(target, None)
    versions[target] = digest
    return [(name, target)] if target != name else []


def _free(folder, name, versions, digest):
    """A free name: `name` itself, or with a version number.

    If the list was lost, a file with exactly this text counts as free.
    """
    path, number = Path(name), 1
    target = name
    while (folder / target).exists() or (number > 1 and target in versions):
        if not versions and _digest(_text(folder / target), target) == digest:
            return target
        number += 1
        # A chapter's number stays in front and the version follows: JupyterLab's list of files cuts off long names.
        chapter = re.match(r"\d+(?=_)", path.stem)
        stem = path.stem.replace("_", f"_v{number}_", 1) if chapter else f"{path.stem}_v{number}"
        target = path.with_name(stem + path.suffix).as_posix()
    return target


def _digest(text, name):
    """A digest of what a student may change: in a notebook the cells and whether they ran, not JupyterLab's data."""
    if name.endswith(".ipynb"):
        try:
            cells = json.loads(text)["cells"]
            text = json.dumps(
                [[cell["cell_type"], "".join(cell["source"]), bool(cell.get("outputs"))] for cell in cells]
            )
        except (ValueError, KeyError, TypeError):
            pass  # no longer a notebook
    return hashlib.sha256(text.encode()).hexdigest()


def _text(path):
    return path.read_text(encoding="utf-8", errors="replace")


def _read(folder):
    try:
        return json.loads((folder / HANDED_OUT).read_text())
    except (OSError, ValueError):
        return {}


@contextmanager
def _alone(folder):
    """Within this block no other `make lab` writes into the folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(handle)
