"""The page that plans a job: what it shows in chromium is what the planner says here, and it loads nothing else."""

import os
import re

import pytest

from course_utils.planner import Method, plan, presets
from course_utils.planner.lines import in_words
from course_utils.planner.published import seen
from course_utils.planner.search import best
from tests.helpers.site_page import build, served, small_course
from tools import browser as chromium
from tools import notebooks
from tools.site import planner_page

SOON_MS = 60_000  # on a machine that runs other tests, too
NETWORK = presets.NETWORKS["llama-3-8b"]()
PARTS = "tensor context expert pipeline chunks shard replicas checkpointing micro_batch".split()
# Sets a field as a reader does, and gives the milliseconds until something is shown.
SET_AND_WAIT = """([name, value]) => new Promise(resolve => {
    const begin = performance.now(), field = document.getElementById("planner").elements[name];
    const seen = new MutationObserver(() => { seen.disconnect(); resolve(performance.now() - begin); });
    for (const id of ["planner-numbers", "planner-problem"])
        seen.observe(document.getElementById(id), { childList: true });
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
})"""
KEEP_WHAT_IS_SAID = """addEventListener("DOMContentLoaded", () => {
    window.said = [];
    const status = document.getElementById("planner-status");
    new MutationObserver(() => said.push(status.textContent)).observe(status, { childList: true });
})"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site of a course of one chapter, which is built in seconds."""
    if missing := chromium.what_is_missing():
        pytest.skip(missing)
    try:
        planner_page.pyodide(notebooks.ROOT / "build")
    except ValueError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("site")
    (site,) = build(small_course(folder / "course"), folder, "site")
    return site


@pytest.fixture(scope="module")
def address(built):
    with served(built) as address:
        yield address


