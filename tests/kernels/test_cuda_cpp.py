"""CUDA C++ is compiled, here without a GPU; what is wrong with a source or a launch is said in a sentence."""

import ast
import linecache
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils.kernels import CudaKernel, KernelError, compile_cuda, cuda_cpp, nvrtc
from tools import notebooks

ROOT = Path(__file__).resolve().parents[2]
ARCHS = "sm_75", "sm_80", "sm_90", "sm_100", "sm_120"
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
    """The plain strings of a Python text that are CUDA source: [(source, is it right?)].

    A source in `try … except KernelError` is wrong.
    """
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
    """All CUDA sources of the course, [(where, source, is it right?)]."""
    found = []
    for path in notebooks.notebook_paths():
        for number, cell in enumerate(notebooks.read(path).cells):
            if cell.cell_type == "code":
                raises = "raises-exception" in cell.metadata.get("tags", [])
                found += [
                    (f"{path.name}, cell {number}", text, ok and not raises)
                    for text, ok in sources_in(notebooks.of_notebook(cell.source))
                ]
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


@pytest.mark.parametrize(
    "source, arch, words",
    [
        ("", None, "the source is '', and should be a text"),
        (3, None, "the source is 3, and should be a text"),
        ("__global__ void k() {}\0", None, "character of code 0"),
        (ADD, "sm_12", "arch is 'sm_12'; it can be 'sm_75'"),
        (ADD, 80, "arch is 80; it can be 'sm_75'"),
        ("__global__ void k() {\n  int i = 0;\n", None, 'line 2: error: expected a "}"'),
        ("#include <nothing.h>", None, 'cannot open source file "nothing.h"'),
    ],
)
def test_what_cannot_be_compiled_is_refused(source, arch, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        compile_cuda(source, arch)


@pytest.mark.parametrize("missing", ["cuda.bindings", "cuda.bindings.nvrtc"])
def test_without_nvrtc_it_says_what_to_install(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from course_utils.kernels import compile_cuda; compile_cuda('x')"
    )
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
        ("n", "int64", False),
        ("k", "uint32", False),
        ("m", "uint64", False),
        ("a", "float64", False),
        ("x", "float32", True),
        ("y", "int32", True),
    ]
    assert repr(kernel) == "<CudaKernel scale(long long n, unsigned int k, size_t m, double a, float *x, int *y)>"
    assert CudaKernel(source, "nothing").parameters == []
    assert ".entry nothing" in kernel.ptx


@pytest.fixture(scope="module")
def add_in_cuda():
    return CudaKernel(ADD, "add")


@pytest.mark.parametrize(
    "wrong, words",
    [
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
    ],
)
def test_a_wrong_launch_is_refused(add_in_cuda, wrong, words):
    with pytest.raises(KernelError, match=re.escape(words)):
        wrong(add_in_cuda)


@pytest.mark.parametrize(
    "text, arg, words",
    [
        ("int n", 2.5, "takes a whole number, and was given 2.5"),
        ("int n", 2**31, "takes numbers from -2147483648 to 2147483647, and was given 2147483648"),
        ("size_t n", -1, "takes numbers from 0"),
        ("float a", "1", None),
        ("float a", [1.0], "takes a number, and was given a list"),
        ("float a", torch.ones(1), "takes a number, and was given a tensor (.item()"),
        ("float *x", [1.0, 2.0], "takes a tensor, and was given a list"),
        ("float *x", torch.ones(3), "takes a tensor on the GPU, and was given one on the cpu: move it"),
    ],
)
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
    with pytest.raises(KernelError, match="there is no GPU in use to launch it on: read add.ptx, or"):
        add_in_cuda[1, 8](8, x, x)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "args, words",
    [
        (lambda x: (8, x), "add(int n, float *x, float *y) takes 3 arguments, and was given 2"),
        (lambda x: (8, x, x.double()), "takes a tensor of torch.float32, and was given one of torch.float64"),
        (lambda x: (8, x, x[::2]), "whose elements lie one after the other"),
        (lambda x: (8, x, x.cpu()), "takes a tensor on the GPU, and was given one on the cpu"),
    ],
)
def test_arguments_that_do_not_fit_on_the_gpu(add_in_cuda, args, words):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    with pytest.raises(KernelError, match=re.escape(words)):
        add_in_cuda[1, 8](*args(torch.ones(8, device="cuda")))
