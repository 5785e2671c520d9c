"""The pictures of schedules: what is held over time, and that each of them is drawn with its text."""

from course_utils.chapters.c06_splitting_a_model_by_layers import figures
from course_utils.parallel import pipeline

SCHEDULES = {"naive": pipeline.naive, "GPipe": pipeline.gpipe, "1F1B": pipeline.one_forward_one_backward}


def test_what_is_held_peaks_as_the_schedule_says():
    for make in SCHEDULES.values():
        for stage in range(4):
            schedule = make(4, 8)
            curve = figures.held(pipeline.place(schedule), stage)
            assert max(count for _, count in curve) == pipeline.peak_activations(schedule)[stage]
            assert curve[0][0] == 0.0 and curve[-1][1] == 0


def test_the_pictures_are_drawn(capsys):
    figures.cut_in_two("the cut")
    placed = {f"{name}: drawn": pipeline.place(make(4, 8)) for name, make in SCHEDULES.items()}
    figures.schedules(placed, "three charts", until=38, source="computed")
    for M in (8, 2):  # with two micro-batches four stages have no steady state
        schedule = pipeline.one_forward_one_backward(4, M)
        figures.phases_1f1b(
            pipeline.place(schedule), pipeline.phases_1f1b(schedule), f"the phases, {M}", source="computed"
        )
    said = capsys.readouterr().out
    assert all(f"Figure: {alt}" in said for alt in ("the cut", "three charts", "the phases, 8", "the phases, 2"))


def test_two_stages_of_a_device_are_drawn(capsys):
    spans = pipeline.place(pipeline.interleaved_1f1b(2, 4, 2), 0.5, 1, num_devices=2)
    figures.interleaved(spans, 2, "two stages per device", source="computed")
    assert "Figure: two stages per device" in capsys.readouterr().out
