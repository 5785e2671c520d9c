"""pyproject.toml (ranges), requirements/course.lock (exact versions) and environment.yml agree."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from course_utils.hardware import builds

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["lab"] + EXTRAS["test"]]
LOCK_TEXT = (ROOT / "requirements" / "course.lock").read_text()
LOCK = [Requirement(line.partition("#")[0]) for line in LOCK_TEXT.splitlines() if not line.lstrip().startswith("#")]


def version(pin):
    """The one version that a line of the lock admits."""
    (specifier,) = pin.specifier
    assert specifier.operator == "==" and "*" not in specifier.version, f"{pin} is no exact version"
    return Version(specifier.version)


@pytest.mark.parametrize("wanted", RANGES, ids=lambda wanted: wanted.name)
def test_lock_is_within_the_range(wanted):
    versions = [version(pin) for pin in LOCK if pin.name == wanted.name]
    assert versions, f"{wanted.name} is not in course.lock: run `make lock`"
    assert all(v in wanted.specifier for v in versions), f"{versions} not in {wanted}: run `make lock`"


def test_installed_packages_are_all_locked():
    """From the ranges through what each installed package requires: nothing comes in unpinned."""
    locked = {canonicalize_name(pin.name): version(pin) for pin in LOCK if not pin.marker or pin.marker.evaluate()}
    seen, to_visit = set(), [(wanted, "") for wanted in RANGES]
    while to_visit:
        wanted, extra = to_visit.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        assert name in locked, f"{name} is not in course.lock: run `make lock`"
        installed = metadata.distribution(name)
        # A CPU build of torch calls itself 2.15.0+cpu.
        assert Version(installed.version).public == str(locked[name]), (
            f"{name} {installed.version} is not the locked one: run `make install`"
        )
        for extra in {"", *wanted.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            to_visit += [(Requirement(line), extra) for line in installed.requires or []]
    assert len({name for name, _ in seen}) > len(RANGES)


def test_the_version_is_named_alike():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    latest = re.search(r"^## (\d[\d.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert PROJECT["version"] == citation["version"] == latest
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what its schema requires


def test_lock_names_no_address_and_no_linux_package_for_all():
    assert not re.search(r"://|--|\s@\s|/simple", LOCK_TEXT)
    of_linux = [pin for pin in LOCK if re.match("nvidia-(?!ml-py)|cuda-|triton", pin.name)]
    assert of_linux
    assert not [pin.name for pin in of_linux if not pin.marker or pin.marker.evaluate({"sys_platform": "darwin"})]


@pytest.mark.parametrize("build", [each for each in builds.BUILDS if each.lock], ids=lambda build: build.cuda)
def test_what_an_older_build_needs_is_of_its_version_of_cuda(build):
    """The driver's bindings, NVRTC and NVVM: kernels that a newer CUDA compiles do not load there."""
    text = (ROOT / "requirements" / build.lock).read_text()
    lines = [line.partition("#")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    pins = {pin.name: pin for pin in map(Requirement, lines)}
    major = build.cuda.partition(".")[0]
    of_version = {"torch": build.torch, "cuda-bindings": major, f"nvidia-cuda-nvcc-cu{major}": build.cuda}
    for name, wanted in of_version.items():
        assert str(version(pins.pop(name))).startswith(f"{wanted}."), name
    assert [name for name, pin in pins.items() if pin.marker and not pin.marker.evaluate()] == [
        "nvidia-cuda-nvrtc",  # those of course.lock are CUDA 13's, and are left out
        "nvidia-nvvm",
    ]


def test_conda_installs_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, pip, packages = environment["dependencies"]
    assert python.startswith("python" + PROJECT["requires-python"]) and pip == "pip"
    assert packages == {"pip": ["-r requirements/course.lock", "-e .[lab,test]"]}
