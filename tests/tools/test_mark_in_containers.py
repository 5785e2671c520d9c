"""The script that marks each submission in a container: with a real engine where one runs, and what it refuses."""

import csv
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from tools import notebooks

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "mark_in_containers.sh"
ENGINE = os.environ.get("ENGINE", "podman")
OPTIONS = os.environ.get("OPTIONS", "")

SPY = f'''# Exercise 1.1
def list_state(model):
    import os, socket
    shown = [name for name in ("notebooks/solutions", "tests", ".git", "build/solved")
             if os.path.isdir(f"{ROOT}/{{name}}") and os.listdir(f"{ROOT}/{{name}}")]
    shown += [name for name in ("INBOX", "HOME") if os.path.isdir(name) and os.listdir(name)]
    for name in ("{ROOT}/marks", "/usr/marks", "/handed_in/marks"):
        try:
            open(name, "w")
            shown.append(name)
        except OSError:
            pass
    try:
        socket.create_connection(("192.0.2.1", 80), 1)
        shown.append("a network")
    except OSError as error:
        shown += [str(error)] if "unreachable" not in str(error) else []
    raise ValueError(f"shown: {{shown}}")


check("1.1", list_state)'''


def run(*arguments, **env):
    return subprocess.run(
        ["sh", SCRIPT, *arguments], env=os.environ | env, capture_output=True, text=True, timeout=300, cwd="/"
    )


