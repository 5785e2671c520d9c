"""The course as pages and as slides, built without a network and read in a browser."""

import json
import shlex
import shutil
from html.parser import HTMLParser

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.helpers.site_page import build, printed_by_build, served, small_course
from tools import browser as chromium
from tools import notebooks
from tools.site import __main__ as site
from tools.site import links, pages, slides

ROOT = notebooks.ROOT
STEMS = [path.stem for path in notebooks.notebook_paths()]


class Elements(HTMLParser):
    """(tag, attributes) of a page, and its text outside of what is folded."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.text, self._folded = [], "", 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._folded += tag == "details"

    def handle_endtag(self, tag):
        self._folded -= tag == "details"

    def handle_data(self, data):
        self.text += "" if self._folded else data


# Both in one test, so that of two that run at a time each does not build everything.
@pytest.mark.timeout(600)
def test_pages_and_slides_hold_together(tmp_path):
    """Building refuses what Sphinx warns of, and links that lead nowhere or fetch from another host."""
    built, slides = build(ROOT, tmp_path, "site", "slides")
    for path in notebooks.notebook_paths():
        page = Elements(built / "notebooks" / f"{path.stem}.html")
        images = [attributes for tag, attributes in page.elements if tag == "img"]
        assert images and all(image.get("alt") for image in images)
        nb = notebooks.read(path)
        assert [tag for tag, _ in page.elements].count("details") == sum(
            cell.source.count("<details>") for cell in nb.cells if cell.cell_type == "markdown"
        )
        for solution in notebooks.read_solutions(path).values():
            line = max(solution.splitlines(), key=len).strip()
            assert line in "".join(cell.source for cell in nb.cells) or line not in page.text
        assert (built / "notebooks" / "solutions" / f"{path.stem}.html").exists()
        assert [a for tag, a in page.elements if a.get("href", "").startswith("glossary.html#term-")]
    front = (built / "index.html").read_text()
    assert all(f'href="notebooks/{stem}.html"' in front for stem in STEMS)
    assert 'href="plan.html"' in front and 'href="../plan.html"' in (built / "docs" / "clusters.html").read_text()
    assert "ring all-reduce" not in front and (built / "searchindex.js").exists()

    for stem in STEMS:
        page = Elements(slides / f"{stem}.html")
        assert "Objectives" in page.text and "Key points" in page.text and "For discussion" in page.text
        assert all(attributes.get("alt") for tag, attributes in page.elements if tag == "img")
    if chromium.find_chromium():
        in_a_browser(built, slides)


# Thousands of pieces of code have the same colour on the same ground, and axe takes a millisecond for each: the first
# of its kind stays, and the others become plain text.
SAME_COLOURS_ONCE = """() => {
    const seen = new Set();
    for (const piece of document.querySelectorAll("pre span")) {
        const kinds = [];
        for (let node = piece; node.tagName != "BODY"; node = node.parentElement) {
            kinds.push(node.className, node.style.color);
        }
        const kind = kinds.join(" in ");
        if (seen.has(kind)) piece.replaceWith(...piece.childNodes);
        seen.add(kind);
    }
}"""


# Of each figure on a slide, how many of the screen's pixels one of its own becomes.
SCALES = """() => [...document.querySelectorAll("section img")].map(image => {
    const scales = [image.clientWidth / image.getAttribute("width"), image.clientHeight / image.getAttribute("height")];
    return [image.src, getComputedStyle(image).objectFit == "cover" ? Math.max(...scales) : Math.min(...scales)];
})"""


def in_a_browser(built, slides):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    asked, said = [], []
    with served(built.parent) as address, sync_playwright() as playwright:
        browser = chromium.start(playwright)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for name in ("index", "notebooks/09_distributed_data_parallel", "notebooks/14_parameter_servers"):
                page.goto(f"{address}/{built.name}/{name}.html")  # until it is loaded, with what site.js adds to it
                page.wait_for_load_state("networkidle")
                page.evaluate(SAME_COLOURS_ONCE)
                found = Axe().run(page).response["violations"]
                serious = [each for each in found if each["impact"] in ("serious", "critical")]
                assert not serious, (scheme, name, [(each["id"], each["nodes"][0]["html"]) for each in serious])
        assert page.locator("mjx-container").count() > 0  # formulas are set
        page.locator("a.next-page").click()
        assert "15. The same ideas elsewhere" in page.title()
        page.goto(f"{address}/{built.name}/search.html?q=staleness", wait_until="networkidle")
        page.locator("#search-results li a").first.wait_for()
        page.goto(f"{address}/{built.name}/search.html?q=all-reduce", wait_until="networkidle")
        first, *others = page.locator("#search-results li").all_inner_texts()
        assert first.startswith("Glossary") and "holds the sum of what all ranks put in" in first
        assert len(others) > 5 and not [excerpt for excerpt in others[:5] if "import " in excerpt]

        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(f"{address}/{built.name}/notebooks/16_long_sequences.html", wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for figure in page.locator("figure").all():  # at its own size, in a box that scrolls
            assert figure.evaluate("box => box.querySelector('img').clientWidth") > 700
            assert figure.evaluate("box => box.scrollWidth > box.clientWidth && box.tabIndex == 0")

        page.set_viewport_size({"width": 1280, "height": 720})
        for stem in STEMS:
            page.goto((slides / f"{stem}.html").as_uri(), wait_until="networkidle")
            height = "Reveal.getSlides().map(slide => [slide.querySelector('h1, h2').innerText, slide.scrollHeight])"
            page.evaluate(
                "document.querySelectorAll('section').forEach(s => { s.hidden = false; s.style.display = 'block' })"
            )
            assert not [slide for slide in page.evaluate(height) if slide[1] > 720], stem
            scales = {}
            for picture, scale in page.evaluate(SCALES):
                scales.setdefault(picture, []).append(scale)
            assert not {picture: each for picture, each in scales.items() if max(each) < 1.3}
        page.goto((slides / "index.html").as_uri(), wait_until="networkidle")
        boxes = [link.bounding_box() for link in page.locator("section li a").all()]
        assert len(boxes) == len(STEMS) and all(box["y"] >= 0 and box["y"] + box["height"] < 720 for box in boxes)
        assert all(box["x"] >= 0 and box["x"] + box["width"] < 1280 for box in boxes)
        browser.close()
    assert not [url for url in asked if not url.startswith((address, "file:", "data:", "blob:"))]
    assert not said


def test_a_notebook_that_was_not_run_is_refused_and_the_old_pages_stay(tmp_path):
    course = tmp_path / "course"
    shutil.copytree(ROOT / "notebooks", course / "notebooks")
    for name in ("README.md", "CONTRIBUTING.md"):
        shutil.copy2(ROOT / name, course)
    file = course / "notebooks" / "05_data_parallelism_in_one_process.ipynb"
    content = json.loads(file.read_text())
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    file.write_text(json.dumps(content))
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("the old pages")
    with pytest.raises(ValueError, match="05_data_parallelism_in_one_process.ipynb was not run: `make record ARGS=05`"):
        site.build("site", course, tmp_path / "source", out)
    assert (out / "index.html").read_text() == "the old pages"


def test_solutions_are_left_out_on_request_and_each_chapter_is_said(tmp_path):
    course = small_course(tmp_path / "course")
    (course / "notebooks" / "solutions" / "19_choosing.py").write_text("# %%\nnum_secrets = 1234\n")
    printed_by_build(course, tmp_path / "with", "site")
    said = printed_by_build(course, tmp_path / "without", "site", solutions=False)
    lines = said.splitlines()
    assert lines.index("reading 19_choosing") < lines.index("writing 19_choosing")
    for folder, are_in in (("with", True), ("without", False)):
        site_folder = tmp_path / folder / "site"
        assert (site_folder / "notebooks" / "solutions" / "19_choosing.html").exists() == are_in
        texts = [path.read_text() for path in site_folder.rglob("*") if path.suffix in (".html", ".js")]
        assert any("solutions/19_choosing" in text for text in texts) == are_in
        assert any("num_secrets" in text for text in texts) == are_in
        assert any("exam question" in text for text in texts) == are_in  # the lecturers' page
        assert any("lecturers" in text.lower() for text in texts) == are_in


def test_the_last_lines_say_how_to_open_what_was_built(monkeypatch, capsys):
    built = []
    monkeypatch.setattr(site, "build", lambda *arguments: built.append((arguments[0], *arguments[-2:])))
    site.main(["--without-solutions"])
    command = capsys.readouterr().out.split("  ")[1]
    python, *arguments = shlex.split(command)
    assert (ROOT / python).exists() and arguments == ["-m", "http.server", "-b", "127.0.0.1", "-d", "build/site"]
    site.main(["slides", "09"])
    assert "open build/slides/index.html" in capsys.readouterr().out
    assert built == [("site", False, []), ("slides", True, ["09"])]
    with pytest.raises(SystemExit):
        site.main(["site", "09"])
    assert "name some for slides alone" in capsys.readouterr().err


def test_slides_are_of_the_chapters_named(tmp_path):
    slides.write(ROOT, tmp_path / "slides", ["00"])
    (chapter,) = tmp_path.glob("slides/[0-9]*.md")
    assert chapter.name == "00_start_here.md"
    with pytest.raises(ValueError, match="no notebook is called '99'"):
        slides.write(ROOT, tmp_path / "none", ["99"])


def test_a_prediction_has_one_slide_whether_or_not_the_text_asks_for_it():
    cells = [
        new_markdown_cell("# 9. A chapter\n\nA question?"),
        new_code_cell('mine = predict("How long?", unit="s", chapter=9)'),
        new_markdown_cell("## Twice\n\n**Predict.** how many?"),
        new_code_cell("%matplotlib inline"),
        new_code_cell('many = predict("How many?", unit="times", chapter=9)'),
    ]
    cells.append(new_markdown_cell("**Predict.** But why? By how much? A star in section 7 shows your number."))
    made = [*slides.of_a_chapter(new_notebook(cells=cells), None)]
    assert made[1:] == ["## Predict\n\nHow long?", "## Predict\n\nHow many?", "## Predict\n\nBut why? By how much?"]


@pytest.mark.parametrize(
    "page, problem",
    [
        ('<a href="gone.html">', "links gone.html, and there is no such file"),
        ('<a href="#gone">', "links #gone, and that page has no such place"),
        ('<a href="other.html#gone">', "links other.html#gone, and that page has no such place"),
        ('<script src="https://cdn.example.org/a.js">', "fetches https://cdn.example.org/a.js"),
        ('<img src="//example.org/a.png">', "fetches //example.org/a.png"),
        ('<a href="https://example.org"><a href="other.html#here"><a href="#top" id="top">', None),
    ],
)
def test_links_that_lead_nowhere_and_hosts_that_are_asked_are_found(page, problem, tmp_path):
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    assert links.problems(tmp_path) == ([f"index.html {problem}"] if problem else [])


def test_a_caption_leaves_the_log_and_nothing_else_does():
    text = "Figure: A line\nthat falls.\n→ It falls.\n"
    assert pages.without_caption(text, "A line that falls.") == "→ It falls.\n"
    assert pages.without_caption(text, "Another line.") == text


def test_a_term_is_linked_where_it_first_stands_in_bold():
    text = pages.with_terms("A **rank** and a **Rank**, **unknown**.", {"rank": "rank"})
    assert text == 'A <a href="glossary.html#term-rank"><strong>rank</strong></a> and a **Rank**, **unknown**.'
