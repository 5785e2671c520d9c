"""Commands as another user of this machine, who may write nothing but a home, /tmp and /dev/shm. It takes root.

In a mount namespace of its own, everything that was mounted is read-only, and what is closed to others on the way to
the checkout and to Python (root's home, often) is open.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = Path("/home/student")
NOBODY = "65534"


def missing():
    """Why it cannot be done here, or ""."""
    if os.geteuid() != 0:
        return "only root can become another user"
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "there is no unshare or no setpriv"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return done.stderr.strip()


def as_another_user(home, *command, checkout=ROOT, **variables):
    """The command line that runs `command` in `checkout`, with the folder `home` as the user's home, /home/student."""
    trees = [checkout, Path(sys.base_prefix).resolve()]
    closed = {
        next((folder for folder in reversed(tree.parents) if not folder.stat().st_mode & 0o001), None) for tree in trees
    }
    lines = ["set -e", "mount -t tmpfs tmpfs /mnt"]
    for name, tree in (*enumerate(trees), ("home", home)):
        lines += [f"mkdir /mnt/{name}", f"mount --bind {quoted(tree)} /mnt/{name}"]
    lines += [f"chown -R {NOBODY}:{NOBODY} /mnt/home", "mount -t tmpfs -o mode=1777 tmpfs /tmp"]
    for folder in [HOME.parent, *filter(None, closed)]:
        lines += [f"mkdir -p {quoted(folder)}", f"mount -t tmpfs -o mode=755 tmpfs {quoted(folder)}"]
    for i, tree in enumerate(trees):
        lines += [
            f"mkdir -p {quoted(tree)}",
            f"mount --bind /mnt/{i} {quoted(tree)}",
            f"mount -o remount,bind,ro {quoted(tree)}",
        ]
    lines += [f"mkdir {HOME}", f"mount --bind /mnt/home {HOME}", "mount -o remount,bind,ro /"]
    env = {"HOME": str(HOME), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"} | variables
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    lines += [
        f"cd {quoted(checkout)}",
        f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs env -i {assignments} "
        f"{shlex.join(command)}",
    ]
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines)]


def quoted(path):
    return shlex.quote(str(path))
