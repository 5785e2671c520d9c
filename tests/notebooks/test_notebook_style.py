"""What every committed notebook keeps to, so that it reads well where nothing runs.

A rule is a function that yields one complaint for each breach: the cell's index and what to do.
Each rule is tried on every notebook, and on a small notebook that it must refuse.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_utils.measure.claims import NOT_HERE, NOT_MEASURED
from tools import notebooks

MAX_CODE_LINES, SHORT_CODE_LINES, MAX_WORDS, MAX_BYTES = 30, 8, 120, 500_000
MAX_LINE = 100


@dataclass
class Chapter:
    path: Path

    @cached_property
    def nb(self):
        return notebooks.read(self.path)

    @property
    def number(self):
        return int(self.path.stem[:2])

    @property
    def code(self):
        return [(i, cell) for i, cell in enumerate(self.nb.cells) if cell.cell_type == "code"]

    @property
    def prose(self):
        return [(i, cell) for i, cell in enumerate(self.nb.cells) if cell.cell_type == "markdown"]

    @property
    def num_words(self):
        return sum(count_words(cell.source) for _, cell in self.prose)


RULES = []


def rule(function):
    RULES.append(function)
    return function


def shorten(text, length=60):
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= length else line[: length - 1] + "…"


@rule
def counts_run_from_one(chapter):
    for expected, (i, cell) in enumerate(chapter.code, start=1):
        if cell.execution_count != expected:
            yield (
                f"cell {i} has execution count {cell.execution_count} and is code cell "
                f"{expected}: run the notebook top to bottom with `make record`"
                + ("" if cell.source.strip() else ", without this empty cell")
            )
            return


@rule
def errors_only_where_announced(chapter):
    for i, cell in chapter.code:
        names = notebooks.exception_names(cell)
        if names and not notebooks.is_tagged(cell):
            yield (
                f"cell {i} shows a {names[0]}: repair it, or tag it "
                f"{notebooks.FAILS_ON_PURPOSE} if the text announces the failure"
            )
        if notebooks.is_tagged(cell) and not names:
            yield f"cell {i} is tagged {notebooks.FAILS_ON_PURPOSE} and shows no exception: untag it"
        for sign in notebooks.silent_failures(cell):
            yield f"cell {i} failed on stderr ({sign!r}) and went on: repair it"


@rule
def code_cells_are_short(chapter):
    lengths = [(i, len(notebooks.answer_and_check(cell.source)[0].splitlines())) for i, cell in chapter.code]
    for i, lines in lengths:
        if lines > MAX_CODE_LINES:
            yield f"cell {i} has {lines} lines and {MAX_CODE_LINES} are the limit: split it by idea"
    short = sum(lines < SHORT_CODE_LINES for _, lines in lengths)
    if 5 * short < 2 * len(lengths):
        longest = sorted(lengths, key=lambda pair: -pair[1])[:3]
        yield (
            f"{short} of {len(lengths)} code cells are under {SHORT_CODE_LINES} lines, two in "
            f"five must be: split the longest, cells {', '.join(str(i) for i, _ in longest)}"
        )


def reading_pieces(source):
    """What a reader meets at a time: a hint is folded, and so a piece of its own."""
    return re.split(r"(?=<details>)|(?<=</details>)", source)


def count_words(text):
    """Words as a reader meets them: no markup, no table rules, a formula's symbols one by one."""
    text = re.sub(r"<[^>]+>", " ", text)
    return sum(any(c.isalnum() for c in token) for token in text.replace("|", " ").split())


@rule
def markdown_cells_are_short(chapter):
    for i, cell in chapter.prose:
        words = max(map(count_words, reading_pieces(cell.source)))
        if words >= MAX_WORDS:
            yield (
                f"cell {i} ({shorten(cell.source, 30)!r}) has {words} words, fewer than "
                f"{MAX_WORDS} are allowed: split it, or show what it says"
            )


