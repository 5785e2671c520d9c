"""Write the course as students get it, without solutions, answers, outputs and history: make student DIR=….

python -m tools.student_tree DIR [--colab ADDRESS] [--without-agents]

AGENTS.md, which most programming assistants read, asks them to teach and not to solve.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from tools import notebooks
from tools.lab import working_copy

ROOT = Path(__file__).resolve().parent.parent
# Not handed out: solutions, tests (which hold right and wrong answers), and internal files.
FOR_ASSISTANTS = "tools/for_assistants.md"  # becomes AGENTS.md
LEFT_OUT = {"notebooks/solutions", "tests", ".ci", ".github", FOR_ASSISTANTS}
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
    parser.add_argument("folder", help="a new or empty folder outside of the course")
    parser.add_argument(
        "--colab", metavar="ADDRESS", help="begin each notebook with a cell that clones ADDRESS on Colab"
    )
    parser.add_argument(
        "--without-agents", action="store_true", help="no AGENTS.md, which asks programming assistants not to solve"
    )
    options = parser.parse_args(argv)
    if not options.folder:
        sys.exit("student: name the folder to write: make student DIR=../handed_out")
    folder = Path(options.folder).expanduser().absolute()
    try:
        count = write(folder, options.colab, not options.without_agents)
    except (OSError, ValueError) as error:
        sys.exit(f"student: {error}")
    print(f"{count} files are in {folder}: notebooks without outputs, no solutions, no tests, no history.")


def write(folder, colab=None, with_agents=True):
    """Write the tree, return the number of files; raises ValueError for a folder that is not empty or in the course."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty, and nothing is written over: name a new folder")
    if folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} lies in the course itself: name a folder outside of it")
    files = [
        name for name in of_the_course() if not LEFT_OUT & {name, *(parent.as_posix() for parent in Path(name).parents)}
    ]
    for name in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".ipynb":
            text = working_copy.without_outputs(ROOT / name)
            target.write_text(for_colab(text, colab) if colab else text, encoding="utf-8")
        else:
            shutil.copy2(ROOT / name, target)
    if with_agents:
        shutil.copy2(ROOT / FOR_ASSISTANTS, folder / "AGENTS.md")
    return len(files) + with_agents


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
