"""What NVIDIA's driver says of itself and of this machine's GPUs, asked before anything is installed."""

import re
import shutil
import subprocess
from pathlib import Path

_WSL = "/usr/lib/wsl/lib"  # where Windows puts nvidia-smi for Linux, and not on every PATH
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def ask():
    """(the driver's version, the compute capability of each GPU), such as ("550.54.15", ["8.0", "8.0"]), or None.

    None stands for a machine without NVIDIA's driver. Where the driver does not tell capabilities, there are none.
    """
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=_WSL)
    if program:
        query = [program, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
        try:
            said = subprocess.run(
                query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60
            ).stdout
        except (OSError, subprocess.TimeoutExpired):  # a GPU that hangs
            said = ""
        rows = re.findall(r"^([\d.]+), (\d+\.\d+)$", said, re.MULTILINE)
        if rows:
            return rows[0][0], [capability for _, capability in rows]
    try:  # a container may see the GPUs without the driver's programs
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _KERNEL_MODULE.read_text())
    except OSError:
        return None
    return (found[1], []) if found else None
