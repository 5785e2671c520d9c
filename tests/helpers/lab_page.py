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


class Page:
    """A notebook of several parts in JupyterLab; `part` chooses one.

    `run` runs all cells of that part, and `cell(i)` is the element of its i-th cell.
    """

    def __init__(self, page, server, path, parts):
        self.page, self._server, self._path, self._parts = page, server, path, parts
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

    def part(self, name):
        """Go to the part of that name; complaints about what came before are forgotten."""
        names = list(self._parts)
        first = sum(len(self._parts[other]) for other in names[: names.index(name)])
        self._cells = range(first, first + len(self._parts[name]))
        self.complaints.clear()
        return self

    def start(self):
        """Run the part's cells, without waiting for their end."""
        prompts = self.page.locator(".jp-CodeCell .jp-InputPrompt")
        prompts.nth(self._cells[0]).click()
        prompts.nth(self._cells[-1]).click(modifiers=["Shift"])
        self.page.keyboard.press("Control+Enter")

    def run(self, timeout_ms=60_000):
        """Run the part's cells, and wait for the last one's end."""
        self.start()
        self.wait_for_end(timeout_ms)
        return self

    def run_cell(self, i, timeout_ms=60_000):
        """Run the part's i-th cell alone, and wait for its end."""
        prompt = self.cell(i).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        prompt.click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            """([node, before]) => node.innerText != before && !node.innerText.includes("*")""",
            arg=[prompt.element_handle(), before],
            timeout=timeout_ms,
        )

    def restart(self, timeout_ms=60_000):
        """Restart the kernel by its button, whatever runs."""
        self.page.click('[data-jp-item-name="restart"]')
        self.page.click(".jp-Dialog .jp-mod-accept")
        self.page.wait_for_selector(".jp-Dialog", state="detached")
        self.page.wait_for_function(
            """() => ![...document.querySelectorAll(".jp-InputPrompt")].some(n => n.innerText.includes("*"))""",
            timeout=timeout_ms,
        )

    def wait_for_end(self, timeout_ms=60_000):
        """Until the last cell that ran has a number and none has a star."""
        self.page.wait_for_function(
            """([first, end]) => {
                const cells = [...document.querySelectorAll(".jp-CodeCell")].slice(first, end);
                const prompts = cells.map(cell => cell.querySelector(".jp-InputPrompt").innerText);
                const failed = cells.some(cell => cell.querySelector(".jp-OutputArea-output[data-mime-type*=error]"));
                return (failed || prompts.every(text => /\\d/.test(text))) && !prompts.some(text => text.includes("*"));
            }""",
            arg=[self._cells.start, self._cells.stop],
            timeout=timeout_ms,
        )

    def saved(self, i):
        """Save the notebook, and return the part's i-th cell as it then is in the file."""
        self._save()
        return self._server.notebook(self._path.name).cells[self._cells[i]]

    def save_and_load_again(self):
        """Save the notebook, and load the page anew."""
        self._save()
        self.page.reload(wait_until="load")
        self.page.wait_for_selector('[data-jp-item-name="restart-and-run"]', timeout=START_MS)

    def _save(self):
        about = f"contents/notebooks/{self._path.name}?content=0"
        before, deadline = self._server.ask(about)["last_modified"], time.monotonic() + START_MS / 1000
        self.page.keyboard.press("Control+s")
        while self._server.ask(about)["last_modified"] == before:
            assert time.monotonic() < deadline, "the notebook was not saved"
            self.page.wait_for_timeout(100)

    def wait_for_the_kernel(self):
        """Wait until the kernel has done what it was asked, also where the page has been closed."""
        deadline = time.monotonic() + START_MS / 1000
        while any(kernel["execution_state"] != "idle" for kernel in self._server.ask("kernels")):
            assert time.monotonic() < deadline, "the kernel did not come to an end"
            time.sleep(0.1)

    def cell(self, i):
        return self.page.locator(".jp-CodeCell").nth(self._cells[i])

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
def lab(folder, parts):
    """Start JupyterLab in `folder` on a notebook of {part: list of cells}.

    Yields a function that opens it as a Page, each time anew and with its own kernel.
    """
    from playwright.sync_api import sync_playwright

    path = folder / "parts.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for sources in parts.values() for source in sources]
    nb = nbformat.v4.new_notebook(cells=cells)
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebooks.write(nb, path)
    with lab_server.jupyterlab(folder / "lab", [path]) as server, sync_playwright() as playwright:
        browser = chromium.start(playwright)
        context = browser.new_context(viewport={"width": 1200, "height": 900})  # its pages share what they have loaded

        def open_page():
            for page in context.pages:
                page.close()
            server.end_kernels()
            return Page(context.new_page(), server, path, parts).open()

        yield open_page
        browser.close()


def cells_of(chapter, text):
    """The code of a chapter that the first cell with `text` needs.

    It holds the chapter's setup, the cells that assign needed names, and that cell.
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
