"""The page that plans a job: the planner's own Python, run in the reader's browser by Pyodide."""

import base64
import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from string import Template

from course_utils.planner import GPUS, presets
from tools import notebooks

VERSION = "314.0.7"
# What npm says of this version; another one has another: npm view pyodide@VERSION dist.integrity
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FETCHED = ("pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")  # whose bytes worker.js counts
FILES = ("pyodide.mjs", "pyodide.asm.mjs", *FETCHED)
HERE = Path(__file__).with_name("planner")
PLANNER = notebooks.ROOT / "course_utils" / "planner"
FETCH_S = 300


def write(source, build=notebooks.ROOT / "build"):
    """Write the page into `source`, and into its folder `extra` what it loads; `build` keeps Pyodide's package.

    Where Pyodide cannot be had, that is printed in one line, and the page says so instead.
    """
    shutil.copy2(HERE / "plan.md", source)
    try:
        package = pyodide(build)
    except ValueError as error:
        print(f"site: the page that plans a job is left out: {error}")
        text = f"<p>The planner was left out when this page was built: {error}.</p>"
        (source / "page.html").write_text(text, encoding="utf-8")
        return
    folder = source / "extra" / "planner"
    (folder / "pyodide").mkdir(parents=True)
    with tarfile.open(package) as archive:
        for name in FILES:
            (folder / "pyodide" / name).write_bytes(archive.extractfile(f"package/{name}").read())
    with zipfile.ZipFile(folder / "planner.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in PLANNER.rglob("*") if path.suffix in (".py", ".csv")):
            archive.write(path, path.relative_to(notebooks.ROOT))
    for name in ("page.js", "page.css", "worker.js", "answers.py"):
        shutil.copy2(HERE / name, folder)
    counted = [*(folder / "pyodide" / name for name in FETCHED), folder / "planner.zip", folder / "answers.py"]
    text = with_choices((HERE / "page.html").read_text(encoding="utf-8"), sum(path.stat().st_size for path in counted))
    (source / "page.html").write_text(text, encoding="utf-8")


def with_choices(text, num_bytes):
    """The page's HTML with the models and GPUs that the planner knows."""
    tokens = {name: make().tokens for name, make in presets.NETWORKS.items()}
    gpus = []
    for name in GPUS:
        with suppress(ValueError):  # a GPU whose links are not known
            presets.cluster(f"8x{name}")
            gpus.append(name)
    return Template(text).substitute(
        bytes=num_bytes,
        version=VERSION,
        networks="".join(f'<option data-tokens="{number}">{name}</option>' for name, number in tokens.items()),
        gpus="".join(f"<option{' selected' * (name == 'A100-80')}>{name}</option>" for name in gpus),
        numbers="".join(f"<option>{2**i}</option>" for i in range(15)),
    )


def pyodide(build):
    """The path of Pyodide's package in `build`, fetched by npm the first time.

    Raises ValueError if it cannot be had.
    """
    package = build / f"pyodide-{VERSION}.tgz"
    if not package.is_file():
        fetch(package)
    digest = hashlib.sha512(package.read_bytes()).digest()
    if f"sha512-{base64.b64encode(digest).decode()}" != INTEGRITY:
        package.unlink()
        raise ValueError(f"pyodide {VERSION} arrived damaged or is another file than expected; try again")
    return package


def fetch(package):
    npm = shutil.which("npm")
    if not npm:
        raise ValueError("npm is not installed, which fetches Pyodide; install it and build the site again")
    package.parent.mkdir(exist_ok=True)
    # Into a folder of its own first: of two builds at a time neither sees the other's half.
    with tempfile.TemporaryDirectory(dir=package.parent) as folder:
        command = [npm, "pack", f"pyodide@{VERSION}", "--fetch-retries=0"]
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_S
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"npm did not fetch pyodide@{VERSION} within {FETCH_S} s; try again later") from None
        if done.returncode:
            code = re.search(r"code (\w+)", done.stderr)
            said = f" ({code[1]})" if code else ""
            raise ValueError(
                f"npm could not fetch pyodide@{VERSION}{said}; connect to a network and build the site again"
            )
        (Path(folder) / package.name).rename(package)
