"""Run the notebooks as a student does, in JupyterLab in a real browser: `make browser`.

    python -m tools.browser [--pages] [09 00 ...]

JupyterLab serves a copy of the notebooks on loopback; chromium opens each on a new kernel and runs all cells. The saved
notebook is then judged: a cell that did not run, or an error output in a cell that does not announce one, makes the
exit code 1. Screenshots go to build/browser/.
"""

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools import notebooks
from tools.lab.server import Trouble, jupyterlab
from tools.leftovers import ended_afterwards

SHOTS = notebooks.ROOT / "build" / "browser"
NOTEBOOK_TIMEOUT_S = 300
START_TIMEOUT_S = 60
PRESS_AGAIN_S = 15
WIDTH, HEIGHT = 1400, 1200
PAGE_OVERLAP = 80
JUPYTERLABS_OWN = ("debugger state",)  # logged when a kernel restarts
CHROMIUM_FLAGS = [
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
]


def main(argv=None):
    parser = argparse.ArgumentParser(description="Run the notebooks in JupyterLab in chromium.")
    parser.add_argument("names", nargs="*", help="chapters, such as 09; all by default")
    parser.add_argument("--pages", action="store_true", help="also keep the whole notebook, page by page")
    parser.add_argument(
        "--timeout",
        type=float,
        default=NOTEBOOK_TIMEOUT_S,
        metavar="S",
        help="seconds that one notebook may take (%(default)s)",
    )
    options = parser.parse_args(argv)
    # A terminated run must clean up like an interrupted one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("browser: terminated"))
    try:
        missing = what_is_missing()
        if missing:
            raise Trouble(missing)
        paths = notebooks.notebook_paths(options.names)
        if not paths:
            raise Trouble(f"there is no notebook in {notebooks.NOTEBOOKS.relative_to(notebooks.ROOT)}/")
        with ended_afterwards() as left:
            problems = drive(paths, options)
        if left:
            problems.append(f"processes that had not ended by themselves: {', '.join(left)}")
    except (Trouble, ValueError) as error:
        sys.exit(f"browser: {error}")
    except KeyboardInterrupt:
        sys.exit("browser: interrupted")
    if problems:
        sys.exit("browser:\n" + "\n".join(f"    {problem}" for problem in problems))


def find_chromium():
    """The browser to drive: CHROMIUM if set, otherwise the first known name on PATH."""
    if os.environ.get("CHROMIUM"):
        return shutil.which(os.environ["CHROMIUM"])
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def start(playwright):
    """Start the browser, which the caller closes; raises playwright's Error if it does not start."""
    return playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)


def what_is_missing():
    if not importlib.util.find_spec("playwright"):
        return "playwright is not installed: pip install playwright"
    if find_chromium():
        return None
    if os.environ.get("CHROMIUM"):
        return f"CHROMIUM is {os.environ['CHROMIUM']!r}, which is no program that can be run"
    return "no chromium was found: install it (apt-get install chromium) or set CHROMIUM to a browser"


def drive(paths, options):
    """Run each notebook in turn and return the list of problems."""
    from playwright.sync_api import Error, sync_playwright

    SHOTS.mkdir(parents=True, exist_ok=True)
    problems = []
    with tempfile.TemporaryDirectory(prefix="course-browser-") as folder:
        with jupyterlab(Path(folder), paths) as server, sync_playwright() as playwright:
            try:
                browser = start(playwright)
            except Error as error:
                raise Trouble(f"{find_chromium()} did not start: {error.message.splitlines()[0]}") from None
            for path in paths:
                print(f"{path.stem} …", end=" ", flush=True)
                start_s = time.monotonic()
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                said = complaints(page)
                try:
                    found = run_notebook(page, server, path, options.timeout)
                    found += [f"the page's console has an error: {text}" for text in said] + barriers(page)
                except Error as error:
                    found = [
                        f"the page did not do as expected: {error.message.splitlines()[0]}, "
                        f"see {SHOTS.relative_to(notebooks.ROOT)}/{path.stem}.png"
                    ]
                try:
                    take_screenshots(page, path.stem, options.pages)
                except Error as error:
                    found.append(f"no screenshot could be taken: {error.message.splitlines()[0]}")
                page.close()
                server.end_kernels()
                print(f"{time.monotonic() - start_s:.0f} s{', FAILED' if found else ''}", flush=True)
                problems += [f"{path.stem}: {problem}" for problem in found]
            browser.close()
    return problems


