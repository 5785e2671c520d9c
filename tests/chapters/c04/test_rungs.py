"""What chapter 04 measures its ladder with: rungs, traces of steps, and what flows between layers."""

import contextlib
import os
import time
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.chapters.c04_making_one_device_fast import flowing, rungs, traces
from course_utils.data import load_images
from course_utils.data.packed import PackedImages, augment
from course_utils.measure import memory, throughput
from tests.helpers.played_gpus import PlayedGpus


def test_images_come_back_from_their_files():
    digits = load_images("digits", size=8)
    packed = PackedImages(digits)
    torch.testing.assert_close(packed.decode(3), digits.images[3], rtol=0, atol=1 / 255)
    image, label = packed[3]
    assert len(packed) == len(digits) and image.shape == digits.images[3].shape and label == digits.labels[3]
    assert not torch.equal(image, packed.decode(3))


def test_augmenting_moves_no_image_far():
    torch.manual_seed(0)
    images = torch.zeros(50, 1, 21, 21)
    images[:, 0, 10, 10] = 1
    heaviest = [divmod(int(image.argmax()), 21) for image in augment(images)]
    assert len(set(heaviest)) > 1 and all(abs(row - 10) <= 2 and abs(column - 10) <= 2 for row, column in heaviest)


@pytest.mark.parametrize(("capability", "has_tf32"), [((7, 5), False), ((8, 0), True)])
def test_turing_has_no_tf32(capability, has_tf32):
    with PlayedGpus():
        torch.cuda.get_device_capability = lambda device: capability
        assert ("TF32" in rungs.multiplied_formats("cuda")) == has_tf32


