"""What README and the pages of docs/ say can be counted, and what they name is there."""

import importlib.util
import json
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}
README, LECTURERS, LAUNCHER = (PAGES[name] for name in ("README.md", "docs/lecturers.md", "docs/launcher.md"))
CHAPTERS = {path.stem[:2]: path for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
ROUTES = re.findall(r"^\| (\d\d) [^|]*\| (\d+) \| (\d+) \|", LECTURERS, re.MULTILINE)
MINUTES = {int(number): (int(present), int(lab)) for number, present, lab in ROUTES}
COMMANDS = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
FOLDERS = "notebooks|course_utils|data|docs|requirements|tools|tests|[.]github"
with_each_page = pytest.mark.parametrize("name", PAGES)


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_readme_lists_the_chapters_that_are_there():
    rows = re.findall(r"^\| (\d\d) \| \[[^\]]+\]\(notebooks/(\d\d)_\w+\.ipynb\)", README, re.MULTILINE)
    assert rows == [(number, number) for number in sorted(CHAPTERS)]
    assert sorted(MINUTES) == sorted(map(int, CHAPTERS))


def test_every_page_of_docs_is_in_readmes_table():
    listed = re.findall(r"^\| \[[^\]]+\]\(([^)]+\.md)\) \|", README, re.MULTILINE)
    assert sorted(listed) == sorted(PAGES.keys() - {"README.md"})


def test_routes_take_the_minutes_of_their_chapters():
    assert sum(MINUTES[0]) + MINUTES[9][0] == 90 and "**90 minutes**: 00 with its lab, then 09 presented." in LECTURERS
    two_days = sum(sum(MINUTES[n]) for n in (0, 1, 2, 3, 5, 8, 9, 10))
    assert f"00–03, 05 and 08–10 with their labs, {two_days} minutes" in LECTURERS and two_days < 2 * 6 * 60
    everything = sum(map(sum, MINUTES.values()))
    assert f"all, {everything:,} minutes" in LECTURERS and abs(everything / 60 / 15 - 2) < 0.05


def test_the_launchers_comparison_is_the_recorded_one():
    (path,) = (ROOT / "data" / "recorded").glob("*/launch.json")
    record = json.loads(path.read_text())
    assert (
        record["provenance"]["date"] in LAUNCHER and record["provenance"]["machine"] == "2 CPU cores (AMD EPYC), no GPU"
    )
    for label, method in {"`launch`": "launch", "`mp.spawn`": "spawn", "torchrun": "torchrun"}.items() | {
        ("loky, pool reused", "loky, pool reused")
    }:
        row = re.search(rf"^\| {re.escape(label)} \| (.*) \|$", LAUNCHER, re.MULTILINE)[1].split(" | ")
        found = [median(first for first, _ in times) for times in record["values"]["latency"][method].values()]
        assert [float(text) for text in row] == [float(f"{value:.2g}") for value in found], label


@with_each_page
def test_links_lead_to_files(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if target.startswith("../../actions/"):  # a page of GitHub's, beside the files
            workflow = re.match(r"\.\./\.\./actions/workflows/([\w.]+)", target)[1]
            assert (ROOT / ".github" / "workflows" / workflow).exists(), target
        elif "://" not in target:
            file, _, anchor = target.partition("#")
            path = ((ROOT / name).parent / file).resolve()
            assert path.exists(), target
            if anchor:
                headings = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings], target


@with_each_page
def test_what_is_named_is_there(name):
    """Commands of make, programs run with `python -m`, files and folders."""
    text = PAGES[name]
    missing = [
        command for command in re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE) if command not in COMMANDS
    ]
    for program in re.findall(r"-m ((?:tools|course_utils)(?:\.\w+)*)", text):
        spec = importlib.util.find_spec(program)
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{program}.__main__")
        missing += [] if spec else [program]
    for file in re.findall(rf"`((?:{FOLDERS})/[^`\s]*|\w+\.(?:md|toml|yml))`", text):
        if "NN" not in file and not any(ROOT.glob(file.rstrip("/"))):  # NN_name.ipynb is any chapter's
            missing.append(file)
    assert not missing
