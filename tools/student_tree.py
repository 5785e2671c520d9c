"""Write the course as students get it, without solutions, answers, outputs and history: make student DIR=….

python -m tools.student_tree DIR [--colab ADDRESS] [--without-agents]

A second run brings what the first wrote up to date: it removes files that the course no longer has, writes those that
differ, and leaves alone what else is there, as .venv, build and a student's my_course.

AGENTS.md, which most programming assistants read, asks them to teach and not to solve.
"""

import argparse
import json
import re
import stat
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from course_utils.whole_files import write_whole
from tools import links, notebooks
from tools.lab import working_copy

ROOT = Path(__file__).resolve().parent.parent
# Not handed out: solutions, tests (which hold right and wrong answers), exam questions, and internal files.
FOR_ASSISTANTS = "tools/for_assistants.md"  # becomes AGENTS.md
LEFT_OUT = {"notebooks/solutions", "tests", ".ci", ".github", "docs/lecturers.md", "CONTRIBUTING.md", "CHANGELOG.md"}
TOOLS = {"tools/__init__.py", "tools/notebooks.py", "tools/install", "tools/lab"}  # handed out; no others are
COMMANDS_LEFT_OUT = "bench|browser|gpu|lock|record|site|slides|student|test"  # of `make`: they need what is left out
WRITTEN = ".course_files.json"  # in the folder: the names of the files that it was written with
CLONED = "git clone ADDRESS-OF-THIS-PAGE course && cd course\n"  # as README's first command
# What stands in its place: the tree lies on a server, or on a student's own computer.
THERE = """If this folder is on a server, type the first line there, and the second on your own computer, with the port
of the address that the first prints; then open that address. On a computer of your own, `make lab` is enough.

```
make lab LAB_ARGS=--no-browser                # prints an address, such as http://127.0.0.1:8888/lab?token=…
ssh -N -L 8888:127.0.0.1:8888 name@server     # on your own computer
```

"""
COLAB = """# On Colab each notebook has a machine of its own: fetch the course there and install it, once.
import os
import subprocess
import sys

if not os.path.exists("../course_utils"):
    if not os.path.exists("course"):
        subprocess.run(["git", "clone", "--quiet", "--depth=1", {address!r}, "course"], check=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-e", "./course[lab]"], check=True)
    os.chdir("course/notebooks")
    sys.path.insert(0, os.path.abspath(".."))
"""


def main(argv=None):
    parser = argparse.ArgumentParser(prog="make student", description="Write the course as students get it.")
    parser.add_argument("folder", help="outside of the course: a new folder, or one to update")
    parser.add_argument(
        "--colab", metavar="ADDRESS", help="begin each notebook with a cell that clones ADDRESS on Colab"
    )
    parser.add_argument(
        "--without-agents", action="store_true", help="no AGENTS.md, which asks programming assistants not to solve"
    )
    options = parser.parse_args(argv)
    if not options.folder:
        sys.exit("student: name the folder to write: make student DIR=../handed_out")
    folder = Path(options.folder).expanduser().resolve()
    try:
        is_update = (folder / WRITTEN).exists()
        written = write(folder, options.colab, not options.without_agents)
    except (OSError, ValueError) as error:
        sys.exit(f"student: {error}")
    if is_update:
        changes = ", ".join(f"{count} {what}" for what, count in written.items())
        print(f"{folder} was updated: {changes}; what else is there was left alone.")
    else:
        print(f"{written['new']} files are in {folder}: notebooks without outputs, no solutions, no tests, no history.")


def write(folder, colab=None, with_agents=True):
    """Write the tree, or update the one in `folder`; return {"new": number of files, "changed": …}.

    All may read it, whatever this user's umask is.

    Raises ValueError for a folder in the course, and for one that holds something and was not written by this.
    """
    if folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} lies in the course itself: name a folder outside of it")
    before = written_before(folder)
    if before is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty, and `make student` did not write it: name a new folder")
    files = contents([name for name in of_the_course() if is_handed_out(name)], colab, with_agents)
    count = dict.fromkeys(("new", "changed", "unchanged", "removed"), 0)
    make_open(folder)
    note(folder, files.keys() | (before or set()))  # all of them, so that a run that is cut short can be repeated
    for name, content in files.items():
        target = folder / name
        is_there = target.is_file()
        kind = "new" if not is_there else "unchanged" if target.read_bytes() == content else "changed"
        count[kind] += 1
        if kind != "unchanged":
            make_open(target.parent)
            target.write_bytes(content)
        source = ROOT / (name if name != "AGENTS.md" else FOR_ASSISTANTS)
        target.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644)
    for name in (before or set()) - files.keys():
        count["removed"] += remove(folder, name)
    note(folder, files)
    return count


