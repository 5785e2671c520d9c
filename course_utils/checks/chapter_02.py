"""Checks of chapter 02: kernels, run in the simulator with sizes that do not divide, every access of every thread watched."""

import collections
import functools
import inspect
from dataclasses import dataclass

import torch
from numba import cuda

from ..kernels import simulate_many
from .wrong import expect, expect_function, is_whole, run_answer

_TIME_LIMIT_S = 5  # for a launch of a hundred threads or so; the right answers take a few hundredths of a second


@dataclass
class _Launch:
    """What a student's kernel did in one launch. Arrays are named by their position among the kernel's parameters."""

    case: str
    args: tuple  # before
    result: object  # Simulated
    names: list

    def after(self, position):
        return self.result.args[position]

    def touched(self, position, kind):
        """{element: [(block, thread), …]} of the accesses of one kind to one array, in order."""
        found = {}
        for touch in self.result.touches:
            if (touch.arg, touch.kind) == (self.names[position], kind):
                found.setdefault(touch.element, []).append((touch.block, touch.thread))
        return found


def _run(kernel, cases):
    """A _Launch for each (what to call it, grid, block, args). Raises Wrong if `kernel` cannot be a kernel at all.

    KernelError, where a launch fails, is left to `evaluate`, which shows it.
    """
    expect_function(kernel)
    results = simulate_many(kernel, [(grid, block, args) for _, grid, block, args in cases], timeout=_TIME_LIMIT_S)
    names = list(inspect.signature(kernel).parameters)
    return [_Launch(f"with {_shape(grid, block)} and {case}", args, result, names)
            for (case, grid, block, args), result in zip(cases, results)]  # fmt: skip


def _shape(grid, block):
    return f"{grid} block{'s' * (grid > 1)} of {block} thread{'s' * (block > 1)}"


def _numbers(size, begin=1):
    """Whole numbers as floats, all different, whose sums and products here are exact."""
    return torch.arange(begin, begin + size, dtype=torch.float32)


def _expect_unchanged(launch, position):
    written = launch.touched(position, "write")
    name = launch.names[position]
    expect(not written, f"{launch.case}, {name}[{min(written, default=0)}] is written, and {name} is an input")


def _expect_written_once(
    launch, position, elements, may_stay=(), foreign="it lies behind the first n",
    question="which elements does thread 0 of block 1 take, and the last thread of all?",
):  # fmt: skip
    """Every one of `elements` is written by one thread, those that `may_stay` perhaps by none, and no other is."""
    written, name = launch.touched(position, "write"), launch.names[position]
    for element, ((block, thread), *_) in sorted(written.items()):
        expect(
            element in elements or element in may_stay,
            f"{launch.case}, thread {thread} of block {block} writes {name}[{element}], which is not yours: {foreign}",
        )
    missing = [element for element in elements if element not in written and element not in may_stay]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        expect(written, f"{launch.case}, nothing is written")
        expect(
            False,
            f"{launch.case}, {name}[{missing[0]}]{more} written by no thread, the last one that is written being "
            f"{name}[{max(written)}]: {question}",
        )
    for element, threads in sorted(written.items()):
        who = [f"thread {thread} of block {block}" for block, thread in dict.fromkeys(threads)]
        expect(
            len(who) == 1,
            f"{launch.case}, {name}[{element}] is written {len(threads)} times, by {' and '.join(who[:2])}: each element belongs "
            "to one thread",
        )


def _expect_no_race(launch, question):
    races = launch.result.races
    expect(not races, f"{launch.case}, there is a race: {races[0] if races else ''}. {question}")


def _expect_values(launch, position, expected, question):
    got, before, name = launch.after(position), launch.args[position], launch.names[position]
    for i in range(len(expected)):
        expect(
            abs(got[i].item() - expected[i].item()) < 1e-3,
            f"{launch.case}, {name}[{i}] was {before[i]:g}, became {got[i]:g}, and should be {expected[i]:g}: {question}",
        )


def _expect_shared_work(launch, position, most=None, fewest=2):
    """No thread writes more than `most` elements, and at least `fewest` threads write."""
    counts = collections.Counter(who for threads in launch.touched(position, "write").values() for who in threads)
    if not counts:
        return
    (block, thread), count = counts.most_common(1)[0]
    lead = f"{launch.case}, thread {thread} of block {block} writes {count} elements"
    expect(most is None or count <= most, f"{lead}: there is a thread for each, and they work at the same time")
    expect(len(counts) >= fewest, f"{lead}, and only {len(counts)} of the threads take part: share the elements out")


