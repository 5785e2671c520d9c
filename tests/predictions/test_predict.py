"""What `predict` and `reveal` do in a kernel: asked for, remembered, compared, skipped, and never in the way."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

from course_utils.predictions import predict, reveal
from course_utils.predictions.prediction import Prediction, off_by

SETUP = """import os
os.environ.pop("PYTEST_CURRENT_TEST", None)
from course_utils import predict, reveal
from course_utils.predictions import _made, all_measured, field"""
ASK = "my_times = predict('How many times as fast?', unit='times', chapter=9)"
MEASURE = "reveal(my_times=2)\nprint('the result,', my_times)"
UNTYPED = "the result, None\n"


@pytest.fixture(scope="module")
def kernel(new_notebook):
    return new_notebook(setup=SETUP, COURSE_PANEL="1")


@pytest.fixture
def notebook(kernel):
    """The shared kernel as it was, without a file; `type_into` runs a cell as a front end does that lets one type."""
    for path in kernel.directory.glob("predictions*"):
        path.unlink()
    kernel.run("_made.clear()\nfield.IDLE_S = 0.0  # each cell counts as run by itself")
    yield kernel


def on_disk(notebook):
    path = notebook.directory / "predictions.json"
    return json.loads(path.read_text()) if path.exists() else None


def kept(value, **more):
    return {"question": "How many times as fast?", "unit": "times", "predicted": value} | more


def show(notebook, source=ASK):
    """Run a cell in a front end that draws widgets and lets one type."""
    outcome = notebook.type_into(source, lambda prompt: None)
    notebook.run("for each in _made.values():\n    each.field._drawn.value = True")
    return outcome


def enter(notebook, text, name="my_times"):
    return notebook.run(f"_made[{name!r}].field._text.value = {text!r}")


def click(notebook, button, name="my_times"):
    found = "next(each for each in _box.children[1].children if getattr(each, 'description', '') == {!r})"
    return notebook.run(f"_box = _made[{name!r}].field._box; {found.format(button)}.click()")


def status(notebook, name="my_times"):
    return notebook.run(f"print(_made[{name!r}].field._status.value)").stdout


def test_what_is_typed_is_the_variables_value_and_is_compared(notebook):
    assert show(notebook).values == [""]  # a widget, of which nothing is left where widgets are unknown
    assert enter(notebook, "1.5").updates[-1].startswith("How many times as fast? Your prediction: 1.5 times.")
    said = notebook.run(MEASURE).stdout
    assert said == "You predicted 1.5 times, and here it is 2 times: off by a factor of 1.33.\nthe result, 1.5\n"
    assert on_disk(notebook) == {"09": {"my_times": kept(1.5, measured=2.0)}}


def test_an_answered_field_becomes_a_line_at_once_that_a_saved_notebook_keeps(notebook):
    show(notebook)
    assert notebook.run("1").updates == []
    enter(notebook, "2 5")
    assert "“2 5” is not a number: write it like 2.5" in status(notebook)
    line = "How many times as fast? Your prediction: 1.5 times. Run this cell again to change it."
    assert enter(notebook, "1.5").updates[-1] == line
    assert notebook.run("1").updates == []
    notebook.type_into(ASK, lambda prompt: None)
    assert notebook.run("1").updates == [line]
    show(notebook)
    line = line.replace("Your prediction: 1.5 times", "No prediction")
    assert click(notebook, "Skip").updates[-1] == line
    show(notebook)
    assert notebook.run("_made['my_times'].field._text.value").value == ""


def test_shown_again_below_the_measuring_cell_it_does_not_speak_of_this_cell(notebook):
    show(notebook)
    notebook.fail(MEASURE)
    line = "How many times as fast? Your prediction: 1.5 times."
    assert enter(notebook, "1.5").updates[-2:] == [f"{line} Run this cell again to change it.", line]


def test_a_factor_has_as_many_digits_as_it_deserves():
    made = Prediction("How many?", "my_number", value=1.0)
    said = [], []
    for i, measured in enumerate((14.2, 1234.5)):
        made.compare(measured, said[i].append)
    assert [text[0].rpartition("of ")[2] for text in said] == ["14.", "1,234."]


def test_it_is_remembered_after_a_restart(notebook):
    (notebook.directory / "predictions.json").write_text(json.dumps({"09": {"my_times": kept(1.5, measured=2.0)}}))
    outcome = show(notebook, f"{ASK}\nprint(my_times)")
    assert outcome.stdout == "1.5\n"
    assert "Remembered: 1.5 times." in status(notebook)
    assert notebook.run("print(_made['my_times'].field._text.value)").stdout == "1.5\n"
    assert "the result, 1.5" in notebook.run(MEASURE).stdout


def test_the_measuring_cell_asks_once(notebook):
    show(notebook)
    outcome = notebook.fail(MEASURE)
    assert (outcome.stdout, outcome.values) == ("", [""])  # the field again, and not the result
    assert outcome.shown.startswith("Predict first: answer above") and "\n" not in outcome.shown
    assert notebook.run(MEASURE).stdout == UNTYPED
    enter(notebook, "2")
    assert "off by a factor of 1.00." in notebook.run(MEASURE).stdout


def test_two_questions_are_asked_for_together(notebook):
    show(notebook, f"{ASK}\nmy_winner = predict('Which way?', choices=('ring', 'tree'), chapter=9)")
    measure = "reveal(my_times=2, my_winner='ring')"
    assert notebook.fail(measure).values == ["", ""]
    click(notebook, "tree", "my_winner")
    assert notebook.run(measure).stdout == "You predicted “tree”, and here it is “ring”.\n"


@pytest.mark.parametrize("how", ["not drawn", "Run All", "skipped", "skipped in the call", "skipped before a restart"])
def test_it_is_never_in_the_way(notebook, how):
    if how == "skipped in the call":
        notebook.run(ASK.replace("fast?'", "fast?', 'skip'"))
    else:
        show(notebook)
    if how == "not drawn":  # a front end without widgets
        notebook.run("_made['my_times'].field._drawn.value = False")
    elif how == "Run All":
        notebook.run("field.IDLE_S = float('inf')")
    elif how.startswith("skipped"):
        notebook.run("_made['my_times'].field and _made['my_times'].field._answer(None)")
    if how == "skipped before a restart":
        notebook.run("_made.clear()")
        show(notebook)
        assert "Skipped." in status(notebook)
    outcome = notebook.run(MEASURE)
    assert (outcome.stdout, outcome.stderr, outcome.values) == (UNTYPED, "", [])


def test_a_front_end_in_which_nobody_types_shows_no_field(notebook):
    outcome = notebook.run(ASK)
    assert (outcome.stdout, outcome.stderr, outcome.values) == ("", "", [])
    assert notebook.run(MEASURE).stdout == UNTYPED
    assert on_disk(notebook) is None


def test_nbclient_goes_through_untouched(tmp_path, monkeypatch):
    """As papermill does, which runs notebooks with it."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.delenv("COURSE_PANEL", raising=False)
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, ASK, MEASURE, "print(all_measured())")]
    nb = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(nb, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [[output.get("text") for output in cell.outputs] for cell in nb.cells]
    assert outputs == [[], [], [UNTYPED], ["[]\n"]]
    assert not list(tmp_path.iterdir())


def test_under_test_nothing_is_remembered(notebook):
    (notebook.directory / "predictions.json").write_text(json.dumps({"09": {"my_times": kept(1.5, measured=2.0)}}))
    before = on_disk(notebook)
    tested = "os.environ['COURSE_PANEL'] = '0'\ntry:\n    {}\nfinally: os.environ['COURSE_PANEL'] = '1'"
    outcome = notebook.type_into(tested.format(ASK + "; print(my_times, all_measured())"), lambda prompt: None)
    assert (outcome.stdout, outcome.values) == ("None []\n", [])
    outcome = notebook.run(tested.format(ASK.replace("fast?'", "fast?', 3") + "; reveal(my_times=2)"))
    assert outcome.stdout == "You predicted 3 times, and here it is 2 times: off by a factor of 1.50.\n"
    assert on_disk(notebook) == before


def test_an_answer_in_the_call(notebook):
    outcome = notebook.type_into(ASK.replace("fast?'", "fast?', 3"), lambda prompt: None)
    assert outcome.values == []  # no field
    assert "the result, 3" in notebook.run(MEASURE).stdout
    assert on_disk(notebook) == {"09": {"my_times": kept(3, measured=2.0)}}
    (found,) = notebook.run("all_measured()").value
    assert found == {"chapter": "09"} | kept(3, measured=2.0)


def test_another_answer_is_measured_anew(notebook):
    show(notebook)
    enter(notebook, "1.5")
    notebook.run(MEASURE)
    assert notebook.run("len(all_measured())").value == 1
    enter(notebook, "1.6")
    assert notebook.run("len(all_measured())").value == 0


def test_what_is_typed_and_is_no_number(notebook):
    show(notebook)
    refused = {
        "about 3": "is not a number",
        "nan": "finite",
        "-2": "the answer is 0 times or more, not -2",
        "1,500": "may be two numbers: write 1500 or 1.500",
        "1,5,2": "is not a number",
        "<b>": "is not a number",
    }
    for text, why in refused.items():
        enter(notebook, text)
        assert why in status(notebook)
    assert on_disk(notebook) is None
    assert "&lt;b&gt;" in status(notebook)
    for text, number in {"1e3": 1000, "0,8": 0.8, "0,125": 0.125}.items():
        enter(notebook, text)
        assert on_disk(notebook)["09"]["my_times"]["predicted"] == number


def test_a_folder_that_cannot_be_written(notebook):
    show(notebook)
    notebook.run("from course_utils.predictions import kept\nusual = kept.here().folder\n"
                 "kept.here().folder = usual / 'absent'")  # fmt: skip
    try:
        assert "cannot be written here" in enter(notebook, "1.5").updates[-1]
        assert "the result, 1.5" in notebook.run(MEASURE).stdout
        assert notebook.run("len(all_measured())").value == 1
    finally:
        notebook.run("kept.here().folder, kept.here()._unsaved = usual, {}")


@pytest.mark.parametrize("answer", ["fast", True, float("nan"), float("inf"), [2]])
def test_an_answer_that_is_none(answer):
    with pytest.raises((TypeError, ValueError), match="the answer is a"):
        predict("How many?", answer)


def test_what_has_a_unit_is_not_below_0():
    with pytest.raises(ValueError, match="the answer is 0 ms or more, not -1"):
        predict("How long?", -1, unit="ms")
    assert predict("What does it end on?", -1) == -1


def test_an_answer_that_is_no_choice():
    with pytest.raises(ValueError, match="the answer is one of 'ring', 'tree', not 'bus'"):
        predict("Which?", "bus", choices=("ring", "tree"))


def test_outside_a_notebook_only_the_call_counts(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    my_ms = predict("How long?", unit="ms")
    reveal(my_ms=3)
    assert my_ms is None and capsys.readouterr().out == ""
    my_ms = predict("How long?", 2, unit="ms")
    reveal(my_ms=3, not_a_prediction=4)
    assert my_ms == 2
    assert capsys.readouterr().out == "You predicted 2 ms, and here it is 3 ms: off by a factor of 1.50.\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "predicted, measured, factor", [(2, 4, 2), (4, 2, 2), (3, 3, 1), (0, 2, None), (2, -1, None), ("a", 2, None)]
)
def test_by_which_factor(predicted, measured, factor):
    assert off_by(predicted, measured) == factor
