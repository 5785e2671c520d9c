"""What the setup cell of a chapter shows."""


def test_where_somebody_looks_the_machine_is_told_in_lines_that_end_between_words(seen_notebook):
    outcome = seen_notebook.run("from course_utils import describe\ndescribe()")
    (html,) = outcome.htmls
    assert "overflow-wrap: anywhere" in html and "word-break: normal" in html
    (text,) = outcome.values
    assert "By default launch starts " in text and not outcome.stdout


def test_what_is_recorded_is_printed(notebook):
    outcome = notebook.run("from course_utils import describe\ndescribe()")
    assert "By default launch starts " in outcome.stdout and not outcome.htmls
