"""Chapter 02's figures: every thread of a launch is drawn."""

from course_utils.chapters.c02_a_cuda_kernel import figures


def test_every_thread_of_a_launch_is_drawn(shown):
    figures.launch_grid("add[3, 8](x)", num_blocks=3, num_threads=8, alt="Three blocks.")
    texts = [text.get_text() for text in shown[0].axes[0].texts]
    assert sum(text.isdigit() for text in texts) == 24
    assert [text for text in texts if text.startswith("block")] == ["block 0", "block 1", "block 2"]
