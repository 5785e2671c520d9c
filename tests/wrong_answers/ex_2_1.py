"""Exercise 2.1: answers that its check must refuse, each with words from the reason that it must give."""

import numpy as np


def forgets_the_turns(element, grid, block):
    return divmod(element, block)


def swaps_the_two(element, grid, block):
    index = element % (grid * block)
    return index % block, index // block


def splits_by_the_grid(element, grid, block):
    return divmod(element % (grid * block), grid)


def deals_blocks_out_in_turn(element, grid, block):
    return element % grid, element // grid % block


def gives_each_thread_a_run(element, grid, block):
    index = element // -(-50 // (grid * block))
    return index // block % grid, index % block


def returns_the_global_index(element, grid, block):
    return element % (grid * block)


def divides_into_fractions(element, grid, block):
    index = element % (grid * block)
    return index / block, index % block


def counts_from_one(element, grid, block):
    index = element % (grid * block)
    return index // block + 1, index % block + 1


def prints_instead_of_returning(element, grid, block):
    if element == 0:
        print(divmod(element, block))


WRONG = [
    (forgets_the_turns, "there are blocks 0 to 2"),
    (swaps_the_two, "which of the two comes first"),
    (splits_by_the_grid, "saw another thread write it"),
    (deals_blocks_out_in_turn, "saw another thread write it"),
    (gives_each_thread_a_run, "saw another thread write it"),
    (returns_the_global_index, "not a pair (block index, thread index)"),
    (divides_into_fractions, "an index is a whole number"),
    (counts_from_one, "saw another thread write it"),
    (prints_instead_of_returning, "None came back, not a pair"),
]


def walks_through_all_threads(element, grid, block):
    while True:
        for b in range(grid):
            for t in range(block):
                if element == 0:
                    return b, t
                element -= 1


def takes_the_two_apart(element, grid, block):
    return [element // block % grid, element % block]


def asks_numpy(element, grid, block):
    return np.unravel_index(element % (grid * block), (grid, block))


RIGHT = [asks_numpy, walks_through_all_threads, takes_the_two_apart]


def never_finds_it(element, grid, block):
    while element >= grid * block:
        element -= grid
        element += grid
    return divmod(element, block)


ENDLESS = [(never_finds_it, "in never_finds_it")]
