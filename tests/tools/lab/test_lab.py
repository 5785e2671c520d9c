"""Test `make lab` and `make kernel` with a real JupyterLab: in a browser, for another user, by Slurm, elsewhere."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
import pytest
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.kernelspec import KernelSpecManager

from tests.helpers import another_user
from tests.helpers.slurm_cluster import wait_until
from tools import browser as chromium
from tools.lab import register_kernel, start
from tools.lab.__main__ import from_elsewhere, with_port

ROOT = Path(__file__).resolve().parents[3]
OWN_VENV = pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv" or (ROOT / ".venv").is_symlink(), reason="needs the .venv of this checkout"
)
ARGS = "LAB_ARGS=--no-browser --ServerApp.port=0"
URL = re.compile(r"(http://127\.0\.0\.1:\d+)/lab/tree/00_start_here\.ipynb\?token=(\w+)")


@contextmanager
def running(*command, **options):
    """A JupyterLab that `command` starts; yields its address, its token and what was printed before."""
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # fmt: skip
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            found = URL.search(line)
            if found:
                break
        else:
            raise AssertionError("".join(said))
        # the address is printed a moment before it listens
        wait_until(lambda: answers(found[1]), 100, "the server answers")
        yield found[1], found[2], "".join(said)
    finally:
        ended = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        psutil.wait_procs(ended, timeout=100)


def answers(address):
    try:
        return urllib.request.urlopen(f"{address}/api").close() is None
    except urllib.error.URLError:
        return False


def ask(address, token, path, content=None):
    request = urllib.request.Request(
        f"{address}/api/{path}",
        headers={"Authorization": f"token {token}"},
        data=None if content is None else json.dumps(content).encode(),
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@OWN_VENV
def test_lab_is_for_this_machine_with_a_token_and_opens_a_copy_with_its_contents_beside(tmp_path):
    copy = tmp_path / "my course"
    with running("make", "lab", ARGS, f"MY_COURSE={copy}") as (address, token, said):
        assert str(copy) in said
        assert ask(address, token, "contents/00_start_here.ipynb")["type"] == "notebook"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address}/api/contents")
        assert listening(ask_process(address)) == {"127.0.0.1"}
        if not chromium.what_is_missing():
            look_into_the_browser(f"{address}/lab/tree/00_start_here.ipynb?token={token}", tmp_path)


def ask_process(address):
    """The process that listens there."""
    port = int(address.rpartition(":")[2])
    return next(
        psutil.Process(c.pid)
        for c in psutil.net_connections("inet")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port
    )


def listening(process):
    return {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}


def look_into_the_browser(url, folder):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = chromium.start(playwright)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url)
        page.wait_for_selector(".jp-Notebook .jp-MarkdownOutput h1")
        page.wait_for_selector(".jp-TableOfContents-tree:visible >> text=Start here")
        page.wait_for_timeout(1000)  # in which news would pop up
        page.screenshot(path=folder / "lab.png")
        assert page.locator(".jp-toast-button, .Toastify__toast, .jp-Dialog").count() == 0
        browser.close()


def test_a_terminal_shows_how_to_come_from_elsewhere_then_the_address_and_no_warnings(tmp_path):
    shown = tmp_path / "shown.txt"
    command = f"{sys.executable} -m tools.lab --no-browser 2>&1 | tee {shown}"
    env = os.environ | {"MY_COURSE": str(tmp_path / "copy"), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    with running("bash", "-c", command, env=env) as (address, token, _):
        port = address.rpartition(":")[2]
        kernel = {"path": start.FIRST, "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        ask(address, token, f"contents/{start.FIRST}")  # not trusted, as nobody has run it here
        session = ask(address, token, "sessions", kernel)
        client = BlockingKernelClient(connection_file=str(tmp_path / f"kernel-{session['kernel']['id']}.json"))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(60)
        client.stop_channels()
        said = shown.read_text()
    assert re.search(rf"\n    ssh -N -L {port}:127\.0\.0\.1:{port} \S+@\S+\n", said)
    assert not re.search(r"^\[[IW] ", said, re.MULTILINE)
    assert URL.search(said.splitlines()[-1])


def test_a_port_that_was_asked_for_is_taken():
    assert with_port(["--no-browser", "--ServerApp.port=9001"]) == (9001, ["--no-browser", "--ServerApp.port=9001"])
    assert with_port(["--port", "9001"])[0] == 9001
    assert "ssh -N -L PORT:127.0.0.1:PORT " in from_elsewhere(with_port(["--port=0"])[0])


# A class on one installation


@OWN_VENV
@pytest.mark.skipif(bool(another_user.missing()), reason=another_user.missing())
def test_another_user_works_from_a_home_in_a_checkout_that_cannot_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    command = another_user.as_another_user(home, "make", "lab", ARGS, COURSE_MAX_WORKERS="2")
    with running(*command) as (address, token, said):
        assert "Using what its owner has installed" in said and "/home/student/my_course" in said
        session = ask(
            address,
            token,
            "sessions",
            {"path": start.FIRST, "name": "", "type": "notebook", "kernel": {"name": "python3"}},
        )
        connection = next(home.rglob(f"kernel-{session['kernel']['id']}.json"))
        run_until_a_launch(connection, home / "my_course" / start.FIRST)


def run_until_a_launch(connection, path):
    """Run the notebook's cells until workers have been started."""
    client = BlockingKernelClient(connection_file=str(connection))
    client.load_connection_file()
    client.start_channels()
    client.hb_channel.time_to_dead = 60  # one second, else: less than a kernel on a busy machine may be silent
    try:
        client.wait_for_ready(60)
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", ()):
                reply = client.execute_interactive(
                    cell.source, timeout=120, output_hook=lambda message: None, allow_stdin=False
                )
                assert reply["content"]["status"] == "ok", cell.source + str(reply["content"].get("evalue"))
            if "launch(" in cell.source:
                return
        raise AssertionError("no cell of the notebook starts workers")
    finally:
        client.stop_channels()


