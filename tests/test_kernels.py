"""CUDA C++ is compiled and numba kernels are simulated, here without a GPU; what is wrong with one is said in a sentence."""

import ast
import linecache
import re
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numba
import numpy as np
import pytest
import torch
from numba import cuda
from test_imports import QUIET, look_at_import

from course_utils.checks import evaluate
from course_utils.kernels import CudaKernel, KernelError, Touch, compile_cuda, run, simulate, simulate_many
from course_utils.kernels import cuda_cpp, in_worker, nvrtc, recorder, simulator
from course_utils.launch import launch
from tools import notebooks

# As a notebook's functions do, these travel by value: a worker that imported this file would import all that it does.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROOT = Path(__file__).resolve().parent.parent
ARCHS = "sm_75", "sm_80", "sm_90"
ADD = """
extern "C" __global__ void add(int n, const float *x, float *y)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < n)
        y[index] = x[index] + y[index];
}
"""


# ---- CUDA C++: compiling ------------------------------------------------------------------------------------------


def sources_in(text):
    """[(CUDA source, is it right?)] of the plain strings in a Python text; what stands in `try … except KernelError` is wrong."""
    tree = ast.parse(text)
    tried = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    tried = [node for node in tried if any("KernelError" in ast.unparse(handler) for handler in node.handlers)]
    wrong = {id(inner) for node in tried for inner in ast.walk(node)}
    return [
        (node.value, id(node) not in wrong)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value
    ]


def sources_of_the_course():
    """[(where, source, is it right?)]"""
    found = []
    for path in notebooks.notebook_paths():
        for number, cell in enumerate(notebooks.read(path).cells):
            if cell.cell_type == "code":
                raises = "raises-exception" in cell.metadata.get("tags", [])
                found += [(f"{path.name}, cell {number}", text, ok and not raises) for text, ok in sources_in(cell.source)]
    for path in sorted((ROOT / "notebooks/solutions").glob("*.py")):
        found += [(path.name, text, ok) for text, ok in sources_in(path.read_text(encoding="utf-8"))]
    return found


def test_every_cuda_source_of_the_course_compiles():
    sources = sources_of_the_course()
    if list((ROOT / "notebooks").glob("02_*.ipynb")):
        assert any(is_right for _, _, is_right in sources), "chapter 02 is there, and no CUDA source was found in it"
    for where, source, is_right in sources:
        for arch in ARCHS:
            if is_right:
                assert f".target {arch}" in compile_cuda(source, arch, name=where)
            else:
                with pytest.raises(KernelError):
                    compile_cuda(source, arch, name=where)


def test_sources_are_found_in_cells():
    cell = 'title = "adding"\nsource = r"""\n__global__ void add() {}\n"""\nkernel = CudaKernel(source, "add")'
    assert sources_in(cell) == [("\n__global__ void add() {}\n", True)]
    cell = "try:\n    compile_cuda('__global__')\nexcept KernelError as error:\n    print(error)"
    assert sources_in(cell) == [("__global__", False)]


@pytest.mark.parametrize("arch", ARCHS)
def test_ptx_is_for_the_architecture_asked_for(arch):
    ptx = compile_cuda(ADD, arch)
    assert f".target {arch}" in ptx and ".entry add(" in ptx


@pytest.mark.parametrize("head, symbol", [('extern "C" ', "add"), ("", "_Z3addiPKfPf")])
def test_what_the_gpu_loads_has_the_kernel_under_its_symbol(head, symbol):
    program = nvrtc.Program(ADD.replace('extern "C" ', head), "sm_90", kernels=["add"])
    assert program.symbols == {"add": symbol}
    assert program.cubin.startswith(b"\x7fELF") and symbol.encode() in program.cubin


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_compiles_for_a_common_one():
    assert ".target sm_80" in compile_cuda(ADD)


def test_cudas_headers_are_found():
    source = "#include <cuda_fp16.h>\n__global__ void twice(__half *x) { x[0] = x[0] + x[0]; }"
    assert ".entry" in compile_cuda(source)


def test_a_compile_error_names_the_line_of_the_cell():
    name, source = "<cell 7>", ADD.replace("x[index] +", "z[index] +")
    cell = f"n = 3\n# a comment\nsource = r'''{source}'''\n"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    try:
        with pytest.raises(KernelError) as caught:
            compile_cuda(source)
    finally:
        del linecache.cache[name]
    line = cell[: cell.index("z[index]")].count("\n") + 1
    assert str(caught.value) == (
        "the CUDA source does not compile\n\n"
        f'{name}, line {line}: error: identifier "z" is undefined\n'
        "          y[index] = z[index] + y[index];\n"
        "                     ^"
    )


