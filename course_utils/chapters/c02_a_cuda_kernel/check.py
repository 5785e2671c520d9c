"""Checks of chapter 02: kernels run in a simulator that records every access, then compile for a GPU.

Most sizes do not divide evenly.
"""

import collections
import functools
import inspect
from dataclasses import dataclass

import torch

from ...checks import judge
from ...checks.expect import Wrong, case, expect, expect_function, expect_row, expect_whole
from ...kernels import KernelError, check_compiles, simulate_many, simulator_in_workers


@dataclass
class _Launch:
    """What a student's kernel did in one launch.

    Arrays are named by their position among the kernel's parameters.
    """

    args: tuple  # as they were before the launch
    result: object  # a `Simulated`
    names: list

    def after(self, position):
        return self.result.args[position]

    def touched(self, position, kind):
        """Return {element: [(block, thread), …]} of one array's accesses of one kind, in order."""
        found = {}
        for touch in self.result.touches:
            if (touch.arg, touch.kind) == (self.names[position], kind):
                found.setdefault(touch.element, []).append((touch.block, touch.thread))
        return found


def _try(kernel, cases, judge_launch):
    """Simulate `kernel` in each case, judge each launch, and compile the kernel.

    `cases` are (grid, block, more words for the case, args).
    """
    expect_function(kernel)
    failure = None
    try:
        results = simulate_many(
            kernel, [(grid, block, args) for grid, block, _, args in cases], timeout=judge.DEADLINE_S
        )
    except KernelError as error:
        if error.results is None or (error.is_a(NotImplementedError) and not error.message):
            raise  # it cannot be launched, or is not written yet
        results, failure = [*error.results, None], error
    names = list(inspect.signature(kernel).parameters)
    for (grid, block, text, args), result in zip(cases, results):
        with case(f"with {_shape(grid, block)} and {text}"):
            expect(result is not None, failure and failure.text)
            judge_launch(_Launch(args, result, names), grid, block)
    try:
        check_compiles(kernel, *cases[0][-1])
    except KernelError as error:
        raise Wrong(
            f"the simulator, which is Python, runs it, and for a GPU it cannot be compiled: {error.text}"
        ) from None


def _shape(grid, block):
    return f"{grid} block{'s' * (grid > 1)} of {block} thread{'s' * (block > 1)}"


def _thread(who):
    return f"thread {who[1]} of block {who[0]}"


def _numbers(size, begin=1):
    """Return distinct whole numbers as float32; their sums and products here are exact."""
    return torch.arange(begin, begin + size, dtype=torch.float32)


def _expect_unwritten(launch, position):
    written, name = launch.touched(position, "write"), launch.names[position]
    expect(not written, f"{name}[{min(written, default=0)}] is written, and {name} is an input")


def _expect_written_once(
    launch,
    position,
    elements,
    may_stay=(),
    foreign="it lies behind the first n",
    question="which elements does thread 0 of block 1 take, and the last thread of all?",
):
    """Expect that one thread writes each of `elements`, and that nothing else is written.

    Elements of `may_stay` need not be written.
    """
    written, name = launch.touched(position, "write"), launch.names[position]
    for element, (who, *_) in sorted(written.items()):
        is_own = element in elements or element in may_stay
        expect(is_own, f"{_thread(who)} writes {name}[{element}], which is not yours: {foreign}")
    missing = [element for element in elements if element not in written and element not in may_stay]
    expect(written or not missing, "nothing is written")
    more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
    expect(
        not missing,
        f"{name}[{missing[0] if missing else 0}]{more} written by no thread, the last one that is written being "
        f"{name}[{max(written, default=0)}]: {question}",
    )
    for element, threads in sorted(written.items()):
        who = list(dict.fromkeys(threads))
        expect(
            len(who) == 1,
            f"{name}[{element}] is written {len(threads)} times, by {' and '.join(map(_thread, who[:2]))}: "
            "each element belongs to one thread",
        )