@pytest.fixture(scope="module")
def context(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = chromium.start(playwright)
        yield browser.new_context(viewport={"width": 1280, "height": 720})
        browser.close()


class Planner:
    """The page, opened; `asked` are the addresses that it requests, and `complaints` the errors of its console."""

    def __init__(self, context, address):
        self.page, self.asked = context.new_page(), []
        self.page.set_default_timeout(SOON_MS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.complaints = chromium.complaints(self.page)
        self.page.add_init_script(KEEP_WHAT_IS_SAID)
        self.page.goto(f"{address}/plan.html")
        self.page.wait_for_selector("#planner-results:visible")

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def set(self, name, value):
        return self.page.evaluate(SET_AND_WAIT, [name, str(value)])

    def by_hand(self):
        self.page.get_by_label("by hand", exact=True).check()
        self.page.wait_for_selector("#planner-best", state="hidden")

    def shows(self, said):
        """Wait for this Plan's numbers, then compare the rest."""
        self.page.get_by_text(f"{in_words(said.step.value, 's')} a step").wait_for()
        peak, room = in_words(said.peak.value, "bytes"), in_words(said.cluster.gpu.memory, "bytes")
        numbers = self.text("#planner-numbers")
        assert f"{peak} of {room}: {'fits' if said.fits else 'does not fit'}" in numbers
        assert f"{said.tokens_per_s:,.0f} tokens/s" in numbers and f"{said.mfu:.0%}" in numbers
        bar = self.page.locator("#memory-bar [role=img]").get_attribute("aria-label")
        for part in (part for part in said.peak.parts if part.value):
            words = in_words(part.value, "bytes")
            assert f"{part.name} {words}" in bar
            assert re.search(rf"{re.escape(part.name)}\s+{re.escape(words)} ·", self.text("#memory-bar .legend"))
        lines = self.page.locator("#planner-lines").text_content()
        for line in (*said.memory.all(), *said.peak.all(), *said.step.all()):
            assert f"{line.name} {in_words(line.value, line.unit)}. {line.formula}" in lines and line.source in lines
        self.page.get_by_text(str(seen(said))).wait_for()


@pytest.fixture(scope="module")
def opened(context, address):
    return Planner(context, address)


@pytest.fixture
def planner(opened):
    """The page as it is when it was opened, but for Python, which has started."""
    opened.page.locator("#planner").evaluate("form => form.reset()")
    opened.set("model", "llama-3-8b")
    opened.page.get_by_text("64 A100-80: fits").wait_for()
    opened.page.wait_for_selector("#planner-best:visible")
    yield opened
    assert not opened.complaints


def fastest(gpus="64xA100-80", batch=1024):
    return [each.plan for each in best(NETWORK, presets.cluster(gpus), batch)]


def test_the_first_plan_is_the_planners_and_nothing_comes_from_another_host(planner, address):
    planner.shows(fastest()[0])
    assert [url for url in planner.asked if url.endswith("pyodide.asm.wasm")]
    assert not [url for url in planner.asked if not url.startswith((address, "data:", "blob:"))]


def test_the_bar_of_the_step_adds_up(planner):
    (said, *_) = fastest()
    label = planner.page.locator("#step-bar [role=img]").get_attribute("aria-label")
    assert label.startswith(in_words(said.step.value, "s"))
    micro_batches = said.step["micro-batches"].value / said.step["a micro-batch"].value
    assert f"forward products {in_words(micro_batches * said.step['forward products'].value, 's')}" in label
    widths = planner.page.locator("#step-bar .part").evaluate_all(
        "parts => parts.map(part => parseFloat(part.style.width.slice(5)))"
    )
    assert sum(widths) == pytest.approx(100)


def test_other_gpus_another_plan_and_a_price(planner):
    planner.set("number", 128)
    planner.shows(fastest("128xA100-80")[0])
    planner.set("gpu", "H100")
    planner.shows(said := fastest("128xH100")[0])
    planner.set("dollars", 2.5)
    hours = 1e9 / said.tokens_per_s / 3600
    planner.page.get_by_text(f"{hours:,.0f} GPU hours, ${2.5 * hours:,.0f}").wait_for()


def test_a_row_shows_its_plan_with_mouse_and_keyboard(planner):
    plans = fastest()
    planner.page.locator("#planner-best tbody tr").nth(2).click()
    planner.shows(plans[2])
    planner.page.get_by_role("button", name="show plan 5").press("Enter")
    planner.shows(plans[4])
    method = plans[4].method
    numbers = 5, method.data, method.tensor, method.context, method.expert, method.pipeline
    assert planner.page.locator("tr.shown").inner_text().split()[:6] == list(map(str, numbers))


def test_a_method_by_hand_begins_with_the_plan_that_was_shown(planner):
    planner.page.locator("#planner-best tbody tr").nth(4).click()
    planner.by_hand()
    planner.shows(fastest()[4])
    planner.page.get_by_label("sequence parallel").uncheck()
    for name, value in {"tensor": 4, "pipeline": 2, "chunks": 1, "shard": "none", "micro_batch": 4}.items():
        planner.set(name, value)
    method = Method(8, 4, 2, micro_batch=4)
    planner.shows(plan(NETWORK, presets.cluster("64xA100-80"), method, 1024))
    assert planner.text("#data") == "8"


def test_experts_by_hand(planner):
    planner.set("model", "mixtral-8x7b")
    planner.by_hand()
    for name, value in {"tensor": 1, "context": 1, "expert": 8, "pipeline": 4, "shard": "optimizer"}.items():
        planner.set(name, value)
    method = Method(16, 1, 4, shard="optimizer", expert=8)
    assert planner.text("#data") == "16"
    planner.shows(plan(presets.NETWORKS["mixtral-8x7b"](), presets.cluster("64xA100-80"), method, 1024))


def test_what_does_not_fit_is_said(planner):
    planner.by_hand()
    for name, value in {"tensor": 1, "shard": "none", "micro_batch": 8}.items():
        planner.set(name, value)
    method = Method(64, micro_batch=8, sequence_parallel=True)
    said = plan(NETWORK, presets.cluster("64xA100-80"), method, 1024)
    assert not said.fits
    planner.shows(said)


def test_an_impossible_method_shows_the_planners_sentence(planner):
    planner.by_hand()
    planner.set("pipeline", 64)
    with pytest.raises(ValueError) as caught:
        plan(NETWORK, presets.cluster("64xA100-80"), Method(1, 2, 64, "optimizer", micro_batch=2), 1024)
    assert planner.text("#planner-problem") == str(caught.value)
    assert planner.page.locator("#planner-results").is_hidden()
    planner.set("pipeline", 1)
    planner.shows(fastest()[0])


def test_loading_and_searching_are_said(planner):
    said = planner.page.evaluate("said")
    first, *_, last = [float(text.split()[2]) for text in said if text.startswith("Loading Python: ")]
    (total,) = {text.split()[4] for text in said if text.startswith("Loading Python: ")}
    assert 0 <= first < last < float(total)
    assert said.index("Starting Python…") < said.index("Searching for the fastest method that fits…")


@pytest.mark.parametrize("value", ["", "0", "2.5"])
def test_a_number_that_is_none_is_named(value, planner):
    planner.set("batch", value)
    assert planner.text("#planner-problem").startswith("Batch, in samples a step: ")


def test_no_gpus_that_are_enough(planner):
    planner.set("number", 1)
    planner.page.get_by_text("no method trains this on 1 A100-80 with a batch of 1024").wait_for()


def test_every_field_has_a_label_and_no_barrier_is_serious(planner):
    from axe_playwright_python.sync_playwright import Axe

    planner.by_hand()
    for scheme in ("light", "dark"):
        planner.page.emulate_media(color_scheme=scheme)
        found = Axe().run(planner.page).response["violations"]
        assert not [(each["id"], each["nodes"][0]["html"]) for each in found]
    fields = planner.page.locator("#planner input, #planner select")
    assert fields.evaluate_all("fields => fields.every(field => field.labels.length == 1)")
    assert planner.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    chromium.SHOTS.mkdir(parents=True, exist_ok=True)
    planner.page.screenshot(path=chromium.SHOTS / "plan_a_job.png", full_page=True)


BEYOND_THE_WINDOW = """() => [...document.querySelectorAll("article *")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".table-wrapper"))
    .map(each => each.outerHTML.slice(0, 100))"""


def test_on_a_phone_nothing_is_wider_than_the_window_and_the_table_scrolls_in_its_box(planner):
    planner.page.set_viewport_size({"width": 390, "height": 844})
    planner.page.locator("#planner-results details").evaluate("details => details.open = true")
    try:
        assert planner.page.locator(".legend li").count() > 10
        assert not planner.page.evaluate(BEYOND_THE_WINDOW)
        assert planner.page.evaluate("document.documentElement.scrollWidth") == 390
        box = planner.page.locator("#planner-best .table-wrapper")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth && (box.scrollLeft = 1000) && box.scrollLeft > 0")
        assert "scrolls" in planner.page.evaluate(
            "getComputedStyle(document.querySelector('#fastest'), '::after').content"
        )
        planner.by_hand()
        assert not planner.page.evaluate(BEYOND_THE_WINDOW)
    finally:
        planner.page.locator("#planner-results details").evaluate("details => details.open = false")
        planner.page.set_viewport_size({"width": 1280, "height": 720})


def test_another_page_loads_nothing_of_it(context, address):
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "docs/clusters"):
        page.goto(f"{address}/{name}.html", wait_until="networkidle")
        assert page.locator("a[href$='plan.html']").count() > 0
    page.close()
    assert asked and not [url for url in asked if "pyodide" in url or "planner" in url]


def test_a_page_that_was_not_served_says_how_to_serve_it(context, built):
    page = context.new_page()
    page.goto((built / "plan.html").as_uri())
    page.get_by_text("start one with python -m http.server --directory build/site").wait_for()
    page.close()


@pytest.mark.alone
def test_the_first_plan_takes_8_s_and_a_change_a_fifth_of_a_second(context, address):
    own = Planner(context, address)
    assert own.page.evaluate("performance.now()") < 8000  # since the page was opened
    own.page.locator("#planner-seen", has_text="published rows").wait_for()
    own.by_hand()
    took = [own.set(name, value) for name, value in (("micro_batch", 1), ("tensor", 4), ("number", 32), ("batch", 512))]
    own.page.close()
    assert max(took) < 200


def test_without_npm_the_site_goes_on_and_the_page_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    source = tmp_path / "source"
    source.mkdir()
    planner_page.write(source, tmp_path / "build")
    said = capsys.readouterr().out
    assert (
        said.startswith("site: the page that plans a job is left out: npm is not installed") and said.count("\n") == 1
    )
    assert "left out when this page was built: npm is not installed" in (source / "page.html").read_text()
    assert sorted(path.name for path in source.iterdir()) == ["page.html", "plan.md"]


def test_an_npm_that_fails_is_named_with_its_code(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error code EAI_AGAIN' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"npm could not fetch pyodide@[\d.]+ \(EAI_AGAIN\); connect to a network"):
        planner_page.pyodide(tmp_path / "build")
    assert [*(tmp_path / "build").iterdir()] == []


def test_another_file_than_expected_is_refused_and_removed(tmp_path):
    package = tmp_path / f"pyodide-{planner_page.VERSION}.tgz"
    package.write_bytes(b"not it")
    with pytest.raises(ValueError, match="is another file than expected; try again"):
        planner_page.pyodide(tmp_path)
    assert not package.exists()
