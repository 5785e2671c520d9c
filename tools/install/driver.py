"""What NVIDIA's driver reports about itself and this machine's GPUs, before anything is installed."""

import re
import shutil
import subprocess
from pathlib import Path

_WSL = "/usr/lib/wsl/lib"  # nvidia-smi under WSL, which is not on every PATH
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def ask():
    """Query the driver's version and each GPU's compute capability, such as ("550.54.15", ["8.0", "8.0"]).

    Returns None on a machine without NVIDIA's driver. The list is empty if the driver does not report capabilities.
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
