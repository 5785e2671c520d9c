"""numba kernels run in the simulator, here without a GPU; what is wrong with one is said in a sentence."""

import os
import re
import subprocess
import sys

import cloudpickle
import numba
import numpy as np
import pytest
import torch
from numba import cuda

from course_utils import checks
from course_utils.checks import evaluate
from course_utils.kernels import (
    CudaKernel,
    KernelError,
    Touch,
    check_compiles,
    for_gpu,
    in_worker,
    recorder,
    run,
    simulate,
    simulate_many,
    simulator,
    simulator_in_workers,
)
from course_utils.launch import WorkerError, launch
from tests.helpers.looked_at import QUIET, look_at_import
from tools import notebooks

ADD_IN_C = """
extern "C" __global__ void add(int n, const float *x, float *y)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n)
        y[index] = x[index] + y[index];
}
"""

# As a notebook's functions do, these travel by value: a worker that imported this file would import all that it does.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# ---- numba kernels in the simulator -------------------------------------------------------------------------------

SCALE = 3


def twice(x):
    return 2 * x


@cuda.jit(device=True)
def negative(x):
    return -x


def add(n, x, y, out):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i] + SCALE * twice(negative(y[i]))


def transpose(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[j, i] = x[i, j]


def sum_blocks(x, out):
    partial = cuda.shared.array(32, numba.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    partial[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    half = 16
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, partial[0])


def strided(out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] += i


def corner(out):
    row, column = place()  # the kernel itself does not use `cuda`
    out[row, column] = num_places()


def place():
    return cuda.blockIdx.z, cuda.threadIdx.y


def num_places():
    return 10 * cuda.gridDim.z + cuda.blockDim.y


def test_a_simulated_kernel_computes():
    n = 100
    x, y = torch.randn(n), torch.randn(n, dtype=torch.float64, requires_grad=True)
    out = torch.zeros(n)
    # Five blocks of 24 threads: the last has 20 too many.
    seen = simulate(add, 5, 24, n, x, y, out)
    assert torch.equal(seen.args[3], (x - 6 * y.detach()).float())
    assert seen.args[0] == n and torch.equal(seen.args[1], x) and not out.any(), "the caller's tensors stay"
    assert seen.num_touches == len(seen.touches) == 3 * n and not seen.races
    assert seen.touches[3 * 50 : 3 * 51] == [
        Touch(2, 2, "x", 50, "read"),
        Touch(2, 2, "y", 50, "read"),
        Touch(2, 2, "out", 50, "write"),
    ]


def test_grids_and_blocks_of_several_dimensions():
    x = torch.arange(35.0).view(5, 7)
    seen, again = simulate_many(transpose, [((2, 4), (3, 2), (x, torch.zeros(7, 5)))] * 2)
    assert torch.equal(seen.args[1], x.T) and again.touches == seen.touches
    touch = next(touch for touch in seen.touches if touch.element == (6, 4))
    assert touch == Touch((1, 3), (1, 0), "out", (6, 4), "write")
    # A thread's x counts up first, as in CUDA.
    assert [touch.thread for touch in seen.touches[:6:2]] == [(0, 0), (1, 0), (2, 0)]


def test_third_dimension_and_shapes():
    out = torch.zeros(3, 2, dtype=torch.int64)
    seen = simulate(corner, (1, 1, 3), (1, 2), out)
    assert (seen.args[0] == 32).all()
    assert seen.touches[-1] == Touch((0, 0, 2), (0, 1), "out", (2, 1), "write")


def test_shared_memory_barriers_and_atomics():
    x = torch.arange(100.0)
    seen = simulate(sum_blocks, 4, 32, x, torch.zeros(1))
    assert seen.args[1].item() == x.sum() and seen.races == []
    assert {touch.arg for touch in seen.touches} == {"x", "out"}, "shared arrays are no arguments"
    assert [touch.block for touch in seen.touches if touch.atomic and touch.kind == "write"] == [0, 1, 2, 3]


ARRAYS = [
    np.zeros(10, dtype=np.int16), torch.zeros(10, dtype=torch.bool), torch.zeros(10, dtype=torch.float16),
    torch.zeros(20)[::2], torch.zeros(10, dtype=torch.complex64),
]  # fmt: skip


def test_arrays_of_any_type():
    for array, seen in zip(ARRAYS, simulate_many(strided, [(2, 3, (array,)) for array in ARRAYS])):
        (out,) = seen.args
        assert type(out) is type(array) and out.dtype == array.dtype
        assert np.array_equal(np.asarray(out), np.arange(10).astype(np.asarray(array).dtype))


def test_touches_that_are_too_many_are_counted(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_TOUCHES", 20)
    observer = recorder.Observer()
    array = recorder.Array(np.zeros(1), observer, "x")
    for _ in range(25):
        array[0] = 1
    assert observer.num_touches == len(observer.touches) + 5 == 25


def no_atomic(x, out):
    out[0] += x[cuda.grid(1)]


def no_barrier(x, out):
    partial = cuda.shared.array(8, numba.float32)
    partial[cuda.threadIdx.x] = x[cuda.grid(1)]
    out[cuda.grid(1)] = partial[7 - cuda.threadIdx.x]


def barrier_between(x, out):
    partial = cuda.shared.array(8, numba.float32)
    partial[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = partial[7 - cuda.threadIdx.x]


def test_races_are_seen():
    x = torch.arange(16.0)
    (race,) = simulate(no_atomic, 2, 8, x, torch.zeros(1)).races
    assert (race.array, race.element) == ("out", 0)
    assert str(race).startswith("thread 0 of block 0 writes out[0] and thread 1 of block 0 reads it")
    seen = simulate(no_barrier, 2, 8, x, torch.zeros(16))
    assert {race.array for race in seen.races} == {"partial"} and len(seen.races) == 16
    assert seen.args[1].isnan().any(), "what nobody wrote looks like no result"
    seen = simulate(barrier_between, 2, 8, x, torch.zeros(16))
    assert seen.races == [] and torch.equal(seen.args[1].view(2, 8), x.view(2, 8).flip(1))


def test_a_race_behind_older_accesses_is_seen():
    observer = recorder.Observer()
    array = recorder.Array(np.zeros(1), observer, "x")
    # The barrier between phases 0 and 1 puts thread 0 in order, and thread 2's own read is no race: thread 1's is.
    for phase, thread, kind in [(0, 0, "read"), (1, 1, "read"), (1, 2, "read"), (1, 2, "write")]:
        observer.block, observer.thread, observer.phase = 0, thread, phase
        observer.note(array, 0, kind)
    assert [(race.first, race.second) for race in observer.races] == [((0, 1, "read"), (0, 2, "write"))]


# ---- numba kernels that are wrong ---------------------------------------------------------------------------------


def no_guard(x, out):
    i = cuda.grid(1)
    out[i] = i


def reads_on(x, out):
    out[0] = x[cuda.grid(1) + 1]


def reads_before(x, out):
    out[0] = x[cuda.grid(1) - 1]


def half_an_index(x, out):
    out[cuda.grid(1) / 2] = 1


def two_indices(x, out):
    out[0, 1] = 1


def slices(x, out):
    out[0:2] = 1


def whole(x, out):
    out[0] = x + 1


def writes_none(x, out):
    out[0] = None


def past_shared(x, out):
    tile = cuda.shared.array((2, 2), numba.float32)
    tile[cuda.threadIdx.x, 0] = 1


def in_a_helper(x, out):
    fill_two()


def fill_two():
    pair = cuda.shared.array(2, numba.float32)
    pair[cuda.threadIdx.x] = 1


def past_local(x, out):
    mine = cuda.local.array(3, numba.int32)
    mine[3] = 1


def sized_by_argument(x, out):
    cuda.shared.array(x.size, numba.float32)[0] = 1


def sized_by_block(x, out):
    cuda.shared.array(shape=cuda.blockDim.x, dtype=numba.float32)[0] = 1


def too_much_shared(x, out):
    cuda.shared.array(20_000, numba.float32)[0] = 1


def torch_type(x, out):
    cuda.shared.array(4, torch.float32)[0] = 1


def divides(x, out):
    if cuda.grid(1) == 5:
        out[0] = 1 // (cuda.grid(1) - 5)


def not_written_yet(x, out):
    raise NotImplementedError


def returns(x, out):
    return x[0]


def leaves(x, out):
    sys.exit(3)


def unknown(x, out):
    cuda.shuffle()


def unknown_attribute(x, out):
    out[0] = x.max()


def imports_inside(x, out):
    from numba import cuda as other

    out[other.grid(1)] = 1


def barrier_in_branch(x, out):
    if cuda.threadIdx.x < 2:
        cuda.syncthreads()


def two_barriers(x, out):
    if cuda.threadIdx.x % 2:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


def whole_index(x, out):
    out[cuda.blockIdx * cuda.blockDim.x] = 1


def name_from_c(x, out):
    out[blockIdx.x] = 1  # noqa: F821 as in CUDA C++


WRONG = {
    whole_index: "an index is one of its numbers: cuda.blockIdx.x",
    name_from_c: "NameError: name 'blockIdx' is not defined; in Python it is called cuda.blockIdx",
    no_guard: (
        "thread 3 of block 1 writes out[7], but out has 7 elements (0 to 6): is there a guard for the threads past the"
    ),
    reads_on: "thread 3 of block 1 reads x[8], but x has 8 elements (0 to 7)",
    reads_before: (
        "thread 0 of block 0 reads x[-1], but x has 8 elements (0 to 7): an index below 0 lies in front of it"
    ),
    half_an_index: "thread 0 of block 0 writes out[0.0], but an index is a whole number",
    two_indices: "writes out[0, 1], but out has shape (7,) and needs 1 index",
    slices: "writes out[a:b], but an index is a whole number",
    whole: "computes with all of x: a thread works on single elements, such as x[i]",
    writes_none: "writes a NoneType into out[0], which holds one number",
    past_shared: "thread 2 of block 0 writes tile[2, 0], but tile has shape (2, 2): is there a guard",
    in_a_helper: "thread 2 of block 0 writes pair[2], but pair has 2 elements (0 to 1)",
    past_local: "thread 0 of block 0 writes mine[3], but mine has 3 elements (0 to 2)",
    sized_by_argument: "makes an array whose size is taken from x, which is known only when the kernel runs",
    sized_by_block: "makes an array whose size is taken from cuda, which is known only",
    too_much_shared: "asks for more than the 49,152 bytes of shared memory",
    torch_type: "makes an array of torch.float32, and numba's types are called numba.float32",
    divides: "thread 1 of block 1: ZeroDivisionError",
    not_written_yet: "thread 0 of block 0: NotImplementedError",
    returns: "returns a float32, but a kernel returns nothing",
    leaves: "thread 0 of block 0: SystemExit: 3",
    unknown: "AttributeError: cuda.shuffle is not in the simulator",
    unknown_attribute: "AttributeError: x.max is not in the simulator",
    imports_inside: "has no attribute 'grid'; a kernel knows numba.cuda by a name of the notebook",
    barrier_in_branch: "thread 0 of block 0 waits in cuda.syncthreads(), and thread 2 of block 0 has ended without it",
    two_barriers: f"waits at the one in line {two_barriers.__code__.co_firstlineno + 2}",
}


def refusals_of(pickled_kernels):
    args = torch.zeros(8), torch.zeros(7)
    return [in_worker.run_cases(pickled, [(2, 4, args)], 10)[1] for pickled in pickled_kernels]


@pytest.fixture(scope="module")
def refusals():
    """What each wrong kernel is told, from one worker for all."""
    found = launch(refusals_of, [simulator.pickled_kernel(kernel) for kernel in WRONG], world_size=1, backend=None)[0]
    return dict(zip(WRONG, found))


@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.__name__)
def test_a_wrong_kernel_is_told_why(refusals, kernel):
    what, frames, *_ = refusals[kernel]
    assert WRONG[kernel] in what
    if kernel is not returns:
        assert kernel.__name__ in [function for _, _, function in frames], "and in which line"


def test_the_message_shows_the_line():
    with pytest.raises(KernelError) as caught:
        simulate(no_guard, 2, 4, torch.zeros(8), torch.zeros(7))
    first, second = str(caught.value).split("\n")
    assert first == (
        "thread 3 of block 1 writes out[7], but out has 7 elements (0 to 6): is there a guard for the threads "
        "past the end?"
    )
    line = no_guard.__code__.co_firstlineno + 2
    assert second.endswith(f"tests/kernels/test_simulator.py, line {line}, in no_guard:  out[i] = i")


def endless(out):
    while cuda.grid(1) == 5:
        out[0] += 1


def test_an_endless_kernel_is_stopped():
    with pytest.raises(KernelError, match=r"no end after 0.5 s, .* in thread 1 of block 1: does its loop") as caught:
        simulate(endless, 2, 4, torch.zeros(1), timeout=0.5)
    assert ", in endless:  " in str(caught.value)


def catches(x, out):
    try:
        out[cuda.grid(1)] = 1
    except Exception:
        pass


def test_what_a_gpu_would_not_notice_cannot_be_caught():
    with pytest.raises(KernelError, match="thread 3 of block 1 writes out\\[7\\], but out has 7") as caught:
        simulate_many(catches, [(1, 4, (torch.zeros(8), torch.zeros(7))), (2, 4, (torch.zeros(8), torch.zeros(7)))])
    assert caught.value.results[0].args[1].sum() == 4, "what the cases before it did is known"


def ask_for_touches():
    return simulate(strided, 2, 3, torch.zeros(7)).num_touches


def test_a_worker_simulates_by_itself_if_it_was_launched_for_it():
    with simulator_in_workers():
        assert launch(ask_for_touches, world_size=1, backend=None).results == [14]
    assert "NUMBA_ENABLE_CUDASIM" not in os.environ
    with pytest.raises(
        WorkerError, match="this worker has numba without its simulator: call simulate from the notebook"
    ):
        launch(ask_for_touches, world_size=1, backend=None)


# ---- can a GPU run it? --------------------------------------------------------------------------------------------

TABLE = {0: 1.0}
KEPT = np.zeros(8)


def asks_a_list(x, out):
    if cuda.grid(1) in list(range(8)):
        out[0] = 1


def asks_a_dict(x, out):
    out[0] = TABLE[0]


def calls_python(x, out):
    out[0] = twice(x[0])


def calls_itself(x, out):
    calls_itself(x, out)


def keeps(x, out):
    KEPT[0] = x[0]


def computes_with_torch(x, out):
    out[0] = torch.tensor(x[0]).item()


CANNOT = {
    asks_a_list: "numba has no list for a GPU",
    asks_a_dict: "TABLE is nothing that a GPU's threads can use",
    calls_python: "twice is an ordinary Python function",
    calls_itself: "can neither call itself nor keep anything there",
    keeps: "writes into an array that is no argument",
    catches: "catches an exception",
    computes_with_torch: "torch.tensor runs on the host",
}


def compiled(pickled_kernels):
    return [for_gpu._compile(pickled, (torch.zeros(8), torch.zeros(8))) for pickled in pickled_kernels]


@pytest.fixture(scope="module")
def uncompiled():
    """What is said of each kernel that cannot be compiled, by one worker for all."""
    found = launch(compiled, [simulator.pickled_kernel(kernel) for kernel in CANNOT], world_size=1, backend=None)[0]
    return dict(zip(CANNOT, found))


@pytest.mark.parametrize("kernel", CANNOT, ids=lambda kernel: kernel.__name__)
def test_what_cannot_be_compiled_is_told_with_its_line(uncompiled, kernel):
    cause, [(_, line, function)] = uncompiled[kernel]
    assert CANNOT[kernel] in cause and function == kernel.__name__ and line > kernel.__code__.co_firstlineno


def test_the_compilers_message_shows_the_line():
    with pytest.raises(KernelError, match="TABLE is nothing that a GPU's threads can use") as caught:
        check_compiles(asks_a_dict, torch.zeros(8), torch.zeros(8))
    assert str(caught.value).endswith(", in asks_a_dict:  out[0] = TABLE[0]")


def with_a_helper(x, out):
    if cuda.grid(1) in range(8):
        out[cuda.grid(1)] = negative(x[cuda.grid(1)])


def test_decorated_helpers_are_compiled_without_a_gpu():
    check_compiles(with_a_helper, torch.zeros(8), torch.zeros(8))


def test_a_check_says_that_a_kernel_is_not_written_yet(monkeypatch):
    monkeypatch.setattr(
        checks.of_chapter(0), "check_0_99", lambda answer: simulate(answer, 1, 1, torch.zeros(1), torch.zeros(1)), False
    )
    assert evaluate("0.99", not_written_yet).state == "open"
    wrong = evaluate("0.99", reads_on)
    assert wrong.state == "wrong" and "thread 0 of block 0 reads x[1]" in wrong.reason


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda x: simulate(None, 1, 8, x), "a kernel is a function, and this is a NoneType"),
        (lambda x: simulate(negative, 1, 8, x), "negative is decorated with @cuda.jit: give the function itself"),
        (lambda x: simulate(strided, 0, 8, x), "grid is 0; a launch has at least one"),
        (lambda x: simulate(strided, 1, 2000, x), "a block has at most 1,024"),
        (
            lambda x: simulate(strided, 100, 100, x),
            "is 10,000 threads, and the simulator, which is slow, takes at most 4,096",
        ),
        (lambda x: simulate(strided, 1, 8, x, x), "strided(out) cannot be called with 2 arguments: too many"),
        (lambda x: simulate(add, 1, 8, 8, x), "missing a required argument: 'y'"),
        (lambda x: simulate(strided, 1, 8, [1.0, 2.0]), "argument out is a list: a kernel takes tensors"),
        (lambda x: simulate(strided, 1, 8, x.sum()), "argument out is a tensor without dimensions"),
        (
            lambda x: simulate(strided, 1, 8, x.bfloat16()),
            "argument out is a tensor of torch.bfloat16, which numba does not have",
        ),
        (lambda x: simulate(strided, 1, 8, x.to_sparse()), "argument out is a tensor of torch.sparse_coo"),
        (lambda x: simulate(strided, 1, 8, x.to("meta")), "on the meta device, which has no elements"),
        (lambda x: simulate(strided, 1, 8, np.array(["a"])), "argument out is an array of <U1"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_starts(wrong, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        wrong(torch.zeros(8))


def test_a_kernel_with_something_that_cannot_travel():
    lock = __import__("threading").Lock()

    def kernel(out):
        with lock:
            out[0] = cuda.grid(1)

    with pytest.raises(KernelError, match="kernel uses something that cannot be sent to the simulator's worker"):
        simulate(kernel, 1, 1, torch.zeros(1))


# ---- where numba and CUDA are -------------------------------------------------------------------------------------


def has_numba():
    return "numba" in sys.modules


def test_numba_is_imported_in_the_simulators_workers_only():
    simulate(strided, 1, 1, torch.zeros(1))
    assert launch(has_numba, world_size=1, backend=None).results == [False]
    assert hasattr(cuda, "grid"), "this process has numba without the simulator, whose module has no grid by itself"


def test_importing_the_kernels_does_nothing():
    assert look_at_import("course_utils.kernels", notebooks.ROOT) == QUIET


def test_a_simulation_announces_nothing(capsys):
    sys.modules["course_utils.launch"]._announced.clear()
    simulate(strided, 1, 1, torch.zeros(1))
    assert capsys.readouterr().out == ""


# What chapter 02's kernels, its solutions' among them, take: n a whole number, a and b floats, the rest vectors.
SIGNATURES = {
    "add": "n x y out",
    "rotate": "x out",
    "rotate_early": "x out",
    "write_squares": "out",
    "scale": "n a x",
    "reverse": "n x",
    "saxpy": "n a x n y n",
    "block_sums": "n x out",
}


def test_the_kernels_of_the_course_compile_for_every_gpu_that_torch_runs_on():
    """Compile with numba, without a GPU, for Turing (sm_75) and Blackwell (sm_120), and one kernel for those between.

    It runs in a process where no simulator was chosen.
    """
    (path,) = notebooks.notebook_paths(["02"])
    code = f"""
import warnings
from numba import cuda, float32, int64, void
from tools import notebooks
warnings.simplefilter("ignore")
kernels = notebooks.definitions({str(path)!r})
for source in notebooks.read_solutions({str(path)!r}).values():
    exec(source, kernels)
kinds = {{"n": int64, "a": float32}}
for name, letters in {SIGNATURES!r}.items():
    for capability in (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0):
        if name != "block_sums" and (7, 5) < capability < (12, 0):  # every kernel by the oldest and the newest
            continue
        signature = void(*(kinds.get(each, float32[::1]) for each in letters.split()))
        ptx, _ = cuda.compile_ptx(kernels[name], signature, cc=capability)
        assert ".target sm_%d%d" % capability in ptx
print("compiled", len({SIGNATURES!r}))
"""
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=notebooks.ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert done.stdout == f"compiled {len(SIGNATURES)}\n", done.stderr


def test_what_is_wrong_with_numba_itself_is_not_the_kernels_fault():
    pickled, args = simulator.pickled_kernel(add), (8, *(torch.zeros(8) for _ in range(3)))

    def compile_without(name):
        delattr(np, name)  # numba looks it up when it compiles something for the first time
        return for_gpu._compile(pickled, args)

    assert launch(compile_without, "row_stack", world_size=1, backend=None)[0] is None


def test_numba_compiles_whatever_numpy_it_meets():
    code = """
import numpy
vars(numpy).pop("row_stack", None)  # as in NumPy 2.5
from course_utils import kernels
from numba import cuda, void
assert cuda.compile_ptx(lambda: None, void(), cc=(7, 5))
print("compiled")
"""
    env = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=notebooks.ROOT, env=env, capture_output=True, text=True, timeout=250)
    assert done.stdout == "compiled\n", done.stderr


# ---- on the GPU, or where there is none ---------------------------------------------------------------------------


def test_run_changes_the_arguments_in_place():
    x, y, out = torch.randn(50), np.ones(50, dtype=np.float32), torch.zeros(50, requires_grad=True)
    row = torch.ones(1).expand(50)  # cannot be written to, and need not
    returned = run(add, 3, 32, 50, x, y, out)
    assert returned[3] is out and torch.allclose(out.detach(), x - 6)
    run(add, 3, 32, 50, x, row, out)
    assert torch.allclose(out.detach(), x - 6)


@pytest.mark.gpu
def test_a_vector_sum_on_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    n = 100_003
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    expected = x + y
    kernel, in_c = CudaKernel(ADD_IN_C, "add"), y.clone()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        kernel[-(-n // 256), 256](n, x, in_c)
    torch.cuda.synchronize()
    assert torch.equal(in_c, expected)
    kernel[-(-n // 256), 256](n - 1, x, in_c)  # on the default stream, in order with what torch does
    assert torch.equal(in_c[:-1], (expected + x)[:-1]) and in_c[-1] == expected[-1]

    in_numba, on_cpu = torch.zeros(n, device="cuda"), torch.zeros(n)
    run(add, -(-n // 256), 256, n, x, y, in_numba)
    torch.testing.assert_close(in_numba, x - 6 * y, rtol=0, atol=1e-5)  # rounded once there, and twice in torch
    run(add, -(-n // 256), 256, n, x.cpu(), y.cpu(), on_cpu)
    torch.testing.assert_close(on_cpu, in_numba.cpu(), rtol=0, atol=1e-5)
