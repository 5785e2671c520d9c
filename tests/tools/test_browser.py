"""`python -m tools.browser`: a whole chapter in JupyterLab in chromium, as a student runs it."""

import os
import subprocess
import sys

from tests.helpers.lab_page import needs_browser
from tools import notebooks


@needs_browser
def test_a_chapter_runs_and_the_page_has_no_complaints():
    done = subprocess.run(
        [sys.executable, "-m", "tools.browser", "00"],
        cwd=notebooks.ROOT,
        env=os.environ | {"COURSE_QUICK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("00_start_here … ")