def test_many_compile_errors_are_not_all_shown():
    source = "\n".join(f"__global__ void k{i}() {{ x = {i}; }}" for i in range(9))
    with pytest.raises(KernelError, match="9 errors; the first may cause the others") as caught:
        compile_cuda(source, name="mine.cu")
    assert "mine.cu, line 5" in str(caught.value) and "mine.cu, line 6" not in str(caught.value)
    assert str(caught.value).endswith("… and 4 more")


@pytest.mark.parametrize("source, arch, words", [
    ("", None, "the source is '', and should be a text"),
    (3, None, "the source is 3, and should be a text"),
    ("__global__ void k() {}\0", None, "character of code 0"),
    (ADD, "sm_12", "arch is 'sm_12'; it can be 'sm_75'"),
    (ADD, 80, "arch is 80; it can be 'sm_75'"),
    ("__global__ void k() {\n  int i = 0;\n", None, "line 2: error: expected a \"}\""),
    ("#include <nothing.h>", None, 'cannot open source file "nothing.h"'),
])  # fmt: skip
def test_what_cannot_be_compiled_is_refused(source, arch, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        compile_cuda(source, arch)


@pytest.mark.parametrize("missing", ["cuda.bindings", "cuda.bindings.nvrtc"])
def test_without_nvrtc_it_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from course_utils.kernels import compile_cuda; compile_cuda('x')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "NVRTC, which compiles CUDA C++, is not installed" in done.stderr.splitlines()[-1]


# ---- CUDA C++: what a launch is given -----------------------------------------------------------------------------


def test_a_cuda_kernel_knows_its_parameters():
    source = """
    // __global__ void commented_out(float x);
    template <typename T> __device__ T twice(T x) { return 2 * x; }
    __global__ void __launch_bounds__(256) scale(const long long n, unsigned int k, size_t m, double a,
                                                 float const *__restrict__ x, /* result */ int y[])
    { y[0] = n + k + m + a + twice(x[0]); }
    extern "C" __global__ void nothing(void) {}
    """
    kernel = CudaKernel(source, "scale")
    described = [(p.name, p.dtype, p.is_pointer) for p in kernel.parameters]
    assert described == [
        ("n", "int64", False), ("k", "uint32", False), ("m", "uint64", False), ("a", "float64", False),
        ("x", "float32", True), ("y", "int32", True),
    ]  # fmt: skip
    assert repr(kernel) == "<CudaKernel scale(long long n, unsigned int k, size_t m, double a, float *x, int *y)>"
    assert CudaKernel(source, "nothing").parameters == []
    assert ".entry nothing" in kernel.ptx


@pytest.fixture(scope="module")
def add_in_cuda():
    return CudaKernel(ADD, "add")


@pytest.mark.parametrize("wrong, words", [
    (lambda add: CudaKernel(ADD, "sub"), "no kernel 'sub' in the source, which has add"),
    (lambda add: CudaKernel("__device__ int x;", "add"), "which has no __global__ function"),
    (lambda add: CudaKernel("struct S {}; __global__ void k(S s) {}", "k"), "cannot pass the parameter `S s` of k"),
    (lambda add: add(1, 2, 3), "needs a grid and a block: add[grid, block]"),
    (lambda add: add[4], "add[grid, block](…), two ints"),
    (lambda add: add[0, 32], "grid is 0; a launch has at least one of its blocks"),
    (lambda add: add[4, -1], "block is -1; a launch has at least one of its threads"),
    (lambda add: add[4, 2000], "2,000 threads, and a block has at most 1,024"),
    (lambda add: add[4, (64, 64)], "block is (64, 64), 4,096 threads"),
    (lambda add: add[4, (1, 1, 65)], "along z a block has at most 64"),
    (lambda add: add[(1, 70000), 32], "along y a GPU takes at most 65,535 blocks"),
    (lambda add: add[1000 / 32, 32], "grid is 31.25; it is the number of blocks: a whole number"),
    (lambda add: add[(1, 1, 1, 1), 32], "a tuple of up to three"),
    (lambda add: add[True, 32], "grid is True"),
])  # fmt: skip
def test_a_wrong_launch_is_refused(add_in_cuda, wrong, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        wrong(add_in_cuda)


@pytest.mark.parametrize("text, arg, words", [
    ("int n", 2.5, "takes a whole number, and was given 2.5"),
    ("int n", 2**31, "takes numbers from -2147483648 to 2147483647, and was given 2147483648"),
    ("size_t n", -1, "takes numbers from 0"),
    ("float a", "1", None),
    ("float a", [1.0], "takes a number, and was given a list"),
    ("float a", torch.ones(1), "takes a number, and was given a tensor (.item()"),
    ("float *x", [1.0, 2.0], "takes a tensor, and was given a list"),
    ("float *x", torch.ones(3), "takes a tensor on the GPU, and was given one on the cpu: move it"),
])  # fmt: skip
def test_an_argument_that_does_not_fit_its_parameter(text, arg, words):
    parameter = cuda_cpp.Parameter(text, "kernel")
    if words is None:
        assert cuda_cpp._pass_on(parameter, arg) == np.float32(1)
        return
    with pytest.raises(KernelError, match=re.escape(f"the parameter `{text}` {words}")):
        cuda_cpp._pass_on(parameter, arg)


@pytest.mark.parametrize("text, arg, dtype", [
    ("int n", 7, np.int32), ("unsigned long long n", 2**40, np.uint64), ("float a", 2, np.float32),
    ("double a", 0.1, np.float64), ("bool b", True, np.bool_), ("int n", np.int64(3), np.int32),
])  # fmt: skip
def test_a_number_is_passed_as_its_c_type(text, arg, dtype):
    passed = cuda_cpp._pass_on(cuda_cpp.Parameter(text, "kernel"), arg)
    assert type(passed) is dtype and passed == arg


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_launch_without_a_gpu_says_so(add_in_cuda):
    x = torch.ones(8)
    with pytest.raises(KernelError, match="there is no GPU here to launch it on: read add.ptx, or"):
        add_in_cuda[1, 8](8, x, x)


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
        Touch(2, 2, "x", 50, "read"), Touch(2, 2, "y", 50, "read"), Touch(2, 2, "out", 50, "write"),
    ]  # fmt: skip


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


@pytest.mark.parametrize("array", [
    np.zeros(10, dtype=np.int16), torch.zeros(10, dtype=torch.bool), torch.zeros(10, dtype=torch.float16),
    torch.zeros(20)[::2], torch.zeros(10, dtype=torch.complex64),
], ids=lambda array: str(array.dtype))  # fmt: skip
def test_arrays_of_any_type(array):
    (out,) = simulate(strided, 2, 3, array).args
    assert type(out) is type(array) and out.dtype == array.dtype
    assert np.array_equal(np.asarray(out), np.arange(10).astype(np.asarray(array).dtype))


def test_touches_that_are_too_many_are_counted():
    observer = recorder.Observer()
    array = recorder.Array(np.zeros(1), observer, "x")
    for _ in range(recorder.MAX_TOUCHES + 5):
        array[0] = 1
    assert observer.num_touches == len(observer.touches) + 5 == 200_005


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
    no_guard: "thread 3 of block 1 writes out[7], but out has 7 elements (0 to 6): is there a guard for the threads past the",
    reads_on: "thread 3 of block 1 reads x[8], but x has 8 elements (0 to 7)",
    reads_before: "thread 0 of block 0 reads x[-1], but x has 8 elements (0 to 7): an index below 0 lies in front of it",
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
    found = launch(refusals_of, [simulator._pickled(kernel) for kernel in WRONG], world_size=1, backend=None)[0]
    return dict(zip(WRONG, found))


@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.__name__)
def test_a_wrong_kernel_is_told_why(refusals, kernel):
    what, frames = refusals[kernel]
    assert WRONG[kernel] in what
    if kernel is not returns:
        assert kernel.__name__ in [function for _, _, function in frames], "and in which line"