@rule
def prices_are_no_formula(chapter):
    """In JupyterLab an escaped dollar sign and the next one in the cell enclose a formula all the same."""
    for i, cell in chapter.prose:
        if r"\$" in cell.source and cell.source.count("$") > 1:
            yield f"cell {i} ({shorten(cell.source, 30)!r}) has an escaped dollar sign and another one: write “dollars”"


def headings(source, level):
    """The headings of one level in a markdown cell, those inside code fences left out."""
    source = re.sub(r"^```.*?^```", "", source, flags=re.MULTILINE | re.DOTALL)
    return re.findall(rf"^{'#' * level} +(.+?)\s*$", source, flags=re.MULTILINE)


@rule
def one_title(chapter):
    titles = [(i, title) for i, cell in chapter.prose for title in headings(cell.source, 1)]
    if not titles or titles[0][0] != 0:
        yield f"cell 0 does not hold the title: begin with `# {chapter.number}. …`"
    elif not re.match(rf"{chapter.number}\. \S", titles[0][1]):
        yield (f"cell 0's title is {titles[0][1]!r}: write `# {chapter.number}. …`, the number of the file's name")
    for i, title in titles[1:]:
        yield f"cell {i} has a second title, {title!r}: make it a `##` heading"


def bullets_under(chapter, heading):
    """(cell index, number of bullets) for each section of this name."""
    for i, cell in chapter.prose:
        for section in re.split(r"^(?=#+ )", cell.source, flags=re.MULTILINE):
            if heading in headings(section, 2):
                yield i, len(re.findall(r"^(?:[-*]|\d+\.) +\S", section, flags=re.MULTILINE))


@rule
def headings_leave_out_no_level(chapter):
    """Who hears a notebook goes by its headings."""
    before = 0
    for i, cell in chapter.prose:
        source = re.sub(r"^```.*?^```", "", cell.source, flags=re.MULTILINE | re.DOTALL)
        for marks, title in re.findall(r"^(#+) +(.+?)\s*$", source, flags=re.MULTILINE):
            if len(marks) > before + 1:
                yield f"cell {i}: {title!r} has {len(marks)} `#` after a heading with {before}: leave out no level"
            before = len(marks)


@rule
def key_points_mirror_objectives(chapter):
    objectives = list(bullets_under(chapter, "Objectives"))
    points = list(bullets_under(chapter, "Key points"))
    for name, found in (("Objectives", objectives), ("Key points", points)):
        if len(found) != 1:
            yield f"{len(found)} sections are called `## {name}`: have one, its bullets in its cell"
    if len(objectives) == len(points) == 1:
        (i, promised), (j, kept) = objectives[0], points[0]
        if not 3 <= promised <= 5:
            yield f"cell {i} lists {promised} objectives: make them 3 to 5, each beginning with a verb"
        if promised != kept:
            yield f"cell {j} has {kept} key points for {promised} objectives: one for each, in order"
        if i > j:
            yield f"cell {i} comes after the key points of cell {j}: objectives come first"


@rule
def file_is_small(chapter):
    size = chapter.path.stat().st_size
    if size >= MAX_BYTES:
        i, cell = max(chapter.code, key=lambda pair: len(str(pair[1].outputs)))
        yield (
            f"the file has {size} bytes, {MAX_BYTES} is the limit: "
            f"cell {i}'s outputs are the largest, draw its figure smaller"
        )


@rule
def code_is_plain_python(chapter):
    for i, cell in chapter.code:
        if "get_ipython" in cell.source:
            yield f"cell {i} calls get_ipython: write it without IPython"
        try:
            ast.parse(re.sub(rf"^{notebooks.IN_RANKS}\b.*", "", cell.source))
        except SyntaxError as error:
            line = cell.source.splitlines()[(error.lineno or 1) - 1]
            yield (
                f"cell {i}, line {error.lineno} is no Python ({shorten(line)!r}): write it without magic, `!` or `?`"
            )


