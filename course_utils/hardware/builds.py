"""Which build of PyTorch runs on a driver and its GPUs: for installation, and for advice later.

`make` reads this file before anything is installed, so it imports the standard library alone.

Sources: PyTorch's RELEASE.md ("PyTorch CUDA Support Matrix") of 2.11, the last with builds for CUDA 12.8, of 2.14, the
last with CUDA 12.6, and of 2.15; NVIDIA's "CUDA Compatibility" for the oldest driver of each major version, and its
driver release notes for the first and last driver of a GPU generation.
"""

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Build:
    """PyTorch's wheels for one version of CUDA.

    `backend` is uv's name of their index, None for PyPI; `torch` the newest release there; `oldest_driver` NVIDIA's
    driver branch; `kernels` and `kernels_arm` the compute capabilities with machine code.
    """

    cuda: str
    backend: str | None
    torch: str
    oldest_driver: int
    kernels: tuple
    kernels_arm: tuple

    @property
    def name(self) -> str:
        return f"PyTorch {self.torch} for CUDA {self.cuda}"

    @property
    def lock(self) -> str | None:
        """The file in requirements/ that replaces lines of course.lock; None for PyPI's build, which needs none."""
        return f"cuda{self.cuda}.lock" if self.backend else None


# The first that fits is taken.
BUILDS = (
    Build(
        "13", None, "2.15", 580, ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), ("8.0", "9.0", "10.0", "11.0", "12.0")
    ),
    Build("12.6", "cu126", "2.14", 525, ("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"), ("8.0", "9.0")),
    Build("12.8", "cu128", "2.11", 525, ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), ("8.0", "9.0", "10.0", "12.0")),
)
# {major compute capability: first driver branch that knows it}, for GPUs younger than driver 525.
FIRST_DRIVER = {10: 570, 11: 580, 12: 570}
LAST_DRIVER_BEFORE_TURING = 580


@dataclass(frozen=True)
class Choice:
    """A build, or None if none runs on the GPUs; `why` explains the choice, `advice` says what to do without one."""

    build: Build | None
    why: str
    advice: str = ""


def named(cuda: str) -> Build:
    """The build that `CUDA=` names: "13", "12.8", "12.6", or "12", which is 12.6; raises ValueError for any other."""
    for build in BUILDS:
        if build.cuda == {"12": "12.6"}.get(cuda, cuda):
            return build
    raise ValueError(f"CUDA={cuda} is not to be had: choose CUDA={' or CUDA='.join(build.cuda for build in BUILDS)}")


def choose(driver: str, capabilities: list[str]) -> Choice:
    """Choose the build for a driver ("550.54.15") and the compute capabilities ("8.0") of all GPUs to use.

    If the driver does not report capabilities, it alone decides.
    """
    branch = int(driver.partition(".")[0])
    asked = sorted({_numbers(text) for text in capabilities})
    told = f"driver {driver}" + (f", compute capability {' and '.join(map(_text, asked))}" if asked else "")
    advice = _advice_on_the_driver(branch, asked)
    if advice:
        return Choice(None, f"{told}: no build of PyTorch runs on this", advice)
    for build in BUILDS:
        if branch >= build.oldest_driver and all(runs(build, own) for own in asked):
            return Choice(build, f"{told}: {_why(build, branch)}")
    if asked[-1] > max(_numbers(have) for have in BUILDS[0].kernels) and not any(runs(BUILDS[0], own) for own in asked):
        return Choice(
            None,
            f"{told}: this GPU is newer than every build of PyTorch that the course knows",
            "install a newer torch",
        )
    if len(asked) == 1:
        return Choice(
            None,
            f"{told}: no build of PyTorch has kernels for this GPU on {platform.machine()}",
            "set COURSE_DEVICE=cpu",
        )
    return Choice(
        None,
        f"{told}: no build of PyTorch has kernels for all of these GPUs",
        "choose for those that shall be used, with CUDA=13 or CUDA=12.6",
    )


def _advice_on_the_driver(branch: int, asked: list) -> str:
    """What to do if the driver runs no build or cannot run a GPU; "" if all is well."""
    if asked and asked[0] < (5, 0):
        return (
            "no build of PyTorch has kernels for a GPU this old: leave it out with CUDA_VISIBLE_DEVICES, or set "
            "COURSE_DEVICE=cpu"
        )
    needed = max([min(build.oldest_driver for build in BUILDS), *(FIRST_DRIVER.get(major, 0) for major, _ in asked)])
    if branch < needed:
        return f"update the driver to {needed} or newer, or ask whoever runs this machine to"
    if branch > LAST_DRIVER_BEFORE_TURING and asked and asked[0] < (7, 5):
        return (
            f"install driver {LAST_DRIVER_BEFORE_TURING}, the last for GPUs older than Turing, or ask whoever runs "
            "this machine to"
        )
    return ""


def comes_with_torch(project: str) -> bool:
    """Whether a PyPI package belongs to a CUDA build of PyTorch, which pins its version."""
    return project.startswith(("nvidia-", "cuda-", "triton"))


def runs(build: Build, own: tuple[int, int]) -> bool:
    """Whether the build has machine code for a compute capability: same major version, equal or lower minor version."""
    kernels = build.kernels_arm if platform.machine() == "aarch64" else build.kernels
    return any(have[0] == own[0] and have[1] <= own[1] for have in map(_numbers, kernels))


def _why(build: Build, branch: int) -> str:
    newest = BUILDS[0]
    if build is newest:
        return f"{build.name}, the newest build"
    if branch < newest.oldest_driver:
        return f"{build.name}, since builds for CUDA {newest.cuda} need driver {newest.oldest_driver} or newer"
    return f"{build.name}, since newer builds have no kernels for this GPU"


def _numbers(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def _text(own: tuple[int, int]) -> str:
    return "{}.{}".format(*own)
