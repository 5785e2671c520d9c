"""A temporary directory that is full, read-only or missing: the launch works all the same, or says why."""

import subprocess

import pytest

WORKER = """
import tempfile
def worker():
    print("printed")
    return torch.ones(1000)
"""


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB of its own, at `tmp_path / "disk"`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("state", ["full", "read-only", "missing"])
def test_launch_does_without(notebook, request, tmp_path, state):
    """Neither Python, which chooses the directory at its first use, nor a forkserver has seen another one before."""
    if state in ("full", "read-only"):
        disk = request.getfixturevalue("small_disk")
        if state == "full":
            (disk / "filling").write_bytes(b"0" * (64 << 10))
            with pytest.raises(OSError):
                (disk / "more").write_bytes(b"0" * 10_000)
        else:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            with pytest.raises(OSError):
                (disk / "more").touch()
    else:
        disk = tmp_path / "nowhere"
    notebook.run(WORKER)
    usual = notebook.run("launch.shutdown(); os.environ['TMPDIR']").value
    notebook.run(f"os.environ['TMPDIR'], tempfile.tempdir = {str(disk)!r}, None")
    try:
        outcome = notebook.wait(notebook.start("[r.numel() for r in launch(worker, world_size=2)]"))
        if outcome.error:
            assert outcome.error in ("WorkerError", "LauncherError", "OSError"), outcome.shown
            assert "temporary" in outcome.message, outcome.shown
            assert len(outcome.shown.splitlines()) < 10
        else:
            assert outcome.value == [1000, 1000]
            assert "[rank 1] printed" in outcome.stdout
        assert not notebook.workers()
    finally:
        notebook.run(f"launch.shutdown()\nos.environ['TMPDIR'], tempfile.tempdir = {usual!r}, None\nwarm()")
