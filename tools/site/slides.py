"""The sources of the slides: of each chapter its question, objectives, predictions, figures and key points."""

import re

from tools import notebooks

from .pages import Figures, read

# A prediction, with the list that may follow it, or a question.
SAID = re.compile(r"^\*\*(Predict|For discussion)[.:]\*\* (.*(?:\n\n?- .*)*)", re.MULTILINE)


def write(course, source):
    """Write a page of slides for each chapter of the course at `course`; raises ValueError as pages.write does."""
    source.mkdir(parents=True)
    titles = {}
    for path in notebooks.notebook_paths(folder=course / "notebooks"):
        nb = read(path)
        titles[path.stem] = nb.cells[0].source.splitlines()[0].removeprefix("# ")
        slides = [*of_a_chapter(nb, Figures(source, path.stem))]
        (source / f"{path.stem}.md").write_text("\n\n".join(slides) + "\n", encoding="utf-8")
    lines = "\n".join(f"- [{title}]({stem}.md)" for stem, title in titles.items())
    index = f"# From One GPU to Many\n\n{lines}\n\n```{{toctree}}\n:hidden:\n:glob:\n\n*\n```\n"
    (source / "index.md").write_text(index, encoding="utf-8")


def of_a_chapter(nb, figures):
    """The Markdown of each slide in order."""
    title, *paragraphs = nb.cells[0].source.split("\n\n")
    yield f"{title}\n\n{plain(paragraphs[0])}"
    section = None
    for cell in nb.cells:
        if cell.cell_type == "code":
            pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
            yield from (f"## {section}\n\n{figures.add(output)}" for output in pictures)
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if part.startswith("## "):
                section = part.splitlines()[0].removeprefix("## ")
                if section in ("Objectives", "Key points"):
                    bullets = re.findall(r"^- .*", part, re.MULTILINE)
                    yield f"## {section}\n\n{plain(chr(10).join(bullets))}"
            for head, words in SAID.findall(part):
                yield f"## {head}\n\n{plain(words[0].upper() + words[1:])}"


def plain(text):
    """The text with links replaced by their words, since slides have no links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