@rule
def one_place_decides_where(chapter):
    """`hardware.gpus()` knows nothing of COURSE_DEVICE, of shared nodes, of GPUs too small to share.

    And cuDNN's version raises where a GPU is visible that is too old for it.
    """
    for i, cell in chapter.code:
        for call in re.findall(
            r"\b(?:hardware\.)?gpus\(\)|if torch\.cuda\.is_available\(\)|cudnn\.version\(\)", cell.source
        ):
            yield f"cell {i} asks {call}: let choose_backend, devices or rank_device decide"


@rule
def other_chapters_are_linked(chapter):
    for i, cell in enumerate(chapter.nb.cells):
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("#") or "<summary>" in line:
                    continue
                plain = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", line)
                for number in re.findall(r"\b[Cc]hapters? (\d\d)\b", plain):
                    if int(number) != chapter.number:
                        yield f"cell {i} mentions chapter {number}: write [chapter {number}](its file)"


@rule
def sources_have_addresses(chapter):
    for i, cell in enumerate(chapter.nb.cells):
        _, _, rest = cell.source.partition("Read more") if cell.cell_type == "markdown" else ("", "", "")
        plain = re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`|\*\*", "", rest)
        for title in re.findall(r"\*[^*\n]+\*", plain):
            yield f"cell {i} names {title} under Read more: write [{title}](its address)"


@rule
def terms_can_be_looked_up(chapter):
    if not any("](glossary.md" in cell.source for cell in chapter.nb.cells):
        yield "nothing links to glossary.md: name it where the chapter ends"


@rule
def no_machine_paths(chapter):
    for i, cell in enumerate(chapter.nb.cells):
        for path in notebooks.machine_paths(cell.source):
            yield f"cell {i} names {path}: write it relative to the notebook, or use tempfile"
        for output in cell.get("outputs", []):
            for text in notebooks.texts(output):
                for path in notebooks.machine_paths(text):
                    yield f"cell {i} printed {path}, a path of one machine: print its name only"


@rule
def figures_say_what_they_show(chapter):
    for i, cell in chapter.code:
        figures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        words = [
            text
            for output in cell.outputs
            if "image/png" not in output.get("data", {})
            for text in notebooks.texts(output)
        ]
        lines = [line for line in "\n".join(words).splitlines() if line.strip()]
        if len(lines) < figures:
            yield (
                f"cell {i} shows {figures} figure(s) and prints {len(lines)} line(s): draw with "
                "course_utils.plots, which prints one line saying what is to be seen"
            )
        for output in cell.outputs:
            if "image/png" in output.get("data", {}) and not output.metadata.get("image/png", {}).get("alt"):
                yield f"cell {i} shows a figure without alternative text: draw with course_utils.plots"


@rule
def claims_hold(chapter):
    for i, cell in chapter.code:
        for text in (text for output in cell.outputs for text in notebooks.texts(output)):
            for line in (line for line in text.splitlines() if line.startswith((NOT_HERE, NOT_MEASURED))):
                yield (
                    f"cell {i}: {line!r} was not found: record it again, at full length, or change what the text says"
                )


@rule
def exercises_are_whole(chapter):
    cells = chapter.nb.cells
    stubs = notebooks.exercises(chapter.nb)
    solutions = notebooks.read_solutions(chapter.path)
    expected = [f"{chapter.number}.{k}" for k in range(1, len(stubs) + 1)]
    if list(stubs) != expected:
        yield f"the exercises are numbered {list(stubs)}: number them {expected}, in this order"
    for number in solutions.keys() - stubs.keys():
        yield (
            f"{notebooks.solutions_path(chapter.path).name} solves exercise {number}, which the notebook does not have"
        )
    for number, i in stubs.items():
        if "raise NotImplementedError" not in cells[i].source:
            yield f"cell {i}, exercise {number}'s stub, must `raise NotImplementedError`"
        if not notebooks.answer_and_check(cells[i].source)[1].startswith(f'check("{number}", '):
            yield f'cell {i}, exercise {number}\'s stub, must end with its check: `check("{number}", …)`'
        if cells[i - 1].cell_type != "markdown" or number not in cells[i - 1].source:
            yield f"cell {i}, exercise {number}'s stub, must follow a markdown cell that sets {number}"
        if "<details>" not in cells[i - 1].source:
            yield f"cell {i - 1} must hold exercise {number}'s hint, in `<details>`"
        if number not in solutions:
            yield (
                f"exercise {number} has no solution: add a `# Exercise {number}` cell to "
                f"solutions/{chapter.path.stem}.py"
            )
        wrong = f"tests/chapters/c{chapter.path.stem[:2]}/ex_{number.replace('.', '_')}.py"
        if not (chapter.path.parent.parent / wrong).exists():
            yield f"exercise {number} has no wrong answers: write {wrong}"


