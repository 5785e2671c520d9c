"""notebooks/glossary.md: a line for each term, in order, and each with a chapter that uses the term."""

import re

import pytest

from tools import notebooks

PATH = notebooks.NOTEBOOKS / "glossary.md"
LINE = re.compile(r"- \*\*(?P<term>[^*]+)\*\* \((?P<chapter>\d\d)\): \S.*\.")
LINES = [line for line in PATH.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]


def words(text):
    return set(re.findall(r"[\w./'-]+", text.lower().replace("`", "").replace("’", "'")))


def prose(chapter):
    (path,) = notebooks.notebook_paths([chapter])
    return "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown").lower()


def test_every_line_has_a_term_a_chapter_and_a_meaning():
    assert not [line for line in LINES if not LINE.fullmatch(line)]
    assert len(LINES) > 150


def test_terms_are_in_order_and_stand_once():
    terms = [re.sub(r"[^a-z0-9]", "", LINE.fullmatch(line)["term"].lower()) for line in LINES]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("chapter", [path.stem[:2] for path in notebooks.notebook_paths()])
def test_a_chapter_uses_the_terms_that_it_is_said_to_introduce(chapter):
    """A chapter that drops a term drops its line here, or leaves it to the chapter that now introduces it."""
    text = prose(chapter)
    terms = [match["term"] for match in map(LINE.fullmatch, LINES) if match["chapter"] == chapter]
    assert terms, "no term is this chapter's"
    assert not [term for term in terms if not all(word in text for word in words(term))]


def test_chapter_00_links_it():
    assert "(glossary.md)" in prose("00")
