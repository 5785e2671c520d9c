"""The sources of the slides: of each chapter its question, objectives, predictions, figures and key points."""

import ast
import base64
import re
import struct

from tools import notebooks

from .pages import Figures, read

# A slide in pixels, and the height that a figure has below its heading, as in slides.css.
WIDTH, HEIGHT = 1280, 650
KEYS = "→ next slide · Esc all slides · F full screen · Alt and a click (on Linux Ctrl) enlarge a place, and undo it"
# A prediction, with the list that may follow it, or a question.
SAID = re.compile(r"^\*\*(Predict|For discussion)[.:]\*\* (.*(?:\n\n?- .*)*)", re.MULTILINE)
# A sentence on where the notebook shows what was predicted: slides do not.
SHOWN = re.compile(r"(?<=[.?!]) [^.?!]*\byour number\b[^.?!]*\.")


def write(course, source, names=()):
    """Write a page of slides for each chapter of the course at `course`, or for those called `names`, such as "09".

    Raises ValueError as pages.write does, and for a name that no chapter has.
    """
    source.mkdir(parents=True)
    titles = {}
    for path in notebooks.notebook_paths(names, folder=course / "notebooks"):
        nb = read(path)
        titles[path.stem] = nb.cells[0].source.splitlines()[0].removeprefix("# ")
        slides = [*of_a_chapter(nb, Figures(source, path.stem))]
        (source / f"{path.stem}.md").write_text("\n\n".join(slides) + "\n", encoding="utf-8")
    lines = "\n".join(f"- [{title}]({stem}.md)" for stem, title in titles.items())
    index = f"# From One GPU to Many\n\n{lines}\n\n{KEYS}\n\n```{{toctree}}\n:hidden:\n:glob:\n\n*\n```\n"
    (source / "index.md").write_text(index, encoding="utf-8")


def of_a_chapter(nb, figures):
    """The Markdown of each slide in order."""
    title, *paragraphs = nb.cells[0].source.split("\n\n")
    yield f"{title}\n\n{plain(paragraphs[0])}"
    section, is_asked = None, False  # whether a slide has the prediction that a cell's field is for
    for cell in nb.cells:
        if cell.cell_type == "code":
            for question in questions(cell.source) if not is_asked else ():
                yield f"## Predict\n\n{question}"
            pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
            for picture in pictures:
                image, halves = figures.add(picture), style_of_halves(picture)
                yield f"## {section}\n\n{image}"
                for where, half in {"top": "upper half", "bottom": "lower half"}.items() if halves else ():
                    style = f'<img style="{halves} object-position: {where}" '
                    yield f"## {section}, {half}\n\n{image.replace('<img ', style)}"
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if part.startswith("## "):
                section, is_asked = part.splitlines()[0].removeprefix("## "), False
                if section in ("Objectives", "Key points"):
                    bullets = re.findall(r"^- .*", part, re.MULTILINE)
                    yield f"## {section}\n\n{plain(chr(10).join(bullets))}"
            for head, words in SAID.findall(part):
                is_asked = is_asked or head == "Predict"
                yield f"## {head}\n\n{plain(SHOWN.sub('', words[0].upper() + words[1:]))}"


def questions(source):
    """Return what the calls `predict("…")` of a cell ask."""
    try:
        calls = [part for part in ast.walk(ast.parse(source)) if isinstance(part, ast.Call) and part.args]
    except SyntaxError:  # it begins with a magic
        return []
    asked = [call.args[0] for call in calls if getattr(call.func, "id", "") == "predict"]
    return [each.value for each in asked if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def style_of_halves(output):
    """The style that shows half of a figure too tall to be read as a whole, or None; the halves overlap a little."""
    width, height = struct.unpack(">II", base64.b64decode(output.data["image/png"])[16:24])
    whole, halved = (min(WIDTH / width, room / height) for room in (HEIGHT, 1.9 * HEIGHT))
    return f"width: {width * halved:.0f}px; object-fit: cover;" if halved > 1.25 * whole else None


def plain(text):
    """The text with links replaced by their words, since slides have no links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
