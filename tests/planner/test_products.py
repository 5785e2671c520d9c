"""A matrix product takes as long as its waves of tiles, or its bytes."""

from dataclasses import replace

import pytest

from course_utils.planner import GPUS, Efficiency
from course_utils.planner.products import MISALIGNED, TILES, Product

A100 = replace(GPUS["A100-80"], efficiency=Efficiency(1.0, 1.0, 1.0))
LARGEST = TILES[0][:2]


def forward(product, micro_batch=1, tensor=1, gpu=A100):
    return product.seconds(micro_batch, tensor, gpu, "bf16")[0]


def test_a_full_wave_reaches_the_peak():
    rows, columns = LARGEST[0] * 12, LARGEST[1] * 9
    assert 12 * 9 == A100.multiprocessors
    product = Product(rows, columns, 65536, "columns")
    assert forward(product) == pytest.approx(2 * rows * columns * 65536 / 312e12)


def test_one_tile_more_costs_a_wave():
    full = Product(LARGEST[0] * 12, LARGEST[1] * 9, 65536, "columns")
    more = replace(full, rows=full.rows + 8)
    assert forward(more) > 1.4 * forward(full)


def test_a_narrow_product_takes_as_long_as_its_bytes():
    product = Product(2**20, 64, 64, "columns")
    assert forward(product) == pytest.approx(2 * (2**20 * 64 * 2 + 64 * 64) / A100.bandwidth)


def test_samples_are_rows_of_one_product_unless_each_has_its_own():
    joined, own = Product(1024, 4096, 4096, "columns"), Product(1024, 4096, 4096, "count", 1)
    assert forward(joined, micro_batch=8) == forward(replace(joined, rows=8 * 1024))
    assert forward(own, micro_batch=8) <= 8 * forward(own)


@pytest.mark.parametrize("split, product", [
    ("columns", Product(8192, 8192, 8192, "columns")), ("depth", Product(8192, 8192, 8192, "depth")),
    ("count", Product(2048, 2048, 128, "count", 64)),
])  # fmt: skip
def test_tensor_parallelism_divides_a_product_but_not_its_waste(split, product):
    whole, half = product.seconds(1, 1, A100, "bf16"), product.seconds(1, 2, A100, "bf16")
    assert all(one / 2 <= two <= one for one, two in zip(whole, half)), split


def test_the_backward_pass_has_two_products_of_the_same_size():
    product = Product(8192, 8192, 8192, "columns")
    before, after = product.seconds(1, 1, A100, "bf16")
    assert after == pytest.approx(2 * before)


def test_sizes_that_are_no_multiples_of_eight_are_slow():
    assert forward(Product(2048, 2048, 148, "count", 64)) > MISALIGNED / 2 * forward(
        Product(2048, 2048, 152, "count", 64)
    )


def test_a_device_without_tiles_has_no_waves():
    cpu = replace(A100, multiprocessors=1)
    assert forward(Product(2050, 2050, 2050, "columns"), gpu=cpu) == pytest.approx(2 * 2050**3 / 312e12)
