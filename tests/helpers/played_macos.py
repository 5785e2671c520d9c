"""A Python that says it runs on macOS and lacks what Linux alone has; for what this package decides by that.

The system below stays Linux: loopback is called lo, and C code finds all that it looks for.
"""

import os

# Imported by every Python with this file's folder on its path, before all else. What chooses at its import by the real
# system is imported first.
SITE = '''
import asyncio, ctypes.util, getpass, multiprocessing, os, selectors, socket, subprocess, sys, sysconfig, tempfile
import urllib.request, uuid, webbrowser
import psutil

sysconfig.get_config_vars()
for name in ("memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "waitid"):
    delattr(os, name)
sys.platform = "darwin"

def without_linux(function):
    """Only for the course: the files that tell of processes and memory are not there."""
    def call(path=".", *args, **kwargs):
        from_course = "course_utils" in sys._getframe(1).f_code.co_filename
        if from_course and str(path).startswith(("/proc", "/dev/shm", "/etc/nsswitch")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)
    return call

import builtins
builtins.open, os.listdir = without_linux(open), without_linux(os.listdir)
'''


def environment(folder, *paths):
    """Environment variables under which Python plays macOS; `folder` is a new one for the file that does."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, *paths)))}
