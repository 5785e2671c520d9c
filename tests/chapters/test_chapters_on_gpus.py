"""Chapters 05 to 13 and 16, run cell by cell on a node with four simulated GPUs (`helpers.played_cells`).

What a chapter proves is proved there too, figures name the GPUs that were used, and no collective is out of order.
"""

import pytest
import torch

from course_utils import hardware, plots
from tests.helpers.played_cells import played_notebook, run_chapter

# By chapter: numbers made smaller, as {text of a cell: replacement}, and words of cells of which only the definitions
# run: drawings, arithmetic, what starts programs of its own, and proofs that another cell's launch repeats.
CELLS = {
    "05": ({
        "(4, 16, 64)": "(4, 16)", "block_s=0.02": "block_s=0", "(2, 3, NUM_DEVICES)": "(3,)",
        "(32, 13, 10, 5, 4)": "(8, 7, 6, 5, 4)",
    }, ("figures.three_ways", "figures.data_parallel_step", "splits.compare",
        # nn.DataParallel copies in CUDA's C++
        "wrap(spy)", "library(x)", "device_zero.count", "device_zero.by_device", "device_zero.measured")),
    "06": ({
        "WIDTH, NUM_BLOCKS = 512, 8": "WIDTH, NUM_BLOCKS = 16, 8",
        "(1, 2, 4, 8, 16, 32)\ntruth32": "(1, 8)\ntruth32",
    }, ("figures.cut_in_two", "bubble_fraction(s)", "figures.phases_1f1b(", "range(1, 9)")),
    "07": ({
        "full(25, quick=1)": "2", "(64, 28, 28)": "(64, 4, 4)", "else (256, 256)  # a GPU": "else (2, 2)  # a GPU",
        "else 4096  # work": "else 8  # work",
        "(256, 512, 1024, 2048)": "(8, 16, 32)", "block_s=0.01": "block_s=0", "block_s=0.02": "block_s=0",
        "num_epochs=10": "num_epochs=1", "range(1, 11), losses": "[1], losses",
    }, ("figures.columns_and_rows", "figures.channels", "figures.pair_and_attention", "figures.split_tokens",
        "sizes = [2**k for k in range(4, 12)]", "[f(4, B, 64, 256)")),
    "08": ({
        "2**10, 2**20": "2**6, 2**12", "range(14)]": "range(9)]", "rounds=30": "rounds=1",
        "ranks = Ranks(WORLD_SIZE)": "", "ranks.close()": "",
        "    prove_equal(all_reduce_from_halves)\n    all_reduce_ring = all_reduce_from_halves":
        "    all_reduce_ring = ring.all_reduce",
        "for name, way in WAYS.items():\n    steps, share, busiest": "for name, way in ():\n    steps, share, busiest",
    }, ("figures.hops", "figures.tree(8", "draw(\n    broadcast", "draw(all_reduce, reduce_scatter", "debug=True",
        "step_slider", "plots.holdings", "join_by_hand", "swap()", "pass_along()", "prove_equal(all_reduce_t",
        "prove_equal(all_reduce_doubling)", "prove_equal(all_reduce_halving)")),
    "09": ({
        "rounds=30": "rounds=1", "(1, 2, 4, 8)": "(1, 2)", "BATCH = 64  #": "BATCH = 4  #",
        "BLOCK = 10 if": "BLOCK = 1 if",
        "digits.images, digits.labels, NUM_EPOCHS,": "digits.images[:64], digits.labels[:64], NUM_EPOCHS,",
        "(1, WORLD_SIZE)": "(WORLD_SIZE,)", "if on_gpus and num_devices > 1:\n    num_used": "if False:\n    num_used",
    }, ("figures.replicas", "figures.ways_to_send", "WORLD_SIZE, **communication", "average=average_gradients,",
        "proofs =", "480_312", "(False, True):\n    sent", "num_workers = [1, 2, 4", "run_program", "read_text()")),
    "10": ({
        "range(10)": "range(2)", "[:10]": "[:2]", "(1, 2, 4, 8)": "(4, 8)",
        **{f"\nprove({stage})": "" for stage in ("Replica, 0", "Stage1, 1", "Stage2, 2", "Stage3, 3")},
    }, ("figures.sharded_step", "two_collectives", "seen |= watch_all", "peak, % of", "show_dtypes", "save_twice",
        "load=at[8]", "trained to step", "watch_making(*ways)", "train_within", "three_blocks = ", "peak_of_forms")),
    "11": ({
        "(0, 1, 2, 4), {}": "(0,), {}", "num_draws=128": "num_draws=32",
        "(SIZE, rates)}, seeds": "(SIZE, rates[:2])}, seeds",
        "rates_of(BOLD, 256, recipe), seed": "rates_of(BOLD, 256, recipe)[:5], seed",
        "rates_of(CAUTIOUS, SIZE, recipe))": "rates_of(CAUTIOUS, SIZE, recipe)[:2])",
    }, ("figures.large_steps", "figures.outcomes", "class Guard", "print_ladder(", "find_break(table)", "kinds = {",
        "(256, 384, 512, 1024):", 'grid["BOLD"][256]', "draw_step", "BARS.items()")),
    "12": ({
        "size=64 if ON_GPUS else 32": "size=8", "MICRO_BATCH, COUNTS = 56": "MICRO_BATCH, COUNTS = 4",
        "(2, 4), BARS.items()": "(2,), list(BARS.items())[:1]",
        "(False, True), (2, 4), BARS": "(False, True), (2,), [torch.float64]",
        "product(SIZES.items(), BARS.items())": "product(list(SIZES.items())[1:], list(BARS.items())[:1])",
        "UNIT_S, UNITS = 0.006": "UNIT_S, UNITS = 0.0005",
        "in THEIRS.items()": "in list(THEIRS.items())[3:4]",
        "[(1, 2, 2), (2, 2, 2)], BARS.items()": "[(1, 2, 2)], list(BARS.items())[:1]",
    }, ("figures.stages_and_shards", "count_block(b", "send_to_a_late_receiver", "late[dist.send]", "num_layers, t, p",
        "figures.mesh_of_eight", "run_library_mesh((2, 2, 2)")),  # of eight ranks
    "13": ({"(None, TWO_NODES)": "(TWO_NODES,)"},
           ("figures.nodes", "whoami", "start_agent", "ELASTIC", "figures.restart(", "wait_alone", "essential(",
            "wait_in_vain", "--tee",
            "difflib.ndiff(*parts)", "ring_s(n, *network)")),
    "16": ({
        "[64, 128, 256, 512, 1024], 128, 4": "[16, 32], 128, 4", "(1, 512, 64": "(1, 16, 64", "s=2048": "s=64",
        "full(7, quick=1)": "1", "full([256, 512, 1024], quick=[256])": "[32]",
        # which compares devices by a name that a simulated GPU's tensor does not have
        "from torch.utils.checkpoint import checkpoint as recompute": "recompute = lambda f, *x, use_reentrant: f(*x)",
        "make_batches(5)": "make_batches(1)", "world_sizes=(1, 2, 3, 4)": "world_sizes=(2, 4)",
        **{f"world_sizes={sizes}": "world_sizes=(2,)" for sizes in ((1, 3, 4), (2, 3, 4), (1, 2, 4))},
        "num_pieces=4": "num_pieces=2", "num_pieces=n, w": "num_pieces=min(n, 2), w", "hold, 1024": "hold, 32",
        "for N in (1, 2, 4)}": "for N in (1, 2)}", "runs[N][0]": "runs[min(N, 2)][0]", "runs[4]": "runs[2]",
        # nothing is recomputed
        "== kept_bytes(s, N, again)": "== kept_bytes(s, N, False)", "(4 if again else 3)": "3",
    }, ("figures.ring", "plans.memory_plans", "figures.masks", "figures.tokens_for_heads", "figures.running_softmax",
        "run_library, *tensors", "Liu and others", "cut[8] <", "tested[name]",
        "(alone,), after", "errors[0] < 1e-12")),
}  # fmt: skip


@pytest.mark.parametrize("chapter", CELLS)
def test_cells_on_four_gpus(chapter):
    smaller, left_out = CELLS[chapter]
    run_chapter(chapter, 4, smaller, left_out)


def test_one_gpu_is_not_timed_as_two():
    names = run_chapter("07", 1, *CELLS["07"])
    ways = ["half alone", "half in a thread"]  # neither needs a second device
    assert list(names["curves"]) == ways and {way for _, way in names["steps"]} == {"whole", *ways}


@pytest.mark.parametrize(("named", "computes_on"), [(2, "cuda:1"), (1, "cpu"), (1, "cuda:0 cuda:1")])
def test_a_figure_that_names_other_gpus_is_found(named, computes_on):
    with played_notebook(4) as (_, used), pytest.raises(AssertionError, match="the caption says: this machine: "):
        with used.in_cell():
            for device in computes_on.split():
                torch.ones(2, device=device) + 1
        with used.in_cell():
            plots.bars({"a": 1}, "ms", "Bars.", placement=hardware.devices(named))
