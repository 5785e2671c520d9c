"""Separates a student's code from the lecturer's machine: a process that watches it, no network, and few files."""

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

_CLONE_NEWNET, _CLONE_NEWUSER, _CLONE_NEWNS = 0x40000000, 0x10000000, 0x00020000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 1 << 12, 1 << 14, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1  # Linux 5.12
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


def limit_memory(num_bytes):
    """Let this process and each of its descendants hold at most `num_bytes` of data, if that is not None.

    Beyond it, allocating fails with an error in the code that asks. What is shared and what is only reserved does not
    count (RLIMIT_DATA); on GPUs this is untried.
    """
    if num_bytes is None:
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    except (OSError, ValueError):
        pass  # this system limits no data


def leave_network():
    """Move this process to a network namespace with only loopback; return whether the system allowed that."""
    if sys.platform != "linux":
        return False
    try:
        _unshare(_CLONE_NEWNET, with_user=os.getuid() != 0)
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    except OSError:
        return False
    return True


def leave_files(hidden, writable):
    """Let this process see nothing in the files and folders `hidden`, and write nothing outside the folders `writable`.

    Its descendants see the same, and cannot undo it. Returns whether the system allowed that; if not, as on Linux
    before 5.12, nothing may be hidden.
    """
    if sys.platform != "linux":
        return False
    try:
        _unshare(_CLONE_NEWNS, with_user=os.getuid() != 0)
        _mount(None, "/", flags=_MS_REC | _MS_PRIVATE)
        for path in filter(os.path.exists, hidden):
            if os.path.isdir(path):
                _mount("tmpfs", path, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
            else:
                _mount(os.devnull, path, flags=_MS_BIND)
        writable = [path for path in (*writable, "/dev/shm") if os.path.isdir(path)]
        for path in writable:
            _mount(path, path, flags=_MS_BIND | _MS_REC)
        _set_read_only("/", True, _AT_RECURSIVE)
        for path in (*writable, "/proc"):
            _set_read_only(path, False)
        # In another user namespace, where what was mounted above can be neither unmounted nor made writable.
        _unshare(_CLONE_NEWNS, with_user=True)
    except OSError:
        return False
    return True


def can_leave_files():
    """Return whether this system lets processes of this user call `leave_files` with success."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if leave_files((), ()) else 1)
    return os.waitpid(pid, 0)[1] == 0


def _unshare(flags, with_user):
    """Move this process to new namespaces, with its user and group if to a new one of users, too."""
    uid, gid = os.getuid(), os.getgid()
    _checked(_libc().unshare(flags | (_CLONE_NEWUSER if with_user else 0)))
    if with_user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _mount(source, target, kind=None, flags=0):
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _checked(_libc().mount(*words, ctypes.c_ulong(flags), None))


def _set_read_only(path, is_read_only, flags=0):
    wanted = _MOUNT_ATTR_RDONLY
    attributes = struct.pack("4Q", *((wanted, 0) if is_read_only else (0, wanted)), 0, 0)
    words = _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(len(attributes))
    _checked(_libc().syscall(*words))


def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _checked(status):
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
