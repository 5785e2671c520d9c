"""What moves, in JupyterLab in a browser: controls, predictions, a launch's panel, the stop button, both themes."""

import json
import re

import pytest
from playwright.sync_api import expect

from course_utils.predictions.field import IDLE_S
from tests.helpers.lab_page import cells_of, lab, needs_browser
from tools import browser as chromium

pytestmark = needs_browser
SOON_MS = 60_000  # on a machine that runs other tests, too

CONTROLS = {  # chapter: (text of its cell, the name of its button or None)
    "02": ("plots.explore", "Draw the threads"),
    "06": ("plots.explore", None),
    "08": ("plots.step_slider", None),
    "11": ("plots.explore", "Draw the step"),
    "19": ("plots.explore", "Plan the step"),
}
SETUP = """from course_utils import launch, log
import os, time, torch, torch.distributed as dist, torch.nn.functional as F

def next_batch(step, bad_step):
    time.sleep(0.02)
    while step in (20, 40) and os.path.exists(f"wait_at_{step}"):
        time.sleep(0.02)
    images, labels = torch.randn(64, 64), torch.randint(0, 10, (64,))
    if step == bad_step and dist.get_rank() == 1:
        images[5] = torch.inf
    return images, labels"""
TRAIN = """def train(num_steps, bad_step=None):
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        images, labels = next_batch(step, bad_step)
        loss = F.cross_entropy(model(images), labels)
        if not loss.isfinite():
            raise ValueError(f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        log(loss=loss.item(), samples=len(images), total=num_steps)

"""
PREDICT = [
    "from course_utils import plots, predict, reveal",
    "my_times = predict('How many times as fast?', unit='times', chapter=9)",
    "reveal(my_times=4)\nplots.lines({'times': ([1, 2], [2, 4])}, 'workers', 'times', 'A line.', source='counted', "
    "prediction={2: my_times})",
    "my_way = predict('Which way?', choices=('ring', 'tree'), chapter=9)",
    "reveal(my_way='ring')\nprint('the ring')",
]
PARTS = {chapter: cells_of(chapter, text) for chapter, (text, _) in CONTROLS.items()} | {
    "predict": PREDICT,
    "ranks": [
        "from course_utils import Ranks, check\nranks = Ranks(3)",
        "%%ranks\nprint('here')\nrank * 2",
        "ranks.close()\ndef find_odd_rank(model):\n    odd = {}\n    return odd['none']\ncheck('9.2', find_odd_rank)",
    ],
    "failing": [SETUP, TRAIN + "launch(train, 100, bad_step=60, world_size=3)"],
    "endless": [SETUP, TRAIN + "launch(train, 100_000, world_size=2)"],
    "panel": [SETUP, TRAIN + "launch(train, 60, world_size=2)"],
}


@pytest.fixture(scope="module")
def open_page(tmp_path_factory):
    with lab(tmp_path_factory.mktemp("lab"), PARTS) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def pages():
    """The page that is open, if one is."""
    return []


@pytest.fixture
def page(open_page, pages, request):
    """One page for all tests, and a new one after a failure: to open it costs more than what most tests do in it."""
    if not pages or pages[0].page.is_closed():
        pages[:] = [open_page()]
    num_failed = request.session.testsfailed
    yield pages[0]
    if request.session.testsfailed > num_failed:
        pages.clear()


def test_controls_move_their_figure(page):
    """Each before the next chapter's cells run, which use some of the names for something else."""
    for chapter, (_, button) in CONTROLS.items():
        page.part(chapter).run(120_000)
        move_controls(page.output(-1), button)
        page.wait_for_the_kernel()
        page.shot(f"controls_{chapter}")
        assert not page.complaints
    images = page.page.locator(".jp-OutputArea img")
    assert images.count() > 0
    assert (
        images.evaluate_all("nodes => nodes.filter(node => !node.alt).map(node => node.outerHTML.slice(0, 200))") == []
    )
    assert not chromium.barriers(page.page)


