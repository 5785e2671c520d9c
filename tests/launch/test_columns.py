"""How the columns of a `%%ranks` cell stand, in a browser of several widths."""

import pytest

from course_utils.launch.display.columns import Column, as_html
from tools import browser

PLACES = """() => [...document.querySelectorAll('[role=group]')].map(each => {
    const box = each.getBoundingClientRect()
    return [Math.round(box.left), Math.round(box.top), Math.round(box.width)]
})"""


@pytest.fixture(scope="module")
def page():
    if (reason := browser.what_is_missing()) is not None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = browser.start(playwright)
        yield chromium.new_page()
        chromium.close()


@pytest.mark.parametrize(
    "num_ranks, width, rows",
    [(4, 1300, [4]), (4, 1000, [2, 2]), (4, 600, [2, 2]), (4, 300, [1] * 4), (8, 1300, [4, 4]), (3, 1000, [3])],
)
def test_rows_of_columns_are_full_and_in_the_order_of_the_ranks(page, num_ranks, width, rows):
    page.set_viewport_size({"width": width, "height": 900})
    columns = [Column(rank, "here", "ValueError: no" * (rank == 2), rank == 2) for rank in range(num_ranks)]
    page.set_content(f'<body style="margin: 0; font-size: 16px">{as_html(columns)}')
    found = page.evaluate(PLACES)
    tops = [top for _, top, _ in found]
    assert tops == sorted(tops) and [tops.count(top) for top in sorted(set(tops))] == rows
    assert len({each for _, _, each in found}) == 1 and sum(rows[:1]) * found[0][2] <= width
    assert [(top, left) for left, top, _ in found] == sorted((top, left) for left, top, _ in found)