@rule
def nothing_depends_on_an_answer(chapter):
    """Run All goes through unsolved as it does with the solutions, which is how `make test` runs it.

    A cell may read an answer: `tools.solved` runs it once more without one.
    """
    cells, solutions = chapter.nb.cells, notebooks.read_solutions(chapter.path)
    stubs = notebooks.exercises(chapter.nb)
    reads = {i: notebooks.names_read(cell.source) for i, cell in chapter.code}
    for number, i in stubs.items():
        stub, check = notebooks.answer_and_check(cells[i].source)
        answer, solution = notebooks.names_bound(stub), solutions.get(number, "")
        for what, source in ((f"cell {i}, its stub,", stub), ("its solution", solution)):
            if not all(map(notebooks.is_definition, ast.parse(source).body)):
                yield f"exercise {number}: {what} must hold imports, functions, classes and literal settings only"
        if check not in [f'check("{number}", {name})' for name in answer]:
            yield f'cell {i} must end with `check("{number}", …)` of what it defines, and nothing else'
        imports = [
            ast.unparse(node) for node in ast.parse(solution).body if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        harmless = set()  # imported by the solution and by the chapter itself
        for j, cell in chapter.code:
            if j not in stubs.values():
                harmless |= notebooks.names_bound(cell.source) & notebooks.names_bound("\n".join(imports))
            for name in reads[j] & notebooks.names_bound(solution) - answer - harmless:
                yield f"cell {j} reads {name}, which exercise {number}'s solution defines: rename one of the two"


@rule
def predictions_are_asked_for_and_revealed(chapter):
    """`reveal` ignores names that no `predict` has set, since a student may rename a variable: a chapter may not."""
    asked = set()
    for i, cell in chapter.code:
        source = notebooks.of_notebook(cell.source)
        calls = re.findall(r"^(\w+) = predict\((.*?), chapter=(\d+)\)", source, re.MULTILINE | re.DOTALL)
        for name, question, number in calls:
            asked.add(name)
            if int(number) != chapter.number:
                yield f"cell {i} asks {question} for chapter {number}: it is chapter {chapter.number}"
        for arguments in re.findall(r"^ *reveal\((.*)\)", source, re.MULTILINE):
            for name in set(re.findall(r"(\bmy_\w+)=", arguments)) - asked:
                yield f"cell {i} reveals {name}, which no cell before it predicts"


@rule
def file_is_normalised(chapter):
    text = chapter.path.read_text(encoding="utf-8")
    if text == notebooks.dumps(notebooks.normalise(nbformat.reads(text, as_version=4))):
        return
    extra = [
        f"cell {i} carries {sorted(set(cell.metadata) - {'tags'})}"
        for i, cell in enumerate(chapter.nb.cells)
        if set(cell.metadata) - {"tags"}
    ]
    if chapter.nb.metadata != notebooks.METADATA:
        extra.append("the notebook's own metadata differ")
    yield (
        f"`make record` would write this file differently ({'; '.join(extra[:3]) or 'in its layout'}): "
        "run it and commit what it writes"
    )


@rule
def code_lines_fit_the_page(chapter):
    for i, cell in chapter.code:
        longest = max(cell.source.splitlines(), key=len, default="")
        if len(longest) > MAX_LINE:
            yield f"cell {i} has a line of {len(longest)} characters, {MAX_LINE} are the limit: {shorten(longest, 40)}"


@pytest.mark.parametrize("path", notebooks.notebook_paths(), ids=lambda path: path.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_notebook(rule, path):
    complaints = list(rule(Chapter(path)))
    assert not complaints, f"{path.name}:\n" + "\n".join(complaints)


@pytest.mark.parametrize("path", notebooks.notebook_paths(), ids=lambda path: path.stem)
def test_report_of_length(path, record_property):
    """Printed at the end of the run, also where nothing is refused."""
    chapter = Chapter(path)
    record_property(
        "notebook",
        f"{path.stem}: {len(chapter.nb.cells)} cells, {chapter.num_words:,} words, {path.stat().st_size / 1000:.0f} kB",
    )


# The rules themselves: a chapter in which all is well, and for each breach the rule that sees it.

STREAM = new_output("stream", name="stdout", text="a straight line\n")
BARE_FIGURE = new_output("display_data", data={"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"})
FIGURE = BARE_FIGURE | {"metadata": {"image/png": {"alt": "A straight line."}}}
ERROR = new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])
STUB_SOURCE = "# Exercise 3.1\ndef one():\n    raise NotImplementedError"
BULLETS = "\n\n- Do this\n- Do that\n- Do more\n"
TAGGED, TASK, STUB, PLAIN = 5, 7, 8, 10  # indices in the chapter below