def _expect_no_race(launch, question):
    races = launch.result.races
    expect(not races, f"there is a race: {races[0] if races else ''}. {question}")


def _expect_values(launch, position, truth, question):
    before, after, name = launch.args[position], launch.after(position), launch.names[position]
    for i, (was, got, should) in enumerate(zip(before, after, truth)):
        expect(got == should, f"{name}[{i}] was {was:g}, became {got:g}, and should be {should:g}: {question}")


def _expect_most(launch, position, most, num_threads, question):
    """Expect that no thread writes more than `most` elements."""
    counts = collections.Counter(who for threads in launch.touched(position, "write").values() for who in threads)
    who, count = counts.most_common(1)[0] if counts else ((0, 0), 0)
    idle = f"{num_threads - len(counts)} of {num_threads} threads none"
    expect(count <= most, f"{_thread(who)} writes {count} elements, and {idle}: {question}")


# ---- 2.1 ----------------------------------------------------------------------------------------------------------

# grid, block, n, step: every step-th element is asked for
_SHAPES = ((3, 8, 50, 1), (1, 4, 11, 1), (5, 1, 12, 1), (2, 7, 40, 3), (1, 1, 3, 1), (4, 64, 600, 83))


def check_2_1(find_writer):
    """`find_writer(element, grid, block)` returns the (block index, thread index) that the simulator records."""
    with simulator_in_workers():  # the answer may use the simulator, too
        (answers,) = judge.run(_ask_for_writers, find_writer)
    recorded = _recorded_writers()
    pairs = [(given[element], writers[element][0]) for writers, given in zip(recorded, answers) for element in given]
    is_swapped = all(str(answer) == str(writer[::-1]) for answer, writer in pairs)
    for (grid, block, n, _), writers, given in zip(_SHAPES, recorded, answers):
        for element, answer in given.items():
            with case(f"for element {element} with {_shape(grid, block)} and {n} elements"):
                _judge_writer(answer, writers[element][0], grid, block, is_swapped)
    return f"right for elements of {len(_SHAPES)} launches, as the simulator recorded them."


def _judge_writer(answer, writer, grid, block, is_swapped):
    pair = expect_row(answer, 2, of="a block index and a thread index")
    pair = tuple(
        expect_whole(index, f"{name} index in {tuple(pair)}") for index, name in zip(pair, ("the block", "the thread"))
    )
    hint = "follow that thread through the figure"
    if not 0 <= pair[0] < grid:
        hint = f"there are blocks 0 to {grid - 1}: what becomes of elements that are more than the threads?"
    elif not 0 <= pair[1] < block:
        hint = f"a block has {block} thread{'s' * (block > 1)}, counted from 0"
    if is_swapped:
        hint = "which of the two comes first?"
    expect(pair == writer, f"{pair} came back, but the simulator saw another thread write it: {hint}")


@functools.cache  # the same for every check
def _recorded_writers():
    from .grid_stride import grid_stride

    launches = simulate_many(grid_stride, [(grid, block, (torch.zeros(n),)) for grid, block, n, _ in _SHAPES])
    return [_Launch((), launch, ["out"]).touched(0, "write") for launch in launches]


def _ask_for_writers(find_writer):
    return [
        {element: find_writer(element, grid, block) for element in range(0, n, step)}
        for grid, block, n, step in _SHAPES
    ]


# ---- 2.2 ----------------------------------------------------------------------------------------------------------

_SCALED = (  # grid, block, n, length of x, a
    (7, 8, 50, 50, 2.5),
    (2, 32, 40, 61, -3.0),
    (5, 1, 5, 5, 0.5),
    (3, 4, 12, 12, 2.5),
    (1, 16, 3, 20, 4.0),
    (1, 1, 1, 1, 2.5),
    (2, 4, 0, 3, 2.5),
)