def move_controls(output, button):
    """Move every control in the output of a cell, and see the figure change."""
    image = output.locator("img").last
    sliders = output.locator(".widget-slider")
    labels = output.locator(".widget-label")
    assert sliders.count() > 0
    for i in range(labels.count()):
        shown, whole = labels.nth(i).evaluate("node => [node.clientWidth, node.scrollWidth]")
        assert shown >= whole > 0, labels.nth(i).inner_text()
    assert not re.search(r"[a-z]_[a-z]", output.locator(".widget-box").first.inner_text())  # no names of arguments
    for i in range(sliders.count()):
        before = image.get_attribute("src")
        handle = sliders.nth(i).locator(".noUi-handle")
        handle.focus()
        is_at_its_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        handle.press("ArrowLeft" if is_at_its_end else "ArrowRight")
        if button is not None:
            output.get_by_role("button", name=button).press("Enter")
        expect(image).not_to_have_attribute("src", before, timeout=SOON_MS)
    for i in range(output.locator("select").count()):
        before = image.get_attribute("src")
        output.locator("select").nth(i).select_option(index=1)
        expect(image).not_to_have_attribute("src", before, timeout=SOON_MS)
    output.locator(".widget-box").first.scroll_into_view_if_needed()
    top, bottom = output.locator(".widget-box").first.bounding_box(), image.bounding_box()
    assert bottom["y"] + bottom["height"] - top["y"] < 700  # one screen


def test_columns_of_ranks_and_the_error_in_a_check(page):
    page.part("ranks").run(120_000)
    columns = page.output(1).get_by_role("group")
    assert [columns.nth(i).inner_text().split() for i in range(3)] == [
        ["rank", str(i), "here", str(2 * i)] for i in range(3)
    ]
    assert len({columns.nth(i).bounding_box()["y"] for i in range(3)}) == 1
    error = page.output(2).locator("pre").last  # a worker's, in the box of a check
    assert "mono" in error.evaluate("node => getComputedStyle(node).fontFamily")
    assert error.evaluate("node => getComputedStyle(node).wordBreak") == "normal"  # no line ends within a word
    lines = error.inner_text().splitlines()
    assert re.match(r"rank \d: ", lines[0])
    assert "Cell In[" in lines[1]
    for theme in ("Dark", "Light"):
        page.use_theme(theme)
        page.shot(f"ranks_{theme.lower()}")
        assert not chromium.barriers(page.page)


def test_a_failing_rank_turns_red_and_fails_the_cell_with_its_line(page):
    page.part("failing")
    page.start()
    red = page.output(1).locator('tr[style*="rgb(183, 28, 28)"], tr[style*="#b71c1c"]')
    red.first.wait_for(timeout=SOON_MS)
    page.wait_for_end()
    expect(page.output(1).locator("table").first).to_contain_text("train on 3 ranks: failed", timeout=SOON_MS)
    assert red.count() == 1
    text = page.output(1).inner_text()
    assert "failed: ValueError: the loss is nan, at Cell In[" in text
    assert "waiting in all_reduce at Cell In[" in text
    assert "WorkerError: rank 1: ValueError: the loss is nan" in text
    assert "raise ValueError(f" in text.partition("WorkerError")[2]
    page.page.set_viewport_size({"width": 1250, "height": 1100})
    page.page.keyboard.press("Control+b")  # without the list of files
    page.cell(1).screenshot(path=chromium.SHOTS / "watching.png", animations="disabled")  # README's first picture
    page.output(1).locator("summary").click()
    assert "bad_step" in page.output(1).locator("details").inner_text()
    for caption in page.output(1).locator("caption").all():  # also above a narrow table
        assert caption.evaluate("node => getComputedStyle(node).whiteSpace") == "nowrap"
    for theme in ("Dark", "Light"):
        page.use_theme(theme)
        page.shot(f"failing_{theme.lower()}")
        assert not chromium.barriers(page.page)


ASKED = "Predict first: answer above"


