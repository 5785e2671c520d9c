"""System calls for a launch: ending a process with its parent, killing process groups and descendants, huge pages.

All of this is for Linux, and does less, or nothing, on other systems: a thread looks twice a second whether the parent
still lives, orphans are not adopted, and what /proc tells is not known. What else depends on the system:

    `processes/network.py`            the loopback interface's name; host names from files alone (glibc)
    `processes/payload.py`            files in memory; elsewhere temporary files without a name
    `processes/shared.py`             a shared tensor's file under /proc; where tensors are shared by name, a copy
    `launch/worker/surroundings.py`   what a worker forks is forked as on Linux; a rank's cores, its umask
    `hardware/host.py`                the cores that this process may use, the CPU's name
    `hardware/description.py`         the size of shared memory
    `hardware/sharing.py`             the folder in which launches queue: /dev/shm, /run/lock or /tmp
    `hardware/builds.py`              which builds of PyTorch there are for this processor
    `doctor/machine.py`               whether shared memory is large enough
    `grade/isolation.py`              namespaces; elsewhere students' code has network and files
    `train/program.py`                the unit of the memory's peak
    `chapters/c05_data_parallelism/side_by_side.py`  the core that a thread is tied to
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_CLEANERS_S = 1.0
_HUGE = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1


def _prctl(option, value):
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


def umask():
    """Return this process's umask, or None if it is not known: only in /proc can it be read without being changed."""
    try:
        with open("/proc/self/status") as file:
            found = re.search(r"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1], 8) if found else None


def name_process(name):
    """Set the name that ps and top show for this process, at most 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


# Ends


def end_with_parent(parent_pid):
    """Have this process killed when its parent ends: by the system on Linux, by a watching thread elsewhere.

    On Linux the end of the *thread* that forked counts, so the parent must have forked in its main thread.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    else:

        def watch():
            while os.getppid() == parent_pid:
                time.sleep(0.5)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before we asked
        os._exit(1)


def watch(pid):
    """Return a descriptor that becomes readable when process `pid` ends, or None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def count_memory_kills():
    """Return how many processes the system's OOM killer has killed since boot; 0 if the system does not tell."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def core_seconds(pid):
    """Return {pid: (seconds on a core, seconds waiting for one)} of a process and its descendants.

    Sums over the threads that are alive. Returns {} if the system does not tell.
    """
    found, had, waited = {}, 0.0, 0.0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                times = [int(number) / 1e9 for number in file.read().split()]
            had, waited = had + times[0], waited + times[1]
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in file.read().split():
                    found |= core_seconds(int(child))
    except OSError:  # it has ended, or the system has no such files
        pass
    return found | {pid: (had, waited)} if had or waited else found


# Groups of processes


def adopt_orphans():
    """Have orphaned descendants become children of this process, so that it can find them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_group(pid):
    """Kill the process `pid` and its process group."""
    for kill in (os.killpg, os.kill):  # a newly forked worker has no group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def ended_children(leaders):
    """Reap the children that have ended and yield (pid, wait status) of each.

    The process group of a child in `leaders` is killed before the child is reaped, since its pid, which names the
    group, may be reused afterwards.
    """
    while True:
        try:
            if hasattr(os, "waitid"):
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None and ended.si_pid in leaders:
                    kill_group(ended.si_pid)
                pid, status = os.waitpid(ended.si_pid, 0) if ended is not None else (0, 0)
            else:  # macOS before Python 3.13
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid in leaders:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def kill_descendants():
    """Kill and reap all descendants that workers left behind, in whatever session; return their pids.

    multiprocessing's resource tracker gets a second to remove the shared memory that others left behind; it ends by
    itself once no process uses it. torch's manager would take two seconds, so it is killed and its folder removed here.
    """
    import psutil

    collected, deadline = set(), time.monotonic() + _CLEANERS_S
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return collected  # no child is left
        if ended:
            collected.add(ended)
            continue
        has_time = time.monotonic() < deadline
        for stray in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                command = " ".join(stray.cmdline())
                if has_time and "multiprocessing.resource_tracker" in command:
                    continue
                sockets = stray.net_connections("unix") if command.startswith("torch_shm_manager") else ()
                stray.kill()
                for socket in sockets:  # each has its own folder
                    if re.search("/torch-shm-dir-[^/]*/manager.sock$", socket.laddr):
                        shutil.rmtree(os.path.dirname(socket.laddr), ignore_errors=True)
        time.sleep(0.001)


def remove_shared_memory(pids):
    """Remove tensors that the ended processes `pids` shared by name (torch's strategy "file_system")."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/shm"):
            maker = re.match(r"torch_(\d+)_", name)
            if maker and int(maker[1]) in pids:
                os.unlink(f"/dev/shm/{name}")


def kill_marked(variable, mark):
    """Kill every process that was started with `variable`=`mark` in its environment, whatever its parent is now."""
    import psutil

    entry = f"{variable}={mark}".encode()
    for _ in range(10):  # repeated, since a process may fork meanwhile
        found = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
                if entry in file.read().split(b"\0"):
                    process.kill()
                    found = True
        if not found:
            return


# Huge pages. A fork copies the parent's page table. With torch imported it has nearly 100,000 entries of 4 KiB pages,
# which cost each worker 11 ms of CPU time at its start and 11 ms at its end; with pages of 2 MiB it is 3 ms and 5 ms.


def huge_page_stretches():
    """Return the addresses of the 2 MiB stretches of memory that `collapse` may take; [] if they are not known."""
    try:
        with open("/proc/self/maps") as file:
            maps = file.read()
    except OSError:
        return []
    # Private, writable memory without a file: the heap and mappings of Python and malloc.
    found = re.findall(r"^(\w+)-(\w+) rw-p \S+ \S+ 0 *(?:\[heap\])?$", maps, flags=re.MULTILINE)
    aligned = ((-(-int(begin, 16) // _HUGE) * _HUGE, int(end, 16) // _HUGE * _HUGE) for begin, end in found)
    return [address for first, last in aligned for address in range(first, last, _HUGE)]


def collapse(address):
    """Collect one stretch into a huge page, in milliseconds. If the system refuses, the pages stay as they are."""
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