def make_open(folder):
    """Make a folder and those above it, which all may read whatever the umask is; those that are there stay."""
    if not folder.is_dir():
        make_open(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def written_before(folder):
    """Return the names of the files that `folder` was written with, or None if this did not write it."""
    try:
        names = json.loads((folder / WRITTEN).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ValueError(f"{folder / WRITTEN} cannot be read: name a new folder") from None
    return {name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()}


def note(folder, names):
    write_whole(json.dumps(sorted(names), indent=0), folder / WRITTEN)


def remove(folder, name):
    """Remove a file, and folders that it leaves empty; return whether it was there."""
    path = folder / name
    if not path.is_file():
        return False
    path.unlink()
    for parent in path.parents:
        if parent == folder or any(parent.iterdir()):
            break
        parent.rmdir()
    return True


def is_handed_out(name):
    """Return whether students get this file of the course."""
    within = {name, *(parent.as_posix() for parent in Path(name).parents)}
    return not LEFT_OUT & within and (not name.startswith("tools/") or bool(TOOLS & within))


def contents(names, colab=None, with_agents=True):
    """Return {name: bytes} of the tree."""
    found = {}
    there = {path for name in names for path in (name, *(parent.as_posix() for parent in Path(name).parents))}
    for name in names:
        if name.endswith(".ipynb"):
            text = working_copy.without_outputs(ROOT / name)
            found[name] = (for_colab(text, colab) if colab else text).encode()
        elif name == "Makefile":
            found[name] = makefile((ROOT / name).read_text(encoding="utf-8")).encode()
        elif name.endswith(".md"):
            found[name] = page((ROOT / name).read_text(encoding="utf-8"), name, there).encode()
        else:
            found[name] = (ROOT / name).read_bytes()
    if with_agents:
        found["AGENTS.md"] = (ROOT / FOR_ASSISTANTS).read_bytes()
    return found


def makefile(text):
    """The Makefile without the commands that cannot work there, and what `make help` says of them."""
    left_out = rf"(?:{COMMANDS_LEFT_OUT})\b"
    blocks = [block for block in text.split("\n\n") if not re.search(rf"^{left_out}:", block, re.MULTILINE)]
    lines = [line for line in "\n\n".join(blocks).split("\n") if not re.search(rf"@echo .*\\`make {left_out}", line)]
    return "\n".join(re.sub(f" {left_out}", "", line) if line.startswith(".PHONY:") else line for line in lines)


def page(text, name, there):
    """A Markdown file without what leads to files that are not `there`, and without the commands that are not.

    Beside what `without_links` leaves out: rows of tables and lines with such a command, and sentences that begin with
    one.
    """
    text = links.without_links(text.replace(f"```\n{CLONED}", f"{THERE}```\n"), name, lambda path: path not in there)
    command = rf"make (?:{COMMANDS_LEFT_OUT})\b"
    left_out = rf"(?:\|.*`{command}|{command})"
    text = "".join(line for line in text.splitlines(keepends=True) if not re.match(left_out, line))
    begins_with_it = rf"(?:^|(?<=\. ))`(?:{command}|python -m tools\.gpu)[^.]*\.(?: |(?=\n))"
    text = re.sub(begins_with_it, "", text, flags=re.MULTILINE)
    text = re.sub(r"^## .*\n+(?=## )", "", text, flags=re.MULTILINE)  # a section of which nothing is left
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +$", "", text, flags=re.MULTILINE))


def for_colab(text, address):
    """The text of a notebook that fetches the course from `address` if it is missing."""
    nb = nbformat.reads(text, as_version=4)
    nb.cells.insert(0, new_code_cell(COLAB.format(address=address), id="colab"))
    return notebooks.dumps(nb)


def of_the_course():
    """The names of the course's files: what git tracks, without a lecturer's own notes or submissions."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError("git is needed here, which knows the course's own files from what lies beside them") from None
    if done.returncode:
        raise ValueError(f"git does not know the course's files ({done.stderr.strip()}): use a clone of the course")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


if __name__ == "__main__":
    main()
