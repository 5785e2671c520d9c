"""The sources of the site: what Sphinx renders, written into a separate folder."""

import base64
import html
import re
import shutil
import struct

import jupytext
from nbformat.v4 import new_markdown_cell, new_output

from tools import links, notebooks

from . import planner_page

TERM = re.compile(r"^- \*\*(?P<term>[^*]+)\*\* \((?P<chapter>\d\d)\)", re.MULTILINE)
LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)\s]+)(?P<tail>\))")
PAGE = re.compile(r"^\| \[[^\]]*\]\((?P<target>[^)]*\.md)\) \|", re.MULTILINE)  # a row of README's table of pages
LECTURERS = "docs/lecturers.md"  # the page with exam questions
ROW = re.compile(r"^\| (?P<number>\d*) *\| (?:\*\*(?P<part>[^*]+)\*\*|\[[^\]]*\]\((?P<file>[^)]*)\))", re.MULTILINE)


def write(course, source, solutions=True):
    """Write the pages of the course at `course` into the folder `source`.

    If `solutions` is false, as for students, without its solutions, and without the lecturers' page.

    Raises ValueError for a notebook that was not run.
    """
    chapters = notebooks.notebook_paths(folder=course / "notebooks")
    glossary = (course / "notebooks" / "glossary.md").read_text(encoding="utf-8")
    terms = [match["term"] for match in TERM.finditer(glossary)]
    (source / "notebooks" / "programs").mkdir(parents=True)
    (source / "notebooks" / "solutions").mkdir()
    for path in chapters:
        figures = Figures(source, f"notebooks/{path.stem}")
        notebooks.write(chapter(read(path), terms, figures), source / "notebooks" / path.name)
        if solutions:
            nb = jupytext.read(notebooks.solutions_path(path), fmt="py:percent")
            nb.metadata = notebooks.METADATA
            nb.cells.insert(0, new_markdown_cell(f"# Solutions to chapter {path.name[:2]}"))
            notebooks.write(nb, source / "notebooks" / "solutions" / path.name)
    for path in sorted((course / "notebooks" / "programs").glob("*.py")):
        page = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        (source / "notebooks" / "programs" / f"{path.stem}.md").write_text(page, encoding="utf-8")
    (source / "notebooks" / "glossary.md").write_text(anchored(glossary, chapters), encoding="utf-8")
    (source / "docs").mkdir()
    pages = [course / "CONTRIBUTING.md", *sorted((course / "docs").glob("*.md"))]
    for path in pages if solutions else [path for path in pages if path != course / LECTURERS]:
        text = with_files(path, course, source)
        text = to_pages(text if solutions else without_lecturers(text, path.relative_to(course).as_posix()))
        (source / path.relative_to(course)).write_text(text, encoding="utf-8")
    readme = with_files(course / "README.md", course, source)
    readme = readme if solutions else without_lecturers(readme, "README.md")
    readme = re.sub(r"^\[!\[.*\n\n?", "", readme, flags=re.MULTILINE)  # badges, which are GitHub's
    (source / "index.md").write_text(to_pages(readme) + "\n" + contents(readme, solutions), encoding="utf-8")
    planner_page.write(source)