def test_a_prediction_is_typed_remembered_and_drawn(page):
    page.part("predict").run(120_000)  # as Run All does
    figure, star = page.output(2), "(No prediction was made.)"
    expect(figure).to_contain_text(f"Figure: A line. {star}")
    assert ASKED not in figure.inner_text() + page.output(4).inner_text()
    box = page.output(1).get_by_label("Your prediction:")
    expect(box).to_be_visible()
    page.page.wait_for_timeout(1000 * IDLE_S + 500)  # in which somebody reads
    page.run_cell(2)
    expect(figure).to_contain_text(ASKED)
    expect(figure.get_by_label("Your prediction:")).to_be_visible()  # the field again
    expect(figure.locator("img")).to_have_count(0)  # and not the result
    page.shot("predict_first")
    page.run_cell(2)
    expect(figure).to_contain_text(star)
    box.fill("about 2")
    box.press("Enter")
    expect(page.output(1)).to_contain_text("is not a number")
    expect(box).to_be_focused()
    box.fill("1,5")
    page.cell(0).locator(".jp-InputArea-editor").click()  # to leave the field tells the value, too
    expect(page.output(1)).to_contain_text("Your prediction: 1.5 times. Run this cell again to change it.")
    expect(page.cell(0).locator(".cm-content")).to_be_focused()
    page.run_cell(1)
    expect(box).to_have_value("1.5")
    box.fill("2")
    box.press("Enter")
    line = "How many times as fast? Your prediction: 2 times. Run this cell again to change it."
    expect(page.output(1)).to_have_text(line)
    assert list(page.saved(1).outputs[0].data) == ["text/html", "text/plain"]  # what shows without a kernel, too
    for _ in range(2):  # the notebook has the keyboard again: the cell of the question runs, and the next one
        page.page.keyboard.press("Shift+Enter")
    told = "You predicted 2 times, and here it is 4 times: off by a factor of 2.00."
    expect(figure).to_contain_text(told, timeout=SOON_MS)
    expect(figure.locator("img")).to_be_visible()
    assert star not in figure.inner_text()
    page.output(3).get_by_role("button", name="Skip").click()
    expect(page.output(3)).to_have_text("Which way? No prediction. Run this cell again to change it.")
    page.page.wait_for_timeout(1000 * IDLE_S + 500)
    page.run_cell(4)
    expect(page.output(4)).to_have_text("the ring")
    page.run_cell(3)
    page.output(3).get_by_role("button", name="tree").click()
    expect(page.output(3)).to_contain_text("Your prediction: “tree”.")
    page.run_cell(3)
    expect(page.output(3)).to_contain_text("Remembered: “tree”.")
    for theme in ("Dark", "Light"):
        page.use_theme(theme)
        page.shot(f"predict_{theme.lower()}")
        assert not chromium.barriers(page.page)
    assert not page.complaints


def test_predictions_are_remembered_after_a_restart(page):
    page.part("predict")
    page.restart()
    page.run(120_000)
    expect(page.output(1)).to_contain_text("Your prediction: 2 times. Run this cell again to change it.")
    page.run_cell(1)
    expect(page.output(1).get_by_label("Your prediction:")).to_have_value("2")
    expect(page.output(2)).to_contain_text("You predicted 2 times")
    expect(page.output(4)).to_contain_text("You predicted “tree”, and here it is “ring”.")
    kept = json.loads((page.folder / "predictions.json").read_text())
    assert {name: (entry["predicted"], entry["measured"]) for name, entry in kept["09"].items()} == {
        "my_times": (2.0, 4.0),
        "my_way": ("tree", "ring"),
    }


def test_the_stop_button_and_a_restart(page):
    page.part("endless")
    page.start()
    page.output(1).locator("progress").first.wait_for(timeout=SOON_MS)
    page.page.click('[data-jp-item-name="interrupt"]')
    page.wait_for_end()
    expect(page.output(1).locator("table")).to_contain_text("train on 2 ranks: interrupted", timeout=SOON_MS)
    text = page.output(1).inner_text()
    assert "Interrupted: train was interrupted, and all workers were stopped" in text
    assert "Traceback" not in text
    page.shot("interrupted")
    page.start()
    page.output(1).locator("progress").first.wait_for(timeout=SOON_MS)
    page.restart()


def test_the_panel_moves_and_leaves_its_table(page):
    """The last of all, since it closes the page."""
    page.part("panel")
    gates = [page.folder / f"wait_at_{step}" for step in (20, 40)]
    for gate in gates:
        gate.touch()
    page.start()
    table, bar = page.output(1).locator("table"), page.output(1).locator("progress").first
    for gate, step in zip(gates, ("20", "40"), strict=True):
        expect(bar).to_have_attribute("value", step, timeout=SOON_MS)
        expect(table).to_contain_text("train on 2 ranks: running")
        expect(page.output(1).locator("img")).to_be_visible(timeout=SOON_MS)
        page.shot("panel")
        gate.unlink()
    page.wait_for_end()
    expect(table).to_contain_text("train on 2 ranks: finished", timeout=SOON_MS)
    assert table.inner_text().count("60 of 60") == 2
    assert not chromium.barriers(page.page)
    assert not page.complaints
    gates[0].touch()
    page.start()
    expect(bar).to_have_attribute("value", "20", timeout=SOON_MS)
    page.save_and_load_again()
    expect(table).to_contain_text("train on 2 ranks: running", timeout=SOON_MS)  # as it was when it was saved
    expect(bar).to_have_attribute("value", "20")
    page.page.close()
    gates[0].unlink()
    page.wait_for_the_kernel()  # nobody sees the rest, which harms nothing