def sound_chapter(folder):
    """A chapter that no rule refuses, as objects: (notebook, path)."""
    cells = [
        new_markdown_cell("# 3. A sample\n\nIs all well?"),
        new_markdown_cell(f"## Objectives{BULLETS}"),
        new_code_cell("import math", outputs=[]),
        new_code_cell("draw()", outputs=[FIGURE, STREAM]),
        new_markdown_cell("## When it breaks"),
        new_code_cell("raise ValueError('no')", outputs=[ERROR], metadata={"tags": ["raises-exception"]}),
        new_markdown_cell("```\n# a comment in a fence\n```\nSee /dev/shm and https://x.org/home/a."),
        new_markdown_cell(
            "**Exercise 3.1** (core). Return 1.\n\n<details><summary>Hint</summary>\n\nCount.\n</details>"
        ),
        new_code_cell(f'{STUB_SOURCE}\n\n\ncheck("3.1", one)', outputs=[STREAM]),
        new_markdown_cell(f"## Key points{BULLETS}\nTerms: [glossary](glossary.md)."),
        *(new_code_cell(f"x = {k}") for k in range(20)),
    ]
    for k, cell in enumerate((c for c in cells if c.cell_type == "code"), start=1):
        cell.execution_count = k
    for k, cell in enumerate(cells):
        cell.id = f"cell-{k}"
    path = folder / "notebooks/03_sample.ipynb"
    (folder / "notebooks/solutions").mkdir(parents=True)
    (folder / "tests/chapters/c03").mkdir(parents=True)
    (folder / "tests/chapters/c03/ex_3_1.py").write_text("")
    notebooks.solutions_path(path).write_text(
        "# %% [markdown]\n# Solutions.\n\n# %%\n# Exercise 3.1\ndef one():\n    return 1\n"
    )
    nb = new_notebook(cells=cells, metadata=notebooks.METADATA)
    return nbformat.from_dict(nb), path


def test_a_sound_chapter_passes_every_rule(tmp_path):
    nb, path = sound_chapter(tmp_path)
    notebooks.write(nb, path)
    assert {r.__name__: list(r(Chapter(path))) for r in RULES} == {r.__name__: [] for r in RULES}


def put(i, **changes):
    """A breach: other values for the fields of cell i."""
    return lambda nb, path: nb.cells[i].update(nbformat.from_dict(changes))


def without(i):
    return lambda nb, path: nb.cells.pop(i)


def add_to_solution(path, line):
    file = notebooks.solutions_path(path)
    file.write_text(f"{file.read_text()}\n{line}\n")


