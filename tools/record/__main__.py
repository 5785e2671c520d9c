"""Run the notebooks top to bottom and keep their outputs and measurements: `make record`.

    python -m tools.record [09 00 ...]

Outputs go into the notebooks, and what they pass to `recorded.keep` into data/recorded/<machine>/. Changes against this
machine's last record are printed, with every claim whose text changed. A notebook that fails, or whose outputs must not
be committed, keeps its old file and records; the exit code is then 1.
"""

import base64
import json
import os
import re
import site
import sys
import sysconfig
import tempfile
import textwrap
import time
from pathlib import Path

from course_utils.measure.claims import HERE
from tools import notebooks
from tools.record import keeping

MAX_BYTES = 500_000
# The README's picture: its chapter, and the beginning of its figure's alternative text.
PICTURE = ("09_distributed_data_parallel", "Images per second over workers")
PICTURE_FILE = notebooks.ROOT / "data" / "recorded" / "scaling.png"


def main(names):
    os.environ.pop("COURSE_QUICK", None)
    try:
        paths = notebooks.notebook_paths(names)
    except ValueError as error:
        sys.exit(f"record: {error}")
    if not paths:
        sys.exit(f"record: there is no notebook in {notebooks.NOTEBOOKS}")
    failed = []
    for path in paths:
        print(f"{path.stem} …", end=" ", flush=True)
        start_s = time.perf_counter()
        try:
            problems, changes = record(path)
        except KeyboardInterrupt:
            sys.exit(f"\nrecord: interrupted, {path.name} stays as it was")
        seconds = time.perf_counter() - start_s
        if problems:
            failed.append(path.stem)
            print(f"not recorded after {seconds:.0f} s, the old file stays:")
            print(textwrap.indent("\n".join(problems), "    "))
        else:
            print(f"{seconds:.0f} s, {path.stat().st_size / 1000:.0f} kB")
            print(textwrap.indent("".join(f"{line}\n" for line in changes), "    "), end="")
    if failed:
        sys.exit(f"record: {len(failed)} of {len(paths)} not recorded: {', '.join(failed)}")


def record(path, folder=None, records=keeping.FOLDER):
    """Run the notebook, write it back with its outputs, and write its measurements into `records`.

    Returns two lists of lines: reasons why it was not written, and changes in measurements and claims.
    """
    nb = notebooks.normalise(notebooks.read(path))
    said = claims(nb)
    with tempfile.TemporaryDirectory(prefix="course-record-") as kept:
        try:
            notebooks.execute(nb, folder or path.parent, keep_in=kept)
        except notebooks.CellFailed as error:
            return [str(error)], []
        values = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(Path(kept).glob("*.json"))}
    relative_paths(nb)
    chapter = path.stem[:2]
    problems = [
        *silent_cells(nb),
        *lonely_widgets(nb),
        *paths_left(nb),
        *keeping.names_taken(chapter, values, records),
    ]
    nb = notebooks.normalise(nb)
    size = len(notebooks.dumps(nb).encode())
    if size >= MAX_BYTES:
        problems.append(
            f"{size} bytes, and {MAX_BYTES} is the limit: {heaviest_cell(nb)}; draw it smaller or with fewer points"
        )
    is_readmes = path == notebooks.NOTEBOOKS / f"{PICTURE[0]}.ipynb"
    if is_readmes and picture(nb) is None:
        problems.append(
            f"no figure's alternative text begins with {PICTURE[1]!r}, so the README would keep its old picture"
        )
    if problems:
        return problems, []
    notebooks.write(nb, path)
    if is_readmes:
        PICTURE_FILE.write_bytes(picture(nb))
    changes = keeping.save_chapter(chapter, values, f"make record ARGS={chapter}", records)
    return [], changes + [f"now claimed: {line.removeprefix(HERE)}" for line in claims(nb) if line not in said]


def claims(nb):
    """The output lines that `claim` printed."""
    return [
        line
        for cell in nb.cells
        for output in cell.get("outputs", [])
        for text in notebooks.texts(output)
        for line in text.splitlines()
        if line.startswith(HERE)
    ]


def picture(nb):
    """The README's picture as PNG bytes; None if the notebook has none."""
    for output in (output for cell in nb.cells for output in cell.get("outputs", [])):
        if output.get("metadata", {}).get("image/png", {}).get("alt", "").startswith(PICTURE[1]):
            return base64.b64decode(output.data["image/png"])
    return None


def silent_cells(nb):
    """Report tagged cells that raised nothing, since they contradict their text."""
    return [
        f"cell {i} is tagged {notebooks.FAILS_ON_PURPOSE} and raised nothing"
        for i, names in notebooks.raised_on_purpose(nb).items()
        if not names
    ]


def lonely_widgets(nb):
    """Report widgets without a figure, since widgets need a running kernel and readers of the file have none."""
    return [
        f"cell {i} shows a widget and no figure: display the figure for the starting values too"
        for i, cell in enumerate(nb.cells)
        if any(map(notebooks.is_widget, cell.get("outputs", [])))
        and not any("image/png" in output.get("data", {}) for output in cell.outputs)
    ]


def paths_left(nb):
    return [
        f"cell {i} printed the path {path}, which is true on this machine only: "
        "print its name, or repair the warning that shows it"
        for i, cell in enumerate(nb.cells)
        for output in cell.get("outputs", [])
        for text in notebooks.texts(output)
        for path in notebooks.machine_paths(text)
    ]


def relative_paths(nb):
    """Shorten paths in tracebacks through course_utils or a library to the part that readers know."""
    roots = {str(notebooks.ROOT), *site.getsitepackages()}
    roots |= {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    home = str(Path.home())
    # IPython writes the home folder as ~.
    roots |= {"~" + root.removeprefix(home) for root in roots if root.startswith(f"{home}/")}
    # Longest first, since one root may contain another.
    choices = "|".join(re.escape(root) for root in sorted(roots, key=len, reverse=True))
    rooted = re.compile(rf"(^|[^\w.]|{notebooks.ANSI_COLOUR.pattern})(?:{choices})/", re.MULTILINE)

    def shorten(text):
        return rooted.sub(r"\1", text)

    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = shorten(output.text)
            elif output.output_type == "error":
                output.evalue = shorten(output.evalue)
                output.traceback = [shorten(line) for line in output.traceback]
            else:
                for mime, text in output.data.items():
                    if mime.startswith("text/"):
                        output.data[mime] = shorten(text)


def heaviest_cell(nb):
    sizes = [sum(len(str(output)) for output in cell.get("outputs", [])) for cell in nb.cells]
    i = max(range(len(sizes)), key=sizes.__getitem__, default=0)
    return f"cell {i}'s outputs alone are {sizes[i]} bytes" if sizes else "it has no cells"


if __name__ == "__main__":
    main(sys.argv[1:])