def test_what_a_cpu_leaves_out(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx2": True})
    assert rungs.fast_dtype("cpu") is None and list(rungs.multiplied_formats("cpu")) == ["float32"]
    assert [rung[0] for rung in rungs.not_here("cpu")] == ["2", "7", "4"]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert rungs.fast_dtype("cpu") == torch.bfloat16 and "4 mixed precision" not in rungs.not_here("cpu")


@pytest.mark.parametrize("missing", ["", "gcc", "Python.h", "triton"])
def test_a_gpu_compiles_with_a_compiler_headers_and_triton_only(missing, monkeypatch, tmp_path):
    """Triton compiles C that includes Python.h, which many systems have in a package of its own."""
    if missing != "Python.h":
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(rungs.sysconfig, "get_path", {"include": tmp_path}.get)
    monkeypatch.setattr(rungs.shutil, "which", lambda name: name if name == "gcc" != missing else None)
    monkeypatch.setattr(rungs.importlib.util, "find_spec", lambda name: name != missing or None)
    with PlayedGpus():
        for capability in ((6, 1), (7, 0)):  # Triton has nothing for Pascal
            torch.cuda.get_device_capability = lambda device: capability
            assert list(rungs.not_here("cuda")) == (["7 torch.compile"] if missing or capability < (7, 0) else [])


@pytest.mark.parametrize("compiler", ["g++", "clang++", ""])
def test_a_cpu_compiles_with_a_compiler_and_headers(compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(rungs.sysconfig, "get_path", {"include": tmp_path}.get)
    monkeypatch.setattr(rungs.shutil, "which", lambda name: name if name == compiler else None)
    assert rungs.no_inductor("cpu")  # no Python.h
    (tmp_path / "Python.h").touch()
    assert (rungs.no_inductor("cpu") == "") == bool(compiler)


def test_the_peak_is_that_of_the_whole_step():
    net, x = nn.Linear(100, 100), torch.zeros(250, 100)

    def step(phase):
        for _ in range(2):  # the phases come twice: the curve is in the order of time
            with phase("forward"):
                y = net(x)
            with phase("backward"):
                y.sum().backward()

    step(lambda name: contextlib.nullcontext())
    times, megabytes = memory.curve(step)
    assert times == sorted(times) and max(megabytes) == rungs.peak_mb(step, "cpu") >= 0.1


def test_the_peak_is_that_of_a_step_not_of_compiling_it():
    calls = []

    def step(phase=lambda name: contextlib.nullcontext()):
        calls.append(1)
        with phase("forward"):  # the first two compile, and record a graph
            torch.ones((100 if len(calls) < 3 else 1) * 250_000)

    assert rungs.peak_mb(step, "cpu") == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("triton_poi_fused_convolution_relu_0", "torch.compile"),
        ("triton_per_fused__log_softmax_addmm_nll_loss_forward_3", "torch.compile"),
        ("triton_red_fused_convolution_backward_2", "torch.compile"),
        ("triton_tem_fused_convolution_1", "convolution"),
        ("autograd::engine::evaluate_function: CompiledFunctionBackward", "torch.compile"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32", "convolution"),
        ("void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar()>", "ReLU"),
        ("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", "matrix product"),
        ("aten::relu", "ReLU"),
        ("aten::cross_entropy_loss", "other"),
    ],
)
def test_a_kernel_is_what_it_does_not_what_was_fused_into_it(kernel, kind):
    assert traces.kind(kernel) == kind
    seen = types.SimpleNamespace(key_averages=lambda: [row(kernel, "CUDA", 30)])
    shown = traces.table({"rung": seen}).splitlines()[1]
    assert shown == f"  100%  {kind:14s} {kernel.removeprefix('void ')[:56]}"  # the kind first: names are long


def test_rung_3_changes_the_plain_loop():
    assert rungs.built_on(["0 a", "1 b", "2 c", "3 d"]) == {"1 b": "0 a", "2 c": "1 b", "3 d": "0 a"}
    assert rungs.built_on(["0 a", "3 d", "5 f"]) == {"3 d": "0 a", "5 f": "3 d"}


@pytest.mark.parametrize(
    ("gain", "equal", "said"),
    [
        ((1.01, 1.02, 1.05), (0.97, 1.02, 1.03), "not shown"),  # they overlap
        ((1.04, 1.05, 1.06), (0.97, 1.02, 1.03), "faster"),
        ((0.98, 0.99, 1.01), (0.90, 0.92, 0.95), "not shown"),  # it contains 1
        ((0.96, 0.97, 0.99), (0.90, 0.92, 0.95), "not shown"),  # between the equal step's and 1
        ((0.78, 0.85, 0.96), (0.97, 1.00, 1.03), "slower"),
    ],
)
def test_a_verdict_needs_a_gain_beyond_that_of_equal_steps(gain, equal, said):
    assert rungs.verdict(gain, equal) == said


def test_the_tables_say_what_each_rung_gains():
    names, seconds = ["0 plain loop", "1 loader workers", "3 data on the device"], [(2.0, 4.0), (4.0, 8.0), (1.0, 2.0)]
    timings = {name: throughput.Timing(each, 64) for name, each in zip(names, seconds)}
    bounds = {names[1]: 1.3, names[2]: 1.4}
    head, plain, workers, data, equal = rungs.table(timings, names, {names[0]: 78.4}, (1, 1, 1), bounds).splitlines()
    assert plain.split()[-4:] == ["3000.0", "(2500.0–3500.0)", "1.00", "78"]
    assert workers.split()[-4:] == ["1.30", "0.50", "–", "slower"]
    assert "rung 0 × 2.00 (2.00–2.00)" in data and data.split()[-4:] == ["1.40", "2.00", "–", "faster"]
    assert equal.endswith("× 1.00 (1.00–1.00)")
    assert head.index("at most") + len("at most") == data.index("1.40") + 4  # columns end together
    assert head.index("× rung 0") + len("× rung 0") == plain.index("1.00") + 4 and head.endswith("MB")
    values = {"images_per_s": {"0 a": [100.0, 90, 110], "7 g": [200.0, 190, 210]}, "busy_ms": {"7 g": 80.0}}
    _, first, last = rungs.gpu_table(values | {"kernels": {"7 g": 88.0}}, 64).splitlines()
    assert first.split() == ["0", "a", "100", "1.00", "640.00", "ms"]
    assert last.split()[-6:] == ["320.00", "ms", "80.00", "ms", "25%", "88"]


def test_a_step_keeps_its_errors_and_loses_the_log(capfd):
    def step(phase):
        with phase("forward"):
            torch.ones(250_000)
            os.write(2, b"a warning of C++")

    rungs.peak_mb(step, "cpu", warmup=0)
    assert "a warning" not in capfd.readouterr().err
    os.write(2, b"later")
    assert capfd.readouterr().err == "later"


def row(key, kind, time):
    return types.SimpleNamespace(
        key=key,
        device_type=types.SimpleNamespace(name=kind),
        is_user_annotation=key == "mine",
        self_device_time_total=time,
        self_cpu_time_total=time,
    )


def test_a_kernels_time_counts_once():
    rows = [
        row("aten::conv2d", "CPU", 30),
        row("a kernel", "CUDA", 30),
        row("another", "CUDA", 10),
        row("mine", "CUDA", 40),
    ]
    seen = types.SimpleNamespace(key_averages=lambda: rows)
    assert traces.largest(seen) == [("a kernel", 0.75), ("another", 0.25)]
    assert (
        traces.table({"rung": seen}).split()
        == "rung, shares of the computing time: 75% other a kernel 25% other another".split()
    )


def on_a_gpu(start, end, kind="CUDA", name="a kernel"):
    span, device = types.SimpleNamespace(start=start, end=end), types.SimpleNamespace(name=kind)
    return types.SimpleNamespace(name=name, time_range=span, device_type=device, is_user_annotation=name == "forward")


def test_overlapping_kernels_count_once():
    events = [on_a_gpu(0, 2000), on_a_gpu(1000, 3000), on_a_gpu(5000, 6000), on_a_gpu(0, 9000, "CPU")]
    events += [on_a_gpu(0, 9000, name="forward")]  # a mark, which lasts as long as what is in it
    seen = types.SimpleNamespace(events=lambda: events)
    assert traces.busy_ms(seen, num_steps=2) == 2.0 and traces.num_kernels(seen, num_steps=2) == 1.5


def test_a_copy_keeps_a_gpu_busy_and_is_no_kernel():
    names = ("a kernel", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)")
    events = [on_a_gpu(1000 * i, 1000 * (i + 1), name=name) for i, name in enumerate(names)]
    seen = types.SimpleNamespace(events=lambda: events)
    assert traces.busy_ms(seen, 1) == 3.0 and traces.num_kernels(seen, 1) == 1


def test_kinds_have_colours_of_their_own():
    assert len({*traces.KINDS.values()}) <= 7  # and "other" is grey


def profiled(step, num_steps):
    with torch.profiler.profile() as trace:
        for _ in range(num_steps):
            step(torch.profiler.record_function)
    return trace


def test_every_phase_has_a_row():
    net, x = nn.Linear(10, 10), torch.zeros(5, 10)

    def step(phase):
        with phase("load"):
            pass
        with phase("forward"):
            y = net(x)
        with phase("backward"):
            y.sum().backward()

    spans = traces.spans_of_last_step(profiled(step, 2))
    assert {name for name in ("load", "forward", "backward") if name in spans} == {"load", "forward", "backward"}
    assert "matrix product" in {what for _, _, what in spans["forward"]}


def test_phases_under_the_profiler():
    x = torch.ones(4)

    def step(phase):
        with phase("load"):
            for _ in range(20):
                x + x
        with phase("forward"):
            time.sleep(0.02)

    trace = profiled(step, 3)
    load, forward, whole = traces.under_profiler(throughput.measure_phases(step, repeats=2), trace).splitlines()
    ms, events = ([float(line.split()[i].replace(",", "")) for line in (load, forward, whole)] for i in (-4, -2))
    assert events[:2] == [20, 0] and 20 <= ms[1] < ms[2] and load.startswith("load") and whole.startswith("step")
    assert 20 <= float(forward.split()[1]) < 200 and ms[0] < 20


def test_a_record_of_a_gpu_is_per_step():
    trace = types.SimpleNamespace(events=lambda: [on_a_gpu(0, 2000), on_a_gpu(3000, 4000)])
    assert traces.of_gpu({"rung": trace}, 2) == {"busy_ms": {"rung": 1.5}, "kernels": {"rung": 1.0}}


def test_types_are_those_of_autocast():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters())
    with flowing.Types(net) as found, torch.autocast("cpu", torch.bfloat16):
        loss = F.mse_loss(net(torch.ones(2, 4)), torch.ones(2, 3))
    loss.backward()
    optimizer.step()
    linear, relu = (line.split() for line in found.table(optimizer).splitlines()[1:])
    assert linear == ["0", "bfloat16", "bfloat16", "float32", "float32", "float32"]
    assert relu[-3:] == ["–"] * 3
