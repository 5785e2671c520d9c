"""Page faults and limits, each in a process of its own: what they change cannot be taken back."""

import pytest

from course_utils import launch


def faults(keeps):
    import torch

    from course_utils.measure import host_memory
    from course_utils.models import LectureNet

    if keeps:
        host_memory.keep_freed_memory()
    else:
        host_memory.return_freed_memory()
    model, x = LectureNet(), torch.randn(16, 3, 32, 32)
    for _ in range(3):
        model(x).sum().backward()
    with host_memory.page_faults() as found:
        for _ in range(3):
            model(x).sum().backward()
    return found.num_faults, found.system_s


def test_memory_that_is_kept_is_not_fetched_again():
    returned, seconds = launch(faults, False, world_size=1)[0]
    kept, _ = launch(faults, True, world_size=1)[0]
    assert returned > 3 * kept + 8
    assert seconds >= 0


def take(num_bytes):
    import torch

    from course_utils.measure import host_memory

    host_memory.return_freed_memory()
    torch.ones(8)
    assert host_memory.allow(2**25, "cpu") > 2**20  # what Python and torch hold
    for _ in range(4):
        torch.ones(num_bytes, dtype=torch.uint8)  # each is freed before the next
    return "fits"


def test_an_allowance_counts_what_is_held_and_not_what_was_freed():
    assert launch(take, 2**24, world_size=1)[0] == "fits"
    with pytest.raises(Exception, match="can't allocate memory"):
        launch(take, 2**26, world_size=1)