# ---- 2.1 ----------------------------------------------------------------------------------------------------------

_SHAPES = ((3, 8, 50), (1, 4, 11), (5, 1, 12), (2, 7, 40))  # grid, block, elements


def check_2_1(find_writer):
    """`find_writer(element, grid, block)` returns the (block index, thread index) that the simulator records."""
    (answers,) = run_answer(_ask_for_writers, find_writer, world_size=1)
    for (grid, block, n), writers, given in zip(_SHAPES, _recorded_writers(), answers):
        for element, (writer,) in sorted(writers.items()):
            answer, case = given[element], f"for element {element} with {_shape(grid, block)} and {n} elements"
            expect(
                isinstance(answer, (tuple, list)) and len(answer) == 2,
                f"{case}, {answer!r} came back, not a pair (block index, thread index)",
            )
            expect(
                all(map(is_whole, answer)),
                f"{case}, {tuple(answer)!r} came back: an index is a whole number"
                + (", and / gives none" if any(isinstance(number, float) for number in answer) else ""),
            )
            hint = "follow that thread through the figure"
            if tuple(answer) == writer[::-1]:
                hint = "which of the two comes first?"
            elif not 0 <= answer[0] < grid:
                hint = f"there are blocks 0 to {grid - 1}: what becomes of elements that are more than the threads?"
            elif not 0 <= answer[1] < block:
                hint = f"a block has threads 0 to {block - 1}"
            expect(
                tuple(answer) == writer,
                f"{case}, {tuple(answer)} came back, but the simulator saw another thread write it: {hint}",
            )
    return f"right for every element of {len(_SHAPES)} launches, as the simulator recorded them."


@functools.cache  # they are the same at every check
def _recorded_writers():
    launches = _run(_grid_stride, [("", grid, block, (torch.zeros(n),)) for grid, block, n in _SHAPES])
    return [launch.touched(0, "write") for launch in launches]


def _grid_stride(out):
    for i in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[i] = 1


def _ask_for_writers(find_writer):
    return [[find_writer(element, grid, block) for element in range(n)] for grid, block, n in _SHAPES]


# ---- 2.2 ----------------------------------------------------------------------------------------------------------


def check_2_2(scale):
    """`scale(n, a, x)` multiplies the first n numbers of x by a, each by a thread of its own."""
    a = 2.5
    cases = [
        (f"n = {n}" + (f" of {size} numbers" if size > n else ""), grid, block, (n, a, _numbers(size)))
        for grid, block, n, size in ((7, 8, 50, 50), (2, 32, 40, 61), (5, 1, 5, 5), (3, 4, 12, 12), (1, 16, 3, 20))
    ]
    for launch in _run(scale, cases):
        n, _, x = launch.args
        _expect_written_once(launch, 2, range(n))
        expected = torch.cat([a * x[:n], x[n:]])
        _expect_values(launch, 2, expected, f"with a = {a}")
        _expect_shared_work(launch, 2, most=1)
    return "5 launches scaled the first n numbers, each once, and touched nothing behind them."


# ---- 2.3 ----------------------------------------------------------------------------------------------------------


