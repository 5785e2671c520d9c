"""A live IPython kernel, as a notebook has one; cells/ holds the text of its cells."""

import json
import os
import threading
from pathlib import Path

from jupyter_client.manager import start_new_kernel

CELLS = Path(__file__).parent / "cells"
ROOT = Path(__file__).resolve().parents[2]


class CellFailed(Exception):
    """A cell raised an error; the message is its traceback."""


class Kernel:
    """A kernel: `kernel.cell(name)` runs cells/<name>.py as a cell, `kernel(expression)` returns a value through JSON.

    The text is sent instead of imported, because launch is made for functions defined in cells. Both raise CellFailed,
    and TimeoutError after ten minutes. Keywords are environment variables of the kernel.
    """

    def __init__(self, **environment):
        self._turn = threading.Lock()  # several threads may ask
        self._manager, self._client = start_new_kernel(
            kernel_name="python3", cwd=ROOT, env=os.environ | environment, extra_arguments=["--log-level=ERROR"]
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def cell(self, name):
        self._run((CELLS / f"{name}.py").read_text(encoding="utf-8"))

    def __call__(self, expression):
        text = self._run(f"import json; print('\\n=>' + json.dumps({expression}))")
        return json.loads(text.rsplit("\n=>", 1)[1])

    def _run(self, source):
        """Run a cell and return what it printed."""
        texts, errors = [], []

        def hook(message):
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                texts.append(content["text"])
            if message["msg_type"] == "error":
                errors.extend(content["traceback"])

        with self._turn:
            self._client.execute_interactive(source, timeout=600, output_hook=hook)
        if errors:
            raise CellFailed("\n".join(errors))
        return "".join(texts)