def run_notebook(page, server, path, timeout_s):
    """Run all cells on the new kernel, and return the problems in the saved notebook."""
    deadline_s = time.monotonic() + timeout_s
    page.goto(server.page_url(path.name), wait_until="load", timeout=START_TIMEOUT_S * 1000)
    page.wait_for_selector('[data-jp-item-name="run"]', timeout=START_TIMEOUT_S * 1000)
    # The page reports a kernel as idle before it exists, and a run requested then is lost.
    while not server.kernel_is_ready():
        if time.monotonic() > deadline_s:
            return ["its kernel did not start"]
        page.wait_for_timeout(200)
    run_all(page)
    pressed_s = time.monotonic()
    while time.monotonic() < deadline_s:
        page.wait_for_timeout(500)
        dialog = page.query_selector(".jp-Dialog")
        if dialog:  # such as "Kernel Restarting" after the kernel died
            return [f"JupyterLab asked: {' '.join(dialog.inner_text().split())!r}"]
        # A prompt is empty before its cell is queued, holds a star until the cell ends, then a number. Between two
        # cells there may be no star for a moment, so the saved file decides.
        prompts = page.eval_on_selector_all(
            ".jp-CodeCell .jp-InputPrompt", "nodes => nodes.map(node => node.innerText)"
        )
        if any("*" in prompt for prompt in prompts):
            continue
        if not any(map(has_number, prompts)):
            if time.monotonic() - pressed_s > PRESS_AGAIN_S:
                run_all(page)
                pressed_s = time.monotonic()
            continue
        page.click('[data-jp-item-name="save"]')
        page.wait_for_timeout(500)
        nb = server.notebook(path.name)
        # An error stops Run All, so the remaining cells will never run.
        if not unrun(nb) or unannounced(nb):
            return errors(nb) + unrun(nb)
    nb = server.notebook(path.name)
    return [f"it was not done after {timeout_s:g} s", *errors(nb), *unrun(nb)]


def run_all(page):
    """Choose Run All Cells in the menu.

    Without a restart: one that comes while the page still asks the kernel for ipywidgets' subshell cancels that
    question, and JupyterLab logs errors.
    """
    page.click('.lm-MenuBar-itemLabel:text-is("Run")')
    page.click('li[data-command="runmenu:run-all"]')


def has_number(prompt):
    return any(character.isdigit() for character in prompt)


def unrun(nb):
    cells = notebooks.not_run(nb)
    return [f"{len(cells)} cells did not run to their end, the first is cell {cells[0]}"] if cells else []


def unannounced(nb):
    return [
        f"cell {i} shows a {name}"
        for i, cell in enumerate(nb.cells)
        for name in notebooks.exception_names(cell)
        if not notebooks.is_tagged(cell)
    ]


def errors(nb):
    """The unannounced errors, and announced errors that did not occur."""
    problems = unannounced(nb)
    for i, cell in enumerate(nb.cells):
        if notebooks.is_tagged(cell) and cell.execution_count and not notebooks.exception_names(cell):
            problems.append(f"cell {i} is tagged {notebooks.FAILS_ON_PURPOSE} and raised nothing")
        problems += [f"cell {i} failed on stderr: {sign}" for sign in notebooks.silent_failures(cell)]
    return problems


def complaints(page):
    """Return a list that receives the errors of the page's console, except JupyterLab's own."""
    found = []

    def note(text):
        if not any(own in text for own in JUPYTERLABS_OWN):
            found.append(text)

    page.on("console", lambda message: note(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: note(str(error)))
    return found


def barriers(page):
    """What axe-core rates as serious or critical accessibility barriers in the outputs of a notebook."""
    from axe_playwright_python.sync_playwright import Axe

    # ipywidgets gives a slider's handle no name of its own; its label is beside it.
    context = {"include": [[".jp-Cell-outputArea"]], "exclude": [[".noUi-handle"]]}
    return [
        f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for each in Axe().run(page, context=context).response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def take_screenshots(page, stem, whole):
    """Save the notebook's top as NN_name.png, or if `whole` all of it as NN_name_01.png, _02.png, and so on."""
    for old in SHOTS.glob(f"{stem}*.png"):
        old.unlink()
    scroller = page.query_selector(".jp-NotebookPanel .jp-WindowedPanel-outer")
    if scroller:
        scroller.evaluate("node => node.scrollTop = 0")
        page.wait_for_timeout(300)
    page.screenshot(path=SHOTS / f"{stem}.png")
    if not (whole and scroller):
        return
    total, shown = scroller.evaluate("node => [node.scrollHeight, node.clientHeight]")
    tops = range(0, max(total - PAGE_OVERLAP, 1), shown - PAGE_OVERLAP)
    for number, top in enumerate(tops, start=1):
        scroller.evaluate("(node, top) => node.scrollTop = top", top)
        page.wait_for_timeout(200)
        page.screenshot(path=SHOTS / f"{stem}_{number:02d}.png")


if __name__ == "__main__":
    main()