def test_the_message_shows_the_line():
    with pytest.raises(KernelError) as caught:
        simulate(no_guard, 2, 4, torch.zeros(8), torch.zeros(7))
    first, second = str(caught.value).split("\n")
    assert first == "thread 3 of block 1 writes out[7], but out has 7 elements (0 to 6): is there a guard for the threads past the end?"
    line = no_guard.__code__.co_firstlineno + 2
    assert second.endswith(f"test_kernels.py, line {line}, in no_guard:  out[i] = i")


def endless(out):
    while cuda.grid(1) == 5:
        out[0] += 1


def test_an_endless_kernel_is_stopped():
    with pytest.raises(KernelError, match=r"had not ended after 0.5 s, .* in thread 1 of block 1: does its loop") as caught:
        simulate(endless, 2, 4, torch.zeros(1), timeout=0.5)
    assert ", in endless:  " in str(caught.value)


def test_a_check_says_that_a_kernel_is_not_written_yet(monkeypatch):
    from course_utils.checks import chapter_00

    monkeypatch.setattr(chapter_00, "check_0_99", lambda answer: simulate(answer, 1, 1, torch.zeros(1), torch.zeros(1)), False)
    assert evaluate("0.99", not_written_yet).state == "open"
    wrong = evaluate("0.99", reads_on)
    assert wrong.state == "wrong" and "thread 0 of block 0 reads x[1]" in wrong.reason


