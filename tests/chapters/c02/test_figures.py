"""Chapter 02's figures: every thread of a launch is drawn, and every piece that a warp fetches."""

from course_utils.chapters.c02_a_cuda_kernel import figures


def test_every_thread_of_a_launch_is_drawn(shown):
    figures.launch_grid("add[3, 8](x)", num_blocks=3, num_threads=8, alt="Three blocks.")
    texts = [text.get_text() for text in shown[0].axes[0].texts]
    assert sum(text.isdigit() for text in texts) == 24
    assert [text for text in texts if text.startswith("block")] == ["block 0", "block 1", "block 2"]


def test_the_pieces_that_a_warp_fetches_are_shaded_and_counted(shown):
    rows = {"neighbours": {t: t for t in range(4)}, "apart": {t: 4 * t for t in range(4)}}
    figures.fetched_pieces(rows, num_elements=16, per_piece=4, alt="Two rows.")
    texts = [text.get_text() for text in shown[0].axes[0].texts]
    assert "neighbours: 1 pieces; 16 of 16 bytes are used" in texts
    assert "apart: 4 pieces; 16 of 64 bytes are used" in texts
    shades = [patch.get_facecolor() for patch in shown[0].axes[0].patches if patch.get_width() == 4]
    assert len(shades) == 8 and shades.count((1, 1, 1, 1)) == 3  # of the first row's pieces, three are not fetched
