"""A page of JupyterLab in chromium with a notebook of a few cells, for tests of what moves."""

import ast
import contextlib
import time

import nbformat
import pytest

from tools import browser as chromium
from tools import notebooks
from tools.lab import server as lab_server

needs_browser = pytest.mark.skipif(
    chromium.what_is_missing() is not None, reason=chromium.what_is_missing() or "there is a browser"
)
START_MS = 60_000
PRESS_AGAIN_MS = 10_000


class Page:
    """A notebook in JupyterLab: `run` runs all its cells, `cell(i)` is the i-th one's element."""

    def __init__(self, page, server, path):
        self.page, self._server, self._path = page, server, path
        self.folder = server.folder  # in which its cells run
        self.complaints = chromium.complaints(page)

    def open(self):
        self.page.goto(self._server.page_url(self._path.name), wait_until="load", timeout=START_MS)
        self.page.wait_for_selector('[data-jp-item-name="restart-and-run"]', timeout=START_MS)
        deadline = time.monotonic() + START_MS / 1000
        while not self._server.kernel_is_ready():
            assert time.monotonic() < deadline, "the notebook's kernel did not start"
            self.page.wait_for_timeout(100)
        return self

    def start(self):
        """Run all cells, without waiting for their end."""
        self.page.click('li.lm-MenuBar-item:has-text("Run")')
        self.page.click('li[data-command="runmenu:run-all"]')

    def run(self, timeout_ms=60_000):
        """Run all cells, and wait for the last one's end."""
        self.start()
        self.wait_for_end(timeout_ms)
        return self

    def wait_for_end(self, timeout_ms=60_000):
        """Until the last cell that ran has a number and none has a star."""
        self.page.wait_for_function(
            """() => {
                const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")].map(n => n.innerText);
                const failed = document.querySelector(".jp-OutputArea-output[data-mime-type*=error]");
                return (failed || prompts.every(text => /\\d/.test(text))) && !prompts.some(text => text.includes("*"));
            }""",
            timeout=timeout_ms,
        )

    def wait_for_the_kernel(self):
        """Wait until the kernel has done what it was asked, also where the page has been closed."""
        deadline = time.monotonic() + START_MS / 1000
        while any(kernel["execution_state"] != "idle" for kernel in self._server.ask("kernels")):
            assert time.monotonic() < deadline, "the kernel did not come to an end"
            time.sleep(0.1)

    def cell(self, i):
        return self.page.locator(".jp-CodeCell").nth(i)

    def output(self, i):
        return self.cell(i).locator(".jp-Cell-outputArea")

    def use_theme(self, name):
        """Change to "Light" or "Dark" by the menu, as a student does."""
        self.page.click('li.lm-MenuBar-item:has-text("Settings")')
        self.page.hover('li[data-type="submenu"]:has-text("Theme")')
        self.page.click(f'li[role^="menuitem"]:has-text("JupyterLab {name}") >> nth=0')
        self.page.wait_for_selector(
            f'body[data-jp-theme-light="{"true" if name == "Light" else "false"}"]', state="attached"
        )

    def shot(self, name):
        chromium.SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=chromium.SHOTS / f"{name}.png")


@contextlib.contextmanager
def lab(folder, books):
    """A JupyterLab in `folder` with notebooks of {name: list of cells}; yields a function that opens one as a Page."""
    from playwright.sync_api import sync_playwright

    paths = []
    for name, cells in books.items():
        path = folder / f"{name}.ipynb"
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebooks.write(nb, path)
        paths.append(path)
    with lab_server.jupyterlab(folder / "lab", paths) as server, sync_playwright() as playwright:
        browser = chromium.start(playwright)
        context = browser.new_context(viewport={"width": 1200, "height": 900})  # its pages share what they have loaded
        opened = []

        def open_page(name):
            for page in opened:
                page.close()
                server.end_kernels()
            page = context.new_page()
            opened[:] = [page]
            return Page(page, server, folder / f"{name}.ipynb").open()

        yield open_page
        browser.close()


def cells_of(chapter, text):
    """The code of a chapter that the first cell with `text` needs: what sets the chapter up, what gives a value to a
    name that is needed, and that cell.
    """
    (path,) = notebooks.notebook_paths([chapter])
    cells = [notebooks.of_notebook(cell.source) for cell in notebooks.read(path).cells if cell.cell_type == "code"]
    last = next(i for i, source in enumerate(cells) if text in source)
    needed, wanted = [], notebooks.names_read(cells[last])
    for source in reversed(cells[1:last]):
        for node in reversed(ast.parse(source).body):
            statement = ast.unparse(node)
            if wanted & notebooks.names_bound(statement):
                needed.append(statement)
                wanted = (wanted - notebooks.names_bound(statement)) | notebooks.names_read(statement)
    return [source for source in (cells[0], "\n".join(reversed(needed)), cells[last]) if source]
