"""Which build of PyTorch a driver and its GPUs get: what PyTorch's and NVIDIA's release notes say, driver by driver."""

import platform

import pytest

from course_utils.hardware import builds

DRIVERS = {
    "525.60.13": 525,
    "530.30": 530,
    "535.183.01": 535,
    "545.23": 545,
    "550.54.15": 550,
    "555.42": 555,
    "560.35": 560,
    "565.57": 565,
    "570.86": 570,
    "575.51": 575,
    "580.65.06": 580,
    "590.44": 590,
}
# {compute capability: [(first driver, last driver, the build, or None where the machine must be changed)]}
OLD = [(525, 580, "12.6"), (590, 999, None)]  # 580 is the last driver for Maxwell, Pascal and Volta
CURRENT = [(525, 575, "12.6"), (580, 999, "13")]
BLACKWELL = [(525, 565, None), (570, 575, "12.8"), (580, 999, "13")]  # 570 is the first driver that knows it
TABLE = {
    "6.0": OLD,
    "6.1": OLD,
    "7.0": OLD,
    "7.5": CURRENT,
    "8.0": CURRENT,
    "8.6": CURRENT,
    "8.9": CURRENT,
    "9.0": CURRENT,
    "10.0": BLACKWELL,
    "10.3": BLACKWELL,
    "12.0": BLACKWELL,
    "12.1": BLACKWELL,
}


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize("capability", TABLE)
@pytest.mark.parametrize("driver", DRIVERS)
def test_each_pair_gets_a_build_that_is_supported_or_advice(driver, capability):
    wanted = next(build for first, last, build in TABLE[capability] if first <= DRIVERS[driver] <= last)
    for count in (1, 8):
        choice = builds.choose(driver, count * [capability])
        assert (choice.build and choice.build.cuda) == wanted
        assert driver in choice.why and capability in choice.why
        assert bool(choice.advice) == (wanted is None)


@pytest.mark.parametrize("driver, capabilities, wanted", [
    ("580.65", ["8.0", "7.0"], "12.6"), ("575.51", ["7.5", "12.0"], "12.8"), ("580.65", ["9.0", "12.0"], "13"),
    ("550.54", [], "12.6"), ("590.44", [], "13"),
])  # fmt: skip
def test_one_build_for_all_gpus_of_a_machine(driver, capabilities, wanted):
    assert builds.choose(driver, capabilities).build.cuda == wanted


@pytest.mark.parametrize(
    "driver, capabilities, said",
    [
        ("470.256", ["3.7"], "set COURSE_DEVICE=cpu"),
        ("470.256", ["8.0"], "update the driver to 525 or newer"),
        ("550.54", ["12.0"], "update the driver to 570 or newer"),
        ("590.44", ["8.0", "6.1"], "install driver 580"),
        ("580.65", ["7.0", "12.0"], "choose for those that shall be used, with CUDA=13 or CUDA=12.6"),
        ("600.10", ["13.0"], "install a newer torch"),
    ],
)
def test_where_no_build_runs_it_is_said_what_to_do(driver, capabilities, said):
    choice = builds.choose(driver, capabilities)
    assert choice.build is None and said in choice.advice


def test_on_arm_the_builds_have_other_kernels(monkeypatch):
    assert builds.choose("580.65", ["11.0"]).build is None
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert builds.choose("580.65", ["11.0"]).build.cuda == "13"
    assert builds.choose("550.54", ["9.0"]).build.cuda == "12.6"  # Grace Hopper
    assert (
        builds.choose("550.54", ["7.5"]).build is None
        and builds.choose("550.54", ["7.5"]).advice == "set COURSE_DEVICE=cpu"
    )


def test_a_build_is_named_by_its_cuda_version():
    assert [builds.named(cuda).cuda for cuda in ("13", "12.8", "12.6", "12")] == ["13", "12.8", "12.6", "12.6"]
    with pytest.raises(ValueError, match="CUDA=11 is not to be had: choose CUDA=13 or CUDA=12.6 or CUDA=12.8"):
        builds.named("11")
