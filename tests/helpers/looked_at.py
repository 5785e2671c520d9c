"""What an import does besides: processes, threads and sockets that it makes, heavy modules, CUDA."""

import json
import subprocess
import sys

HEAVY = ["matplotlib.pyplot", "numba", "pandas", "torchvision"]
# The audit hook also sees processes that have ended again, such as a call of nvidia-smi.
IMPORT_AND_LOOK = """
import json, sys, threading
started = []
def note(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system",
                 "_thread.start_new_thread", "_thread.start_joinable_thread", "socket.bind"):
        started.append(event)
sys.addaudithook(note)
import {module}
torch = sys.modules.get("torch")
print(json.dumps({{
    "heavy": [name for name in {heavy} if name in sys.modules],
    "cuda": bool(torch and torch.cuda.is_initialized()),
    "started": started,
    "threads": [thread.name for thread in threading.enumerate()],
}}))
"""


def look_at_import(module, folder):
    code = IMPORT_AND_LOOK.format(module=module, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


QUIET = {"heavy": [], "cuda": False, "started": [], "threads": ["MainThread"]}
