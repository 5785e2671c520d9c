"""Write the course as students get it: without solutions, answers and outputs, and without history: make student DIR=…

python -m tools.student_tree DIR
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools import working_copy

ROOT = Path(__file__).resolve().parent.parent
# Not handed out: answers, what holds them to account, and what only we need. Tests hold right and wrong answers.
LEFT_OUT = {"notebooks/solutions", "tests", ".ci"}


def main(argv=None):
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or not arguments[0]:
        sys.exit("student: name the folder to write: make student DIR=course-for-students")
    folder = Path(arguments[0]).expanduser().absolute()
    try:
        count = write(folder)
    except (OSError, ValueError) as error:
        sys.exit(f"student: {error}")
    print(f"{count} files are in {folder}: notebooks without outputs, no solutions, no tests, no history.")


def write(folder):
    """Write the tree; the number of files. Raises ValueError for a folder that is not empty or lies in the course."""
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
            target.write_text(working_copy.without_outputs(ROOT / name), encoding="utf-8")
        else:
            shutil.copy2(ROOT / name, target)
    return len(files)


def of_the_course():
    """The names of its files: what git keeps, and nothing that lies beside, a lecturer's own notes
    or what was handed in.
    """
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError("git is needed here, which knows the course's own files from what lies beside them") from None
    if done.returncode:
        raise ValueError(f"git does not know the course's files ({done.stderr.strip()}): use a clone of the course")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


if __name__ == "__main__":
    main()
