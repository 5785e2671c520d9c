"""Compile CUDA C++ to PTX with NVRTC, from torch's CUDA build; it needs neither a GPU nor a driver."""

import linecache
import os
import re

from .. import cells, hardware
from .kernel_error import KernelError

DEFAULT_ARCH = "compute_80"  # if there is no GPU
_MAX_SHOWN = 5  # errors; the first one matters most


def compile_cuda(source, arch=None, name="kernel.cu"):
    """Compile CUDA C++ and return its PTX, the GPU's assembly language, as text.

    Args:
        source: the text of one or more kernels.
        arch: the target, such as "sm_90" or "compute_90" (compute capability 9.0). None: this machine's first GPU, or
            compute_80 without a GPU.
        name: the source's name in error messages if it is not found in a cell.

    Raises KernelError with the compiler's messages, each with its line in the cell, or if NVRTC is not installed.
    """
    return Program(source, arch, name).ptx


class Program:
    """A compiled source: `.ptx` (text), `.cubin` (bytes; empty for a virtual architecture, compute_NN), `.symbols`.

    `symbols` maps each of `kernels` to its mangled C++ name, for the linker.
    """

    def __init__(self, source, arch=None, name="kernel.cu", kernels=()):
        if not isinstance(source, str) or not source.strip():
            raise KernelError(f"the source is {_short(source)}, and should be a text of CUDA C++")
        if "\0" in source:
            raise KernelError("the source has a character of code 0 in it: was a \\ meant? Write it as r'''…'''")
        nvrtc = _nvrtc()
        arch = _check_arch(nvrtc, arch)
        program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, None, None))
        try:
            expressions = {kernel: kernel.encode() for kernel in kernels}
            for expression in expressions.values():
                _checked(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression))
            options = [b"--gpu-architecture=" + arch.encode(), *_include_options(source)]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
                log = _text(nvrtc, program, "ProgramLog")
                raise KernelError(_explain(log.decode(errors="replace"), source, name))
            _checked(nvrtc, (status,))
            self.ptx = _text(nvrtc, program, "PTX").decode()
            self.cubin = _text(nvrtc, program, "CUBIN")
            self.symbols = {
                kernel: _checked(nvrtc, nvrtc.nvrtcGetLoweredName(program, expression)).decode()
                for kernel, expression in expressions.items()
            }
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def _nvrtc():
    """Return cuda.bindings.nvrtc, and raise KernelError if it cannot be used."""
    try:
        from cuda.bindings import nvrtc

        _checked(nvrtc, nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError, OSError) as error:  # the bindings raise RuntimeErrors
        raise KernelError(
            "NVRTC, which compiles CUDA C++, is not installed on this machine (it comes with the CUDA build of "
            "torch, on Linux); install it with `python -m pip install cuda-bindings nvidia-cuda-nvrtc`, and restart "
            "the notebook"
        ) from error
    return nvrtc


def _checked(nvrtc, returned):
    """Return the value of an NVRTC call, and raise KernelError unless its status is success."""
    status, *values = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC could not do its work: {status.name}")
    return values[0] if values else None


def _text(nvrtc, program, what):
    """Return the program's "PTX", "CUBIN" or "ProgramLog", as bytes."""
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytearray(size)
    if size:
        _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return bytes(buffer) if what == "CUBIN" else bytes(buffer).rstrip(b"\0")


def _check_arch(nvrtc, arch):
    known = _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    if arch is None:
        if hardware.devices(1)[0].type != "cuda":
            return DEFAULT_ARCH
        major, minor = hardware.gpus()[0].compute_capability
        fitting = [number for number in known if number <= 10 * major + minor]
        if not fitting:
            raise KernelError(
                f"this GPU has compute capability {major}.{minor}, and the NVRTC that is installed compiles for "
                f"{known[0] / 10:.1f} and later: a CUDA build of torch for an older CUDA brings an older one"
            )
        return f"compute_{max(fitting)}"
    if not re.fullmatch(f"(sm|compute)_({'|'.join(map(str, known))})[af]?", str(arch)):
        raise KernelError(
            f"arch is {_short(arch)}; it can be "
            + ", ".join(f"'sm_{number}'" for number in known)
            + ", or compute_ for sm_"
        )
    return arch


def _include_options(source):
    """Return the option with the folder of CUDA's headers, needed only for `#include <cuda_fp16.h>` and the like."""
    if "#include" not in source:
        return []
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    return [b"--include-path=" + os.fsencode(folder)] if folder else []


def _explain(log, source, name):
    """Return the compiler's errors with the lines of the cell; NVRTC prints the source line and a caret."""
    where = _find_cell(source)
    errors = []
    last = len(source.rstrip().splitlines())
    log = log.replace("At end of source: error", f"{name}({last}): error")  # a missing closing brace
    for part in re.split(rf"^(?={re.escape(name)}\(\d+\): )", log, flags=re.MULTILINE):
        match = re.match(rf"{re.escape(name)}\((\d+)\): (?:\w+ )?error(?: #[\w-]+)?: ", part)
        if match:
            line = int(match[1])
            place = f"{where[0]}, line {line + where[1]}" if where else f"{name}, line {line}"
            text = re.sub(
                r"\n+\d+ \w*\s*errors? detected in the compilation.*", "", part[match.end() :], flags=re.DOTALL
            )
            errors.append(f"{place}: error: {text.rstrip()}")
    if not errors:
        return f"the CUDA source does not compile:\n{log.strip()}"
    more = len(errors) - _MAX_SHOWN
    head = "the CUDA source does not compile"
    if len(errors) > 1:
        head += f" ({len(errors)} errors; the first may cause the others)"
    return "\n\n".join([head, *errors[:_MAX_SHOWN]]) + (f"\n\n… and {more} more" if more > 0 else "")


def _find_cell(source):
    """Return the cell that holds the source, and the number of lines above it there, or None."""
    for name, entry in reversed(linecache.cache.items()):
        if len(entry) == 4 and cells.is_own(name):
            text = "".join(entry[2])
            start = text.find(source)
            if start >= 0:
                return cells.cell_name(name), text.count("\n", 0, start)
    return None


def _short(value):
    text = repr(value)
    return text if len(text) < 40 else f"a {type(value).__name__}"