def with_files(path, course, source):
    """The text of a page, after copying the files beside it that it shows or offers."""
    text = path.read_text(encoding="utf-8")
    for match in LINK.finditer(text):
        target = (path.parent / match["target"]).resolve()
        if target.is_file() and target.suffix not in (".md", ".ipynb"):
            copy = source / target.relative_to(course.resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(target, copy)
    return text


def without_lecturers(text, name):
    """The text of the page `name` without what leads to the lecturers' page."""
    return links.without_links(text, name, lambda path: path == LECTURERS)


def contents(readme, solutions):
    """The table of contents beside each page: README's table, then the other pages, `solutions` among them if true."""
    parts = {}
    for match in ROW.finditer(readme):
        if match["part"]:
            parts[match["part"]] = []
        elif match["file"]:
            list(parts.values())[-1].append(match["file"].removesuffix(".ipynb"))
    parts["Beside the chapters"] = ["plan", "notebooks/glossary", "notebooks/programs/*"]
    # In README's order.
    parts["Installing, teaching, and how it works"] = [
        match["target"].removesuffix(".md") for match in PAGE.finditer(readme)
    ]
    if solutions:
        parts["Solutions"] = ["notebooks/solutions/*"]
    tree = "```{{toctree}}\n:hidden:\n:glob:\n:caption: {}\n\n{}\n```\n"
    return "\n".join(tree.format(part, "\n".join(files)) for part, files in parts.items())


def to_pages(text):
    """The text with links to programs and to the planner's page changed to where the site has them."""
    text = text.replace("](../tools/site/planner/plan.md)", "](../plan.md)")
    return re.sub(r"(\]\((?:(?:\.\./)?notebooks/)?programs/\w+)\.py\)", r"\1.md)", text)


def anchor(term):
    return "term-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def anchored(glossary, chapters):
    """The glossary with an anchor for each term, an entry that a search finds first, and a link to its chapter."""
    files = {path.name[:2]: path.name for path in chapters}

    def entry(match):
        number = match["chapter"]
        term = f"**{{index}}`{match['term']} <!{match['term']}>`**"
        return f'- <span id="{anchor(match["term"])}"></span>{term} ([{number}]({files[number]}))'

    return TERM.sub(entry, glossary)


def read(path):
    """A chapter with its outputs; raises ValueError if it has none."""
    nb = notebooks.read(path)
    if notebooks.not_run(nb):
        raise ValueError(f"{path.name} was not run: `make record ARGS={path.name[:2]}` keeps its outputs")
    return nb


def chapter(nb, terms, figures):
    """The notebook with links to the glossary, and figures as images with alternative text."""
    unlinked = {term.lower(): term for term in terms}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = to_pages(with_terms(cell.source, unlinked))
        elif cell.cell_type == "code":
            cell.outputs = list(shown(cell.outputs, figures))
    return nb


def with_terms(text, unlinked):
    """Link the first bold occurrence of each term to its definition and remove the term from `unlinked`."""

    def link(match):
        term = unlinked.pop(" ".join(match[1].split()).lower(), None)
        return f'<a href="glossary.html#{anchor(term)}"><strong>{match[1]}</strong></a>' if term else match[0]

    return re.sub(r"(?<!\*)\*\*([^*\n]+)\*\*(?!\*)", link, text)


class Figures:
    """The images of a page: separate files, so that the text loads first."""

    def __init__(self, source, page):
        self._folder = source / "extra" / f"{page}_figures"
        self._count = 0

    def add(self, output):
        """Save an output's image and return its HTML element, with alternative text."""
        png = base64.b64decode(output.data["image/png"])
        self._folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        file = self._folder / f"{self._count}.png"
        file.write_bytes(png)
        width, height = struct.unpack(">II", png[16:24])
        return (
            f'<img src="{self._folder.name}/{file.name}" alt="{html.escape(alt_of(output))}" '
            f'width="{width}" height="{height}" loading="lazy">'
        )


def alt_of(output):
    return output.metadata.get("image/png", {}).get("alt", "")


def shown(outputs, figures):
    """The outputs with each figure as one element with alternative text, and its caption not in the printed text."""
    alt = None
    for output in outputs:
        if "image/png" in output.get("data", {}):
            alt = alt_of(output)
            caption = f"<figcaption>{html.escape(alt)}</figcaption>"
            yield new_output("display_data", {"text/html": f"<figure>{figures.add(output)}{caption}</figure>"})
        elif output.output_type == "stream" and alt is not None:
            output.text = without_caption(output.text, alt)
            if output.text.strip():
                yield output
            alt = None
        else:
            yield output


def without_caption(text, alt):
    """The text without its leading lines "Figure:" and the figure's description."""
    lines, said = text.splitlines(keepends=True), []
    for k, line in enumerate(lines):
        said += line.split()
        if said == ["Figure:", *alt.split()]:
            return "".join(lines[k + 1 :])
    return text
