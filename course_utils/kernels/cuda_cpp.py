"""CUDA C++ kernels on torch tensors: `add = CudaKernel(source, "add")`, then `add[grid, block](n, x, y)`."""

import operator
import re

from .. import hardware
from .kernel_error import KernelError
from .nvrtc import Program
from .shape import check_shape

# {C type of a parameter: NumPy dtype to which numbers are converted and against which tensors are checked}
_TYPES = {
    "bool": "bool", "char": "int8", "signed char": "int8", "unsigned char": "uint8", "short": "int16",
    "unsigned short": "uint16", "int": "int32", "unsigned int": "uint32", "unsigned": "uint32", "long": "int64",
    "unsigned long": "uint64", "long long": "int64", "unsigned long long": "uint64", "size_t": "uint64",
    "float": "float32", "double": "float64", "__half": "float16", "half": "float16", "__nv_bfloat16": "bfloat16",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_KERNEL = re.compile(r"__global__(?:[^;{}()]|__launch_bounds__\s*\([^)]*\))*?\b(\w+)\s*\(([^)]*)\)\s*[{;]")


class Parameter:
    """A kernel's parameter: `name`, `c_type` as written, `dtype` (NumPy's name, None for void), `is_pointer`."""

    def __init__(self, text, kernel):
        text = " ".join(re.sub(r"\b(const|volatile|__restrict__|restrict)\b", " ", text).split())
        match = re.fullmatch(r"([\w: ]+?)\s*(\*?)\s*(\w+)\s*(\[\d*\])?", text)
        c_type = match and re.sub(r"\bstd::", "", match[1]).strip()
        self.is_pointer = bool(match and (match[2] or match[4]))
        if not match or not (c_type in _TYPES or (self.is_pointer and c_type == "void")):
            raise KernelError(
                f"CudaKernel cannot pass the parameter `{text}` of {kernel}: it knows bool, the sizes of int, float, "
                "double, half, and pointers to them, each with a name"
            )
        self.name, self.c_type, self.dtype = match[3], c_type, _TYPES.get(c_type)

    def __str__(self):
        return f"{self.c_type} *{self.name}" if self.is_pointer else f"{self.c_type} {self.name}"


def kernels_in(source):
    """Return {name: [text of each parameter]} of the `__global__` functions in a source."""
    source = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    return {
        name: [text for text in parameters.split(",") if text.strip() not in ("", "void")]
        for name, parameters in _KERNEL.findall(source)
    }


class CudaKernel:
    """A kernel from a CUDA C++ source, compiled on construction; `kernel[grid, block](*args)` launches it.

    Tensors on a GPU are passed as pointers, numbers as the C types of the kernel's parameters. A launch is
    asynchronous, on torch's current stream.

    Args:
        source: the text, which may have several kernels.
        name: the name of the kernel.

    Raises KernelError if the source does not compile; at a launch, if there is no GPU, if the arguments do not fit the
    parameters, or if the GPU refuses the launch.
    """

    def __init__(self, source, name):
        self.source, self.name = source, name
        self.ptx = Program(source).ptx
        kernels = kernels_in(source)
        if name not in kernels:
            has = f"has {', '.join(kernels)}" if kernels else "has no __global__ function"
            raise KernelError(f"there is no kernel {name!r} in the source, which {has}")
        self.parameters = [Parameter(text, name) for text in kernels[name]]
        self._loaded = {}  # {compute capability: cuda.core's kernel}

    def __repr__(self):
        return f"<CudaKernel {self.name}({', '.join(map(str, self.parameters))})>"

    def __call__(self, *args):
        raise KernelError(f"{self.name} needs a grid and a block: {self.name}[grid, block](…)")

    def __getitem__(self, shape):
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise KernelError(f"{self.name} is launched as {self.name}[grid, block](…), two ints or tuples")
        grid, block = check_shape(*shape)

        def launch(*args):
            self._launch(grid, block, args)

        return launch

    def _launch(self, grid, block, args):
        if not self._loaded and hardware.devices(1)[0].type != "cuda":  # only once: it takes milliseconds
            raise KernelError(
                f"{self.name} is compiled, but there is no GPU in use to launch it on: read {self.name}.ptx, or run "
                "the same kernel in numba's simulator"
            )
        import torch
        from cuda.core import Device, LaunchConfig, Stream
        from cuda.core import launch as launch_kernel

        passed, device = self._passed(args)
        with torch.cuda.device(device):
            Device(device.index).set_current()
            kernel = self._load(torch.cuda.get_device_capability(device))
            stream = Stream.from_handle(torch.cuda.current_stream(device).cuda_stream)
            try:
                launch_kernel(stream, LaunchConfig(grid=grid, block=block), kernel, *passed)
            except Exception as error:
                raise KernelError(f"the GPU refused to launch {self.name}[{grid}, {block}]: {error}") from error

    def _passed(self, args):
        """Return the arguments as cuda.core takes them, and the device they are on."""
        import torch

        if len(args) != len(self.parameters):
            signature = f"{self.name}({', '.join(map(str, self.parameters))})"
            raise KernelError(f"{signature} takes {len(self.parameters)} arguments, and was given {len(args)}")
        passed = [_pass_on(parameter, arg) for parameter, arg in zip(self.parameters, args)]
        devices = {
            arg.device: parameter.name for parameter, arg in zip(self.parameters, args) if isinstance(arg, torch.Tensor)
        }
        if len(devices) > 1:
            raise KernelError(
                "the tensors are on different GPUs: "
                + ", ".join(f"{name} on {device}" for device, name in devices.items())
            )
        return passed, next(iter(devices), torch.device("cuda", torch.cuda.current_device()))

    def _load(self, capability):
        if capability not in self._loaded:
            from cuda.core import ObjectCode

            # Compile to machine code for this GPU: the driver, which translates PTX, may be older than NVRTC.
            program = Program(self.source, f"sm_{capability[0]}{capability[1]}", kernels=[self.name])
            self._loaded[capability] = ObjectCode.from_cubin(program.cubin).get_kernel(program.symbols[self.name])
        return self._loaded[capability]


def _pass_on(parameter, arg):
    """Return `arg` for a launch: an address, or a NumPy number of the parameter's dtype. Raises KernelError."""
    import numpy as np
    import torch

    def refuse(why):
        raise KernelError(f"the parameter `{parameter}` {why}")

    if parameter.is_pointer:
        if not isinstance(arg, torch.Tensor):
            refuse(f"takes a tensor, and was given a {type(arg).__name__}")
        if arg.device.type != "cuda":
            refuse(f"takes a tensor on the GPU, and was given one on the {arg.device.type}: move it with .to('cuda')")
        if parameter.dtype and str(arg.dtype) != f"torch.{parameter.dtype}":
            refuse(f"takes a tensor of torch.{parameter.dtype}, and was given one of {arg.dtype}")
        if not arg.is_contiguous():
            refuse(
                "takes a tensor whose elements lie one after the other, and was given a strided view: use .contiguous()"
            )
        return arg.data_ptr()
    if isinstance(arg, torch.Tensor):
        refuse("takes a number, and was given a tensor (.item() reads the number out of one)")
    dtype = (
        np.dtype(parameter.dtype)
        if parameter.dtype != "bfloat16"
        else refuse("is a bfloat16 number: take a float instead")
    )
    if dtype.kind in "iu":
        try:
            value = operator.index(arg)
        except TypeError:
            refuse(f"takes a whole number, and was given {arg!r}")
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            refuse(f"takes numbers from {limits.min} to {limits.max}, and was given {value}")
        return dtype.type(value)
    try:
        return dtype.type(bool(arg) if dtype.kind == "b" else float(arg))
    except (TypeError, ValueError):
        refuse(f"takes a number, and was given a {type(arg).__name__}")