def check_2_2(scale):
    """`scale(n, a, x)` multiplies the first n numbers of x by a, one thread per number."""
    cases = [(grid, block, _of(n, size), (n, a, _numbers(size))) for grid, block, n, size, a in _SCALED]
    _try(scale, cases, _judge_scale)
    return (
        f"{len(cases)} launches scaled the first n numbers, each once, and touched nothing behind them; a GPU could "
        "run it."
    )


def _of(n, size):
    return f"n = {n}" + (f" of {size} numbers" if size > n else "")


def _judge_scale(launch, grid, block):
    n, a, x = launch.args
    _expect_written_once(launch, 2, range(n))
    _expect_values(launch, 2, torch.cat([a * x[:n], x[n:]]), f"a is {a}")
    _expect_most(launch, 2, 1, grid * block, "there is a thread for each, and they work at the same time")


# ---- 2.3 ----------------------------------------------------------------------------------------------------------

_REVERSED = (  # grid, block, n, length of x
    (2, 4, 20, 20),
    (1, 1, 6, 8),
    (4, 8, 11, 14),
    (3, 5, 47, 50),
    (1, 8, 0, 3),
    (2, 3, 1, 2),
    (2, 2, 2, 2),
    (3, 1, 9, 9),
)


def check_2_3(reverse):
    """`reverse(n, x)` reverses the first n numbers in place, with any grid."""
    cases = []
    for grid, block, n, size in _REVERSED:
        # Neighbours differ so much in size that swapping by sums and differences loses digits.
        x = _numbers(size) * 16.0 ** (torch.arange(size) % 9)
        cases.append((grid, block, _of(n, size), (n, x)))
    _try(reverse, cases, _judge_reverse)
    return (
        f"{len(cases)} launches turned the first n numbers round, n even, odd, 1 and 0, without a race; a GPU could "
        "run it."
    )