@pytest.mark.parametrize("wrong, words", [
    (lambda x: simulate(None, 1, 8, x), "a kernel is a function, and this is a NoneType"),
    (lambda x: simulate(negative, 1, 8, x), "negative is decorated with @cuda.jit: give the function itself"),
    (lambda x: simulate(strided, 0, 8, x), "grid is 0; a launch has at least one"),
    (lambda x: simulate(strided, 1, 2000, x), "a block has at most 1,024"),
    (lambda x: simulate(strided, 100, 100, x), "is 10,000 threads, and the simulator, which is slow, takes at most 4,096"),
    (lambda x: simulate(strided, 1, 8, x, x), "strided(out) cannot be called with 2 arguments: too many"),
    (lambda x: simulate(add, 1, 8, 8, x), "missing a required argument: 'y'"),
    (lambda x: simulate(strided, 1, 8, [1.0, 2.0]), "argument out is a list: a kernel takes tensors"),
    (lambda x: simulate(strided, 1, 8, x.sum()), "argument out is a tensor without dimensions"),
    (lambda x: simulate(strided, 1, 8, x.bfloat16()), "argument out is a tensor of torch.bfloat16, which numba does not have"),
    (lambda x: simulate(strided, 1, 8, x.to_sparse()), "argument out is a tensor of torch.sparse_coo"),
    (lambda x: simulate(strided, 1, 8, x.to("meta")), "on the meta device, which has no elements"),
    (lambda x: simulate(strided, 1, 8, np.array(["a"])), "argument out is an array of <U1"),
])  # fmt: skip
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
    assert look_at_import("course_utils.kernels", ROOT) == QUIET


def test_a_simulation_announces_nothing(capsys):
    sys.modules["course_utils.launch"]._announced.clear()
    simulate(strided, 1, 1, torch.zeros(1))
    assert capsys.readouterr().out == ""


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
    kernel, in_c = CudaKernel(ADD, "add"), y.clone()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        kernel[-(-n // 256), 256](n, x, in_c)
    torch.cuda.synchronize()
    assert torch.equal(in_c, expected)
    kernel[-(-n // 256), 256](n - 1, x, in_c)  # on the default stream, in order with what torch does
    assert torch.equal(in_c[:-1], (expected + x)[:-1]) and in_c[-1] == expected[-1]

    in_numba, on_cpu = torch.zeros(n, device="cuda"), torch.zeros(n)
    run(add, -(-n // 256), 256, n, x, y, in_numba)
    assert torch.allclose(in_numba, x - 6 * y)
    run(add, -(-n // 256), 256, n, x.cpu(), y.cpu(), on_cpu)
    assert torch.allclose(on_cpu, in_numba.cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("args, words", [
    (lambda x: (8, x), "add(int n, float *x, float *y) takes 3 arguments, and was given 2"),
    (lambda x: (8, x, x.double()), "takes a tensor of torch.float32, and was given one of torch.float64"),
    (lambda x: (8, x, x[::2]), "whose elements lie one after the other"),
    (lambda x: (8, x, x.cpu()), "takes a tensor on the GPU, and was given one on the cpu"),
])  # fmt: skip
def test_arguments_that_do_not_fit_on_the_gpu(add_in_cuda, args, words):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    with pytest.raises(KernelError, match=re.escape(words)):
        add_in_cuda[1, 8](*args(torch.ones(8, device="cuda")))