BREACHES = [
    (counts_run_from_one, put(PLAIN, execution_count=99)),
    (counts_run_from_one, put(PLAIN, execution_count=None)),
    (errors_only_where_announced, put(PLAIN, outputs=[ERROR])),
    (errors_only_where_announced, put(TAGGED, outputs=[])),
    (
        errors_only_where_announced,
        put(PLAIN, outputs=[new_output("stream", name="stderr", text="Exception in thread Thread-1:\n")]),
    ),
    (code_cells_are_short, put(PLAIN, source="x = 1\n" * 31)),
    (
        code_cells_are_short,
        lambda nb, path: [nb.cells[i].update(source="x = 1\n" * 8) for i in range(PLAIN, PLAIN + 20)],
    ),
    (markdown_cells_are_short, put(6, source="word " * 120)),
    (markdown_cells_are_short, put(TASK, source=f"3.1\n\n<details>{'word ' * 120}</details>")),
    (prices_are_no_formula, put(6, source=r"From \$25 to \$30")),
    (prices_are_no_formula, put(6, source=r"For \$25, $x$ of them")),
    (one_title, put(6, source="# Another")),
    (headings_leave_out_no_level, put(6, source="#### Deeper")),
    (one_title, put(0, source="# 4. A sample")),
    (one_title, put(0, source="## A sample")),
    (key_points_mirror_objectives, put(9, source=f"## Key points{BULLETS}- One more\n")),
    (key_points_mirror_objectives, put(9, source="## The end")),
    (
        key_points_mirror_objectives,
        lambda nb, path: [
            nb.cells[1].update(source="## Objectives\n\n- One\n"),
            nb.cells[9].update(source="## Key points\n\n- One\n"),
        ],
    ),
    (file_is_small, put(PLAIN, outputs=[new_output("stream", text="x" * MAX_BYTES)])),
    (code_is_plain_python, put(PLAIN, source="%matplotlib inline")),
    (code_is_plain_python, put(PLAIN, source="!false")),
    (code_is_plain_python, put(PLAIN, source="get_ipython().system('false')")),
    (one_place_decides_where, put(PLAIN, source="from course_utils import hardware\nhardware.gpus()")),
    (one_place_decides_where, put(PLAIN, source="import torch\nd = 'cuda' if torch.cuda.is_available() else 'cpu'")),
    (other_chapters_are_linked, lambda nb, path: nb.cells.append(new_markdown_cell("As chapter 08 does.", id="new"))),
    (sources_have_addresses, put(6, source="**Read more.** A. Author, *A title*, 2019.")),
    (terms_can_be_looked_up, put(9, source=f"## Key points{BULLETS}")),
    (no_machine_paths, put(PLAIN, source="open('/tmp/results.txt')")),
    (no_machine_paths, put(PLAIN, outputs=[new_output("stream", text="/home/someone/course/a.py:3: UserWarning\n")])),
    (
        no_machine_paths,
        put(
            TAGGED,
            outputs=[
                new_output("error", ename="E", evalue="", traceback=["File ~/env/lib/python3.12/site-packages/a.py:1"])
            ],
        ),
    ),
    (figures_say_what_they_show, put(3, outputs=[FIGURE])),
    (figures_say_what_they_show, put(3, outputs=[BARE_FIGURE, STREAM])),
    (figures_say_what_they_show, put(3, outputs=[FIGURE, FIGURE, STREAM])),
    (
        claims_hold,
        put(PLAIN, outputs=[new_output("stream", name="stdout", text=f"1 s, 2 s\n{NOT_HERE}the first is slower\n")]),
    ),
    (exercises_are_whole, put(STUB, source='# Exercise 3.1\ndef one():\n    return 1\n\n\ncheck("3.1", one)')),
    (
        exercises_are_whole,
        put(STUB, source='# Exercise 4.1\ndef one():\n    raise NotImplementedError\n\n\ncheck("3.1", one)'),
    ),
    (exercises_are_whole, put(STUB, source=STUB_SOURCE)),
    (exercises_are_whole, put(STUB, source=f'{STUB_SOURCE}\n\n\ncheck("3.2", one)')),
    (exercises_are_whole, put(TASK, source="**Exercise 3.1** (core). Return 1.")),
    (exercises_are_whole, without(TASK)),
    (exercises_are_whole, without(STUB)),
    (exercises_are_whole, lambda nb, path: notebooks.solutions_path(path).unlink()),
    (
        exercises_are_whole,
        lambda nb, path: notebooks.solutions_path(path).write_text(
            notebooks.solutions_path(path).read_text() + "\n# %%\n# Exercise 3.2\nx = 1\n"
        ),
    ),
    (exercises_are_whole, lambda nb, path: (path.parent.parent / "tests/chapters/c03/ex_3_1.py").unlink()),
    (nothing_depends_on_an_answer, put(STUB, source='# Exercise 3.1\none = print\n\n\ncheck("3.1", one)')),
    (nothing_depends_on_an_answer, put(STUB, source=f'{STUB_SOURCE}\n\n\ncheck("3.1", one())')),
    (nothing_depends_on_an_answer, put(STUB, source=f'{STUB_SOURCE}\n\n\ncheck("3.1", two)')),
    (nothing_depends_on_an_answer, put(STUB, source=f'{STUB_SOURCE}\n\n\nanswer = check("3.1", one)')),
    (nothing_depends_on_an_answer, lambda nb, path: add_to_solution(path, "print(one())")),
    (
        nothing_depends_on_an_answer,
        lambda nb, path: (  # the chapter would fail for want of it
            add_to_solution(path, "import os"),
            nb.cells[PLAIN].update(source="def f():\n    return os.sep"),
        ),
    ),
    (
        nothing_depends_on_an_answer,
        lambda nb, path: (  # the stub itself would
            add_to_solution(path, "import os"),
            nb.cells[STUB].update(source=STUB_SOURCE.replace("()", "(path: os.PathLike)") + '\n\n\ncheck("3.1", one)'),
        ),
    ),
    (
        nothing_depends_on_an_answer,
        lambda nb, path: (  # the chapter's own would be replaced
            add_to_solution(path, "x = 2"),
            nb.cells[-1].update(source="print(x)"),
        ),
    ),
    (predictions_are_asked_for_and_revealed, put(PLAIN, source="reveal(my_ms=3)")),
    (predictions_are_asked_for_and_revealed, put(PLAIN, source="my_ms = predict('How long?', chapter=4)")),
    (file_is_normalised, put(PLAIN, metadata={"collapsed": True})),
    (file_is_normalised, lambda nb, path: nb.metadata.language_info.update(version="3.12.1")),
    (file_is_normalised, put(PLAIN, outputs=[STREAM, STREAM])),
    (
        file_is_normalised,
        put(PLAIN, outputs=[new_output("display_data", data={notebooks.WIDGET_VIEW: {}, "text/plain": "IntSlider"})]),
    ),
    (code_lines_fit_the_page, put(PLAIN, source=f"x = 1\ny = '{100 * 'y'}'")),
]