def check_2_3(reverse):
    """`reverse(n, x)` turns the first n numbers round in place, with any grid."""
    cases = [
        (f"n = {n}" + (f" of {size} numbers" if size > n else ""), grid, block, (n, _numbers(size)))
        for grid, block, n, size in ((2, 4, 20, 20), (1, 1, 6, 8), (4, 8, 11, 14), (3, 5, 47, 50), (1, 8, 0, 3), (2, 3, 1, 2))
    ]
    for (_, grid, block, _), launch in zip(cases, _run(reverse, cases)):
        n, x = launch.args
        _expect_written_once(
            launch, 1, range(n), may_stay=(n // 2,) if n % 2 else (), question="which pair is swapped by nobody?"
        )
        _expect_no_race(launch, "Who must do the reading and writing of a pair?")
        _expect_values(launch, 1, torch.cat([x[:n].flip(0), x[n:]]), "where should it have gone, and what should have come?")
        _expect_shared_work(launch, 1, fewest=min(n // 2, grid * block, 2))
    return "6 launches turned the first n numbers round, n even, odd, 1 and 0, without a race."


# ---- 2.4 ----------------------------------------------------------------------------------------------------------


def check_2_4(saxpy):
    """`saxpy(n, a, x, incx, y, incy)` adds a * x to y, element by element, with gaps between elements."""
    cases = []
    for grid, block, n, incx, incy, behind in ((3, 8, 50, 1, 1, 0), (2, 4, 21, 2, 3, 0), (4, 4, 7, 3, 1, 12), (1, 1, 3, 1, 2, 2)):
        x, y = _numbers((n - 1) * incx + 1), _numbers((n - 1) * incy + 1 + behind, begin=1000)
        cases.append((f"n = {n}, incx = {incx}, incy = {incy}", grid, block, (n, 2.5, x, incx, y, incy)))
    for (_, grid, block, _), launch in zip(cases, _run(saxpy, cases)):
        n, a, x, incx, y, incy = launch.args
        ours = range(0, n * incy, incy)
        _expect_unchanged(launch, 2)
        _expect_written_once(launch, 4, ours, foreign="it lies in a gap, or behind the last element")
        expected = y.clone()
        expected[::incy][:n] += a * x[::incx][:n]
        _expect_values(launch, 4, expected, f"a is {a}; which element of x belongs here, and does the old y count?")
        _expect_shared_work(launch, 4, fewest=min(n, grid * block))
    return "4 launches, with increments of 1, 2 and 3, added a * x to every element of y and to nothing else."


# ---- 2.5 ----------------------------------------------------------------------------------------------------------


def check_2_5(block_sums):
    """`block_sums(n, x, sums)` leaves in sums[b] the sum of block b's numbers, added up in shared memory."""
    cases = [
        (f"n = {n}", grid, block, (n, torch.cat([_numbers(n) + 0.5, torch.full((behind,), 1e6)]), _numbers(grid, begin=7000)))
        for grid, block, n, behind in ((4, 32, 128, 0), (4, 32, 100, 0), (3, 8, 20, 4), (2, 5, 9, 0), (3, 4, 5, 7), (1, 1, 1, 0))
    ]
    for (_, grid, block, _), launch in zip(cases, _run(block_sums, cases)):
        n, x, _ = launch.args
        _expect_unchanged(launch, 1)
        _expect_own_reads(launch, n, block)
        for element, threads in launch.touched(2, "write").items():
            name, foreign = launch.names[2], [block for block, _ in threads if block != element]
            expect(not foreign, f"{launch.case}, block {(foreign or [0])[0]} writes {name}[{element}], which is another block's")
            many = len(set(threads))
            is_atomic = any(touch.atomic for touch in launch.result.touches if (touch.arg, touch.kind) == (name, "write"))
            expect(
                many == 1 or not is_atomic,
                f"{launch.case}, {many} threads add to {name}[{element}] itself: add up in shared memory, and write the sum once",
            )
            expect(many == 1, f"{launch.case}, {many} threads write {name}[{element}]: which of them is to have the last word?")
        _expect_no_race(launch, "What must happen before a thread may read what another has written?")
        _expect_sums(launch, torch.cat([x[:n], torch.zeros(grid * block - n)]).view(grid, block).sum(1))
    return "6 launches, the last block full, partly filled and empty, left every block's sum, without a race."


def _expect_own_reads(launch, n, block):
    read, name = launch.touched(1, "read"), launch.names[1]
    for element, threads in sorted(read.items()):
        reader, thread = threads[0]
        expect(element < n, f"{launch.case}, thread {thread} of block {reader} reads {name}[{element}], behind the first n")
        own = divmod(element, block)
        expect(
            all(who == own for who in threads),
            f"{launch.case}, {name}[{element}] is read by thread {threads[-1][1]} of block {threads[-1][0]}: each thread reads "
            "its own number alone, and learns the others' in shared memory",
        )
        expect(len(threads) == 1, f"{launch.case}, {name}[{element}] is read {len(threads)} times: once is asked")
    missing = [element for element in range(n) if element not in read]
    expect(not missing, f"{launch.case}, {name}[{(missing or [0])[0]}] is read by no thread")


def _expect_sums(launch, expected):
    name = launch.names[2]
    for block, (before, got, should) in enumerate(zip(launch.args[2], launch.after(2), expected)):
        lead = f"{launch.case}, {name}[{block}]"
        expect(got != before, f"{lead} is what it was before")
        expect(not got.isnan(), f"{lead} is not a number: somebody adds a place of the shared array that nobody has written")
        extra = "does what stood there before count?" if got == should + before else "which numbers are missing, or count twice?"
        expect(got == should, f"{lead} is {got:g}, and the block's numbers add up to {should:g}: {extra}")
