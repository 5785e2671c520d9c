"""Files beside the notebook: none of them is taken for one of Python's own, and a changed one is spoken of."""

import os

import pytest


@pytest.fixture
def beside(notebook, tmp_path):
    """A notebook beside files named like standard modules, which report when run; its next forkserver starts there."""
    for name in ("random", "profile", "socket", "ctypes"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\nraise SystemExit"
        )
    notebook.run(f"launch.shutdown()\nhere = os.getcwd()\nos.chdir({str(tmp_path)!r})")
    yield notebook, tmp_path
    notebook.run("os.chdir(here)")


def test_names_of_the_standard_library(beside):
    notebook, folder = beside
    value = notebook.run(
        """
def step():
    import random
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return random.__name__
launch(step, world_size=2).results
""".strip(),
    )
    assert value.value == ["random", "random"]
    notebook.wait_until_warm()
    assert not (folder / "executed").exists()
    assert notebook.run("launch(step, world_size=2).results").value == ["random", "random"]
    assert len(notebook.forkservers()) == 1


def test_a_changed_module_is_spoken_of_until_it_is_reloaded(notebook):
    path = notebook.directory / "changing.py"
    path.write_text("def answer():\n    return 1\n")
    notebook.run("import changing\ndef worker(): import changing; return changing.answer()")
    assert "changed" not in notebook.run("launch(worker, world_size=2)").stdout
    path.write_text("def answer():\n    return 22\n")
    outcome = notebook.run("launch(worker, world_size=2).results")
    assert outcome.value == [22, 22]
    assert "changing has changed since it was imported here" in outcome.stdout
    assert max(map(len, outcome.stdout.splitlines())) <= 100  # JupyterLab breaks longer lines within words
    assert "changed" not in notebook.run("launch(worker, world_size=2)").stdout  # once for each change
    path.write_text("def answer():\n    return 1\n")
    assert "changed" not in notebook.run("launch(worker, world_size=2)").stdout  # it was undone
    path.write_text("def answer():\n    return 333\n")
    outcome = notebook.run("import importlib; importlib.reload(changing)\nlaunch(worker, world_size=2).results")
    assert outcome.value == [333, 333]
    assert "changed" not in outcome.stdout


def test_an_error_shows_the_line_as_it_is_now(notebook):
    path = notebook.directory / "edited.py"
    path.write_text("def fails():\n    raise ValueError('first')\n")
    notebook.run("def worker():\n    import edited\n    edited.fails()")
    assert "raise ValueError('first')" in notebook.fail("launch(worker, world_size=2)").shown
    path.write_text("# a comment\ndef fails():\n    raise ValueError('second')\n")
    os.utime(path, (0, 0))
    shown = notebook.fail("launch(worker, world_size=2)").shown
    assert "edited.py, line 3, in fails:  raise ValueError('second')" in shown
    assert "first" not in shown


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise RuntimeError('oops')", "RuntimeError: oops"),
        ("nn.Linear(2, 'two')", "TypeError: "),
        ("from torch import nothing", "ImportError: "),
        ("torch.nothing", "AttributeError: "),
    ],
)
def test_an_error_while_a_module_is_imported_names_its_line(notebook, statement, message):
    """The notebook has imported it; in the workers, where it is imported again, it fails."""
    path = notebook.directory / "only_here.py"
    begin = "import os\nimport torch\nfrom torch import nn\n\n"
    body = f"if 'RANK' in os.environ:\n    {statement}\n\ndef train(): pass\n"
    (notebook.directory / "through.py").write_text("from only_here import train\n")
    path.write_text(begin + body)
    notebook.run("for name in ('through', 'only_here'): sys.modules.pop(name, None)\nfrom through import train")
    outcome = notebook.fail("import through\ndef worker(): through.train()\nlaunch(worker, world_size=2)")
    lines = outcome.shown.splitlines()
    assert lines[0].startswith(f"WorkerError: rank {notebook.run('sys.last_value.rank').value}: {message}")
    assert "  while loading the worker function and its arguments" in lines
    assert f"  at only_here.py, line 6:  {statement}" in lines
    assert "  through.py, line 1, in <module>" in lines
