"""Separates a student's code from the lecturer's machine: a process that watches it, and no network."""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

from ..processes import linux

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_POLL_S = 0.1  # between looks at the child, on systems without pidfd


def go_on_in_a_child(control, report, pipe):
    """Fork, and return in the child; the parent watches it, and ends with it or when `control` is closed.

    The parent writes the child's pid and then its exit code to the descriptor `report`, which the child does not have;
    only the child has `pipe`. At the end the parent kills all descendants of the child, in whatever session.
    """
    parent = os.getpid()
    linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the marker handles Ctrl-C, and closes `control`
    pid = os.fork()
    if pid == 0:
        os.close(report)
        os.setsid()  # Ctrl-C does not reach it, nor its signals to its group the parent
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), control)
        linux.end_with_parent(parent)
        _be_the_first_to_go()
        return
    os.close(pipe)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # so that the marker gets EOF when the child ends
    os.dup2(null, 2)
    os.write(report, json.dumps({"pid": pid}).encode() + b"\n")
    status = _wait(pid, control)
    os.write(report, json.dumps({"exitcode": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
    linux.kill_descendants()
    os._exit(0)


def _wait(pid, control):
    end = linux.watch(pid)
    while True:
        readable = select.select([control, *([] if end is None else [end])], [], [], None if end else _POLL_S)[0]
        if control in readable:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status


def _be_the_first_to_go():
    """Make this process the first that the OOM killer chooses, and disable core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # this system has no such file


def leave_network():
    """Move this process to a network namespace with only loopback; return whether the system allowed that."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.unshare(_CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET):
        return False
    try:
        if uid != 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    except OSError:
        return False
    return True