def engine_is_missing():
    command = [*ENGINE.split(), "run", "--rm", *OPTIONS.split(), "debian:stable", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    except OSError:
        return f"{ENGINE} is not here"
    return done.returncode and f"{ENGINE} runs no container here: {done.stderr.strip()[-200:]}"


def test_a_submission_sees_nothing_but_itself_and_writes_nothing(tmp_path):
    if why := engine_is_missing():
        pytest.skip(why)
    chapter = notebooks.notebook_paths(["01"])[0]
    spy = SPY.replace("INBOX", str(tmp_path)).replace("HOME", os.path.expanduser("~/.ssh"))
    nb = notebooks.put_in(notebooks.read(chapter), notebooks.read_solutions(chapter) | {"1.1": spy})
    nbformat.write(nb, tmp_path / "c: $(x), a quote' and d.ipynb")
    (tmp_path / "link.ipynb").symlink_to(chapter)
    done = run(str(tmp_path), ENGINE=ENGINE)
    assert "3 of 4 passed" in done.stdout and "ValueError: shown: []" in " ".join(done.stdout.split()), done
    assert "hides no files" not in done.stderr
    assert len(list(tmp_path.iterdir())) == 2


# In the place of an engine, which is not everywhere: it runs the command here, on the folder that was to be mounted.
ENGINE_HERE = """#!/bin/sh
for word in "$@"; do
    case "$word" in *:/handed_in:ro) handed_in=${word%:/handed_in:ro} ;; esac
done
while [ "$1" != .venv/bin/python ]; do shift; done
[ "$2" = -c ] && exec "$@"
case "$(ls "$handed_in")" in broken*) echo "no container today" >&2; exit 125 ;; esac
exec "$1" "$2" "$3" "$handed_in" "$5" "$6"
"""


def test_all_are_collected_and_what_was_left_out_is_named(tmp_path):
    engine, inbox = tmp_path / "podman", tmp_path / "inbox"
    engine.write_text(ENGINE_HERE)
    engine.chmod(0o755)
    chapter = notebooks.notebook_paths(["00"])[0]
    (inbox / "group").mkdir(parents=True)
    nb = notebooks.put_in(notebooks.read(chapter), notebooks.read_solutions(chapter))
    nbformat.write(nb, inbox / "anna (1).ipynb")
    for name in ("empty.ipynb", "broken.ipynb", "group/bert.ipynb", "carl.zip"):
        (inbox / name).touch()
    files = ["--csv", tmp_path / "marks.csv", "--feedback", tmp_path / "feedback"]
    done = run(str(inbox), *map(str, files), ENGINE=str(engine))
    assert done.returncode == 1 and "no container today\nmark_in_containers: nothing came out" in done.stderr, done
    last = done.stdout.splitlines()[-1]
    assert last == "Not judged, so that the exit code is not 0: broken, carl.zip, empty, group/bert", done
    rows = {row["submission"]: row for row in csv.DictReader((tmp_path / "marks.csv").open(encoding="utf-8-sig"))}
    assert (rows["anna (1)"]["exercise"], rows["anna (1)"]["passed"]) == ("0.1", "1") and len(rows) == 5
    said = {"empty": "is empty", "broken": "no fault", "group/bert": "lies in a folder", "carl.zip": "is an archive"}
    assert not [name for name, words in said.items() if words not in rows[name]["reason"]], rows
    totals = [*csv.DictReader((tmp_path / "feedback/totals.csv").open(encoding="utf-8-sig"))]
    assert len(totals) == 5 and all((tmp_path / "feedback" / row["file"]).exists() for row in totals)
    told = {row["submission"]: (tmp_path / "feedback" / row["file"]).read_text() for row in totals}
    assert told["broken"] == "broken\n\nThis file has not been marked yet; that is not your fault.\n"
    again = run(str(inbox), *map(str, files), ENGINE=str(engine))  # refused before anything is marked
    assert again.returncode == 2 and "into a folder of its own" in again.stderr and "anna" not in again.stderr, again


def test_an_engine_that_starts_no_container_is_told_once_and_nothing_is_written(tmp_path):
    """As docker does whose daemon is not running."""
    engine, inbox = tmp_path / "docker", tmp_path / "inbox"
    engine.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 125\n")
    engine.chmod(0o755)
    inbox.mkdir()
    for name in ("anna", "bert"):
        (inbox / f"{name}.ipynb").touch()
    files = ["--csv", tmp_path / "marks.csv", "--feedback", tmp_path / "feedback"]
    done = run(str(inbox), *map(str, files), ENGINE=str(engine))
    first, second = done.stderr.splitlines()
    assert done.returncode == 2 and first == "Cannot connect to the daemon", done
    assert f"{engine} could not start Python in a container" in second and "nothing was marked" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docker", "inbox"]


def test_apptainer_is_called_with_its_own_options(tmp_path):
    """By a stand-in, which shows its arguments: apptainer itself is untried."""
    engine, inbox = tmp_path / "apptainer", tmp_path / "inbox"
    engine.write_text('#!/bin/sh\nprintf "<%s>" "$@" >&2\n')
    engine.chmod(0o755)
    inbox.mkdir()
    (inbox / "name.ipynb").touch()
    done = run(str(inbox), ENGINE=str(engine), OPTIONS="--nv", IMAGE="")
    given = re.findall("<(.*?)>", done.stderr.partition("name.ipynb\n")[2])
    assert given[:6] == ["exec", "--containall", "--net", "--network", "none", "--env"] and "--nv" in given
    assert "--volume" not in given and given[given.index("--pwd") + 1] == str(ROOT)
    bound = [b for a, b in zip(given, given[1:], strict=False) if a == "--bind"]
    assert {"/usr:/usr:ro", f"{ROOT}:{ROOT}:ro"} <= set(bound) and any(b.endswith(":/handed_in:ro") for b in bound)
    assert any(b.endswith(f"/empty:{ROOT}/notebooks/solutions:ro") for b in bound)
    command = [".venv/bin/python", "-m", "course_utils.grade", "/handed_in", "--json", "-"]
    assert given[given.index("docker://debian:stable") + 1 :] == command


def test_what_cannot_be_done_is_said(tmp_path):
    for arguments, env, said in (
        ([str(tmp_path / "nowhere")], {}, "there is no folder"),
        ([], {}, "there is no folder"),
        ([str(tmp_path)], {"ENGINE": "true"}, "there is no notebook"),
        ([str(tmp_path)], {"ENGINE": "", "PATH": str(tmp_path)}, "neither podman, docker nor apptainer"),
    ):
        if "PATH" in env:
            for name in ("dirname", "sh"):
                (tmp_path / name).symlink_to(f"/usr/bin/{name}")
        done = run(*arguments, **env)
        assert done.returncode == 2 and said in done.stderr, (arguments, env, done)
