"""The machine code of chapter 02's kernels: in which order a GPU is told to load, add and store."""

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

from ...kernels import KernelError
from ...kernels.nvrtc import Program

_SHORT = {"LDG": "ld", "FADD": "add", "STG": "st"}


def memory_order(source, arch="sm_90"):
    """Return "ld", "add" and "st" in the order of a CUDA source's machine code, for an H100 or H200 (`arch`), as text.

    Raises KernelError if the source does not compile. Without NVIDIA's cuobjdump, which comes with Triton and so with
    torch's CUDA build, it returns a sentence that says so.
    """
    tool = _cuobjdump()
    if tool is None:
        return "not shown: cuobjdump, which comes with Triton, is not installed"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(Program(source, arch).cubin)
        file.flush()
        done = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise KernelError(f"cuobjdump cannot read the machine code: {done.stderr.strip()}")
    return " ".join(_SHORT[name] for name in re.findall(r"\b(LDG|FADD|STG)\b", done.stdout))


def _cuobjdump():
    found = importlib.util.find_spec("triton")  # without importing it, which is slow
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "backends" / "nvidia" / "bin" / "cuobjdump"
        if path.exists():
            return path
    return None