# Where Jupyter already runs


def test_a_kernel_for_another_jupyter(tmp_path, monkeypatch):
    env = os.environ | {"HOME": str(tmp_path), "MY_COURSE": str(tmp_path / "copy")}
    for name in ("JUPYTER_DATA_DIR", "XDG_DATA_HOME"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab.register_kernel"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    where = Path(re.search(r"is registered in (.*)\.\n", done.stdout)[1])
    assert str(tmp_path) in str(where) and (tmp_path / "copy" / start.FIRST).exists()
    manager = KernelManager(
        kernel_name=register_kernel.NAME, kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(where.parent)])
    )
    manager.start_kernel(cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(30)
        reply = client.execute_interactive("import course_utils", timeout=60, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    env = os.environ | {"MY_COURSE": str(tmp_path / "file" / "my_course")}
    for module in ("tools.lab", "tools.lab.register_kernel"):
        done = subprocess.run([sys.executable, "-m", module], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "could not be written" in done.stderr and "MY_COURSE=" in done.stderr


# As a job


def test_jupyterlab_as_a_job_of_slurm(slurm, tmp_path):
    copy = tmp_path / "my course"
    command = [
        sys.executable,
        "-m",
        "tools.lab",
        "--slurm=--gpus=1 --time=5",
        "--ServerApp.shutdown_no_activity_timeout=300",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=slurm.env | {"MY_COURSE": str(copy)}, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    job = re.search(r"as job (\d+); Ctrl-C cancels it", done.stdout)[1]
    try:
        tunnel = re.search(r"ssh -N -L (\d+):127\.0\.0\.1:(\d+) -J (\S+)@(\S+) (\S+)@(n1|n2)\n", done.stdout)
        assert tunnel and tunnel[1] == tunnel[2]
        address, token = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", done.stdout).groups()
        wait_until(lambda: answers(address), 100, "the server answers")  # a node of the tests is this machine
        assert ask(address, token, "contents/00_start_here.ipynb")["type"] == "notebook"
        assert listening(ask_process(address)) == {"127.0.0.1"}
        assert token not in " ".join(" ".join(p.cmdline()) for p in slurm.processes(job))
        written = [path for path in copy.rglob("*") if path.is_file() and token in path.read_text(errors="replace")]
        assert written and all(path.parent.stat().st_mode & 0o077 == 0 for path in written)
    finally:
        slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"


def test_an_interrupt_while_the_job_waits_cancels_it(slurm, tmp_path):
    command = [sys.executable, "-m", "tools.lab", "--slurm=--begin=now+1hour"]
    process = subprocess.Popen(command, cwd=ROOT, env=slurm.env | {"MY_COURSE": str(tmp_path)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    said, job = "", None
    while "pending" not in said:
        said = process.stdout.readline()
        assert said, "it has ended"
        job = (re.search(r"job (\d+)", said, re.IGNORECASE) or [None, None])[1] or job
    process.send_signal(signal.SIGINT)
    assert f"Job {job} is cancelled." in process.communicate(timeout=100)[1]
    assert process.returncode == 1 and slurm.wait(job) == "CANCELLED"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("--partition=none", "Slurm did not take the job: "),
        ("--gpus=1 --time=1 --nodes=2-1", "Slurm did not take the job: "),
    ],
)
def test_a_job_that_slurm_refuses(slurm, tmp_path, arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab", f"--slurm={arguments}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=slurm.env | {"MY_COURSE": str(tmp_path)},
    )
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_without_slurm_that_is_said(tmp_path):
    env = os.environ | {"MY_COURSE": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tools.lab", "--slurm=--gpus=1"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1 and "There is no Slurm on this machine" in done.stderr