def _judge_reverse(launch, grid, block):
    n, x = launch.args
    middle = (n // 2,) if n % 2 else ()
    _expect_written_once(launch, 1, range(n), may_stay=middle, question="which pair is swapped by nobody?")
    _expect_no_race(launch, "Who must do the reading and writing of a pair?")
    _expect_values(
        launch, 1, torch.cat([x[:n].flip(0), x[n:]]), "where should it have gone, and what should have come?"
    )
    pairs = -(-((n + 1) // 2) // (grid * block))  # per thread
    _expect_most(launch, 1, 2 * pairs, grid * block, "all threads are to share the work")


# ---- 2.4 ----------------------------------------------------------------------------------------------------------

_SUMS = (  # grid, block, n, incx, incy, elements after the last of y, a
    (3, 8, 50, 1, 1, 0, 2.5),
    (2, 4, 21, 2, 3, 0, 2.5),
    (4, 4, 7, 3, 1, 12, -0.5),
    (1, 1, 3, 1, 2, 2, 2.5),
    (2, 3, 1, 7, 5, 4, 8.0),
    (1, 4, 0, 2, 2, 3, 2.5),
)


def check_2_4(saxpy):
    """`saxpy(n, a, x, incx, y, incy)` adds a * x to y, element by element, with strides incx and incy."""
    cases = []
    for grid, block, n, incx, incy, behind, a in _SUMS:
        x, y = _numbers(max(1, (n - 1) * incx + 1)), _numbers(max(0, (n - 1) * incy + 1) + behind, begin=1000)
        cases.append((grid, block, f"n = {n}, incx = {incx}, incy = {incy}", (n, a, x, incx, y, incy)))
    _try(saxpy, cases, _judge_saxpy)
    return (
        f"{len(cases)} launches, with increments of 1 to 7, added a * x to y and to nothing else; a GPU could run it."
    )


def _judge_saxpy(launch, grid, block):
    n, a, x, incx, y, incy = launch.args
    _expect_unwritten(launch, 2)
    _expect_written_once(launch, 4, range(0, n * incy, incy), foreign="it lies in a gap, or behind the last element")
    truth = y.clone()
    truth[::incy][:n] += a * x[::incx][:n]
    _expect_values(launch, 4, truth, f"a is {a}; which element of x belongs here, and does the old y count?")
    stride, taken = grid * block, {}
    for place, (who, *_) in launch.touched(4, "write").items():
        first = taken.setdefault(who, place // incy)
        expect(
            (place // incy - first) % stride == 0,
            f"{_thread(who)} takes the elements {first} and {place // incy} of y: how "
            "far apart are a thread's elements in a grid-stride loop?",
        )


# ---- 2.5 ----------------------------------------------------------------------------------------------------------

_BLOCKS = (  # grid, block, n, elements after the first n
    (4, 32, 128, 0), (4, 32, 100, 0), (3, 8, 20, 4), (2, 5, 9, 0), (3, 4, 5, 7), (1, 1, 1, 0), (2, 7, 0, 3),
)  # fmt: skip


def check_2_5(block_sums):
    """`block_sums(n, x, sums)` writes the sum of block b's numbers to sums[b], added in shared memory."""
    cases = []
    for grid, block, n, behind in _BLOCKS:
        x = torch.cat([_numbers(n) + 0.5, torch.full((behind,), torch.nan)])
        cases.append((grid, block, _of(n, n + behind), (n, x, _numbers(grid + behind // 2, begin=7000))))
    _try(block_sums, cases, _judge_block_sums)
    return (
        f"{len(cases)} launches, with blocks full, partly filled and empty, left every block's sum; a GPU could run it."
    )


def _judge_block_sums(launch, grid, block):
    n, x, _ = launch.args
    _expect_unwritten(launch, 1)
    _expect_own_reads(launch, n, block)
    name = launch.names[2]
    is_atomic = any(touch.atomic and touch.arg == launch.names[2] for touch in launch.result.touches)
    for element, threads in launch.touched(2, "write").items():
        foreign, many = [who for who in threads if who[0] != element], len(set(threads))
        expect(
            not foreign, f"block {foreign[0][0] if foreign else 0} writes {name}[{element}], which is another block's"
        )
        expect(
            many == 1 or not is_atomic,
            f"{many} threads add to {name}[{element}] itself: add up in shared memory, and write the sum once",
        )
        expect(many == 1, f"{many} threads write {name}[{element}]: which of them is to have the last word?")
    _expect_no_race(launch, "What must happen before a thread may read what another has written?")
    _expect_sums(launch, torch.cat([x[:n], torch.zeros(grid * block - n)]).view(grid, block).sum(1))


def _expect_own_reads(launch, n, block):
    read, name = launch.touched(1, "read"), launch.names[1]
    for element, threads in sorted(read.items()):
        expect(element < n, f"{_thread(threads[0])} reads {name}[{element}], behind the first n")
        expect(
            all(who == divmod(element, block) for who in threads),
            f"{name}[{element}] is read by {_thread(threads[-1])}: each "
            "thread reads its own number alone, and learns the others' in shared memory",
        )
        expect(len(threads) == 1, f"{name}[{element}] is read {len(threads)} times: once is asked")
    missing = [element for element in range(n) if element not in read]
    expect(not missing, f"{name}[{missing[0] if missing else 0}] is read by no thread")


def _expect_sums(launch, truth):
    name = launch.names[2]
    for block, (before, got, should) in enumerate(zip(launch.args[2], launch.after(2), truth)):
        with case(f"{name}[{block}]"):
            expect(got != before, "it is what it was before")
            expect(
                not got.isnan(), "it is not a number: somebody adds a place of the shared array that nobody has written"
            )
            expect(got != should + before, f"it is {got:g}: does what stood there before count?")
            expect(
                got == should,
                f"it is {got:g}, and the block's numbers add up to {should:g}: which of them are missing?",
            )