@pytest.mark.parametrize("rule, breach", BREACHES, ids=[f"{rule.__name__}-{i}" for i, (rule, _) in enumerate(BREACHES)])
def test_the_rule_refuses_a_breach(rule, breach, tmp_path):
    nb, path = sound_chapter(tmp_path)
    breach(nb, path)
    notebooks.write(nb, path)
    assert list(rule(Chapter(path)))


def test_every_rule_has_a_breach():
    assert {rule for rule, _ in BREACHES} == set(RULES)


def test_normalising_twice_changes_nothing_more(tmp_path):
    nb, _ = sound_chapter(tmp_path)
    nb.metadata["widgets"] = {}
    nb.cells[PLAIN].metadata.update({"collapsed": True, "jupyter": {"source_hidden": True}, "tags": []})
    nb.cells[PLAIN].outputs = [
        nbformat.from_dict(o) for o in (new_output("stream", text="1%\r99%\r100%\n"), STREAM, FIGURE)
    ]
    once = notebooks.dumps(notebooks.normalise(nb))
    assert once == notebooks.dumps(notebooks.normalise(nbformat.reads(once, as_version=4)))
    cell = nbformat.reads(once, as_version=4).cells[PLAIN]
    assert cell.metadata == {} and cell.outputs[0].text == "100%\na straight line\n"
