"""Starts a program again and again, each time as a process of its own, without importing torch each time.

    Starter ── "start" or "kill", number ──▶ the process below, which has imported torch ── fork ──▶ the program
            ◀── number, exit code ─────────

The processes know nothing of one another, as if each had been started in a terminal: if one ends, the others go on. All
of them end with the Starter, and with the process that made it.
"""

import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback

from . import ending, interrupts, linux

_END_S = 5.0


class Starter:
    """Starts processes that run the file `program`; use it in a `with`, which ends them all. `running` lists numbers.

    `environment` is added to this process's. With `interrupts.deferred()` around it, only `wait` can be interrupted.
    """

    def __init__(self, program, **environment):
        self._program, self._environment, self.running = str(program), environment, []

    def __enter__(self):
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            # They share the cores. Unbuffered, a line and its end are written apart, and lines of two may mix.
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""} | self._environment,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process only
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it still imports, and has started none
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._output.close()

    def start(self, number, *arguments):
        """Start the program with `arguments`, words of its command line; `number` is what it is called here."""
        self.running.append(number)
        self._ask("start", number, *arguments)

    def kill(self, number):
        """Send SIGKILL to the process `number`, if it runs."""
        self._ask("kill", number)

    def wait(self, seconds):
        """Wait up to `seconds` for the end of some process; return (number, exit code) of those that have ended."""
        with interrupts.allowed():
            is_ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not is_ready:
            return []
        ended = [json.loads(line) for line in os.read(self._process.stdout.fileno(), 1 << 16).splitlines()]
        if not ended:
            raise RuntimeError(f"the process that starts others has ended:\n{self.last_lines()}")
        for number, _ in ended:
            self.running.remove(number)
        return ended

    def lines(self):
        """What all processes have printed so far."""
        size = os.fstat(self._output.fileno()).st_size
        written = os.pread(self._output.fileno(), size, 0)  # at an offset: they share the file's position
        return written.decode(errors="replace").splitlines()

    def last_lines(self):
        return "\n".join(self.lines()[-20:])

    def _ask(self, *request):
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()


def _serve(program):
    """Fork, kill and reap as lines of stdin say; at their end kill all that still run, and end."""
    import torch._dynamo  # noqa: F401  the first optimizer of a process imports it, which takes a second

    numbers, requests = {}, open(0, "rb", buffering=0)  # the numbers of pids
    while True:
        is_ready, _, _ = select.select([requests], [], [], 0.005)
        if is_ready and not (line := requests.readline()):
            break
        if is_ready:
            request, number, *arguments = json.loads(line)
            if request == "start":
                numbers[_fork(program, arguments)] = number
            for pid in [pid for pid, each in numbers.items() if request == "kill" and each == number]:
                os.kill(pid, signal.SIGKILL)
        for pid, status in linux.ended_children(numbers):
            ended = json.dumps([numbers.pop(pid), os.waitstatus_to_exitcode(status)])
            os.write(1, ended.encode() + b"\n")  # a line at once, so that the reader never gets a part of it
    for pid in numbers:
        linux.kill_group(pid)
    linux.kill_descendants()
    os._exit(0)


def _fork(program, arguments):
    starter_pid = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        linux.end_with_parent(starter_pid)
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # the other stdout is for what the starter says
        sys.argv, sys.path[0] = [program, *arguments], os.path.dirname(program)
        runpy.run_path(program, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        ending.leave(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
