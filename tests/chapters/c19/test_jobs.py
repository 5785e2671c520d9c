"""measure.jobs: of four causes the one that was made is found."""

import time

import pytest
import torch
import torch.distributed as dist

from course_utils import launch, models
from course_utils.chapters.c19_choosing import jobs


def ask(load_s=0.0, late_s=0.0, fixed_s=0.0):
    model = models.mlp(d=32)
    pause_s = fixed_s + late_s * (dist.get_rank() == 1)
    model.register_forward_hook(lambda *_: time.sleep(pause_s))
    x, y = torch.rand(4, 1, 16, 16), torch.zeros(4, dtype=torch.long)
    return jobs.causes(model, x, y, load=lambda: time.sleep(load_s))


# A loader that is late; a rank that is late; what a step costs however few its images are.
@pytest.mark.alone
@pytest.mark.parametrize("settings, cause", [
    ({"load_s": 0.3}, "waits for data"), ({"late_s": 0.3}, "unequal ranks"), ({"fixed_s": 0.2}, "small share"),
])  # fmt: skip
def test_the_cause_that_was_made_is_found(settings, cause):
    for found in launch(lambda: ask(**settings), world_size=2):
        assert found.keys() == {"waits for data", "small share", "messages", "unequal ranks"}
        assert all(0 <= share <= 1 for share in found.values())
        assert found[cause] > 0.25, found


def test_micro_batches_train_as_one_batch_does():
    x, y = torch.rand(8, 1, 16, 16, dtype=torch.float64), torch.arange(8)
    ends = []
    for num_parts in (1, 4):
        torch.manual_seed(0)
        model = models.mlp(d=16).double()
        step = jobs.training_step(model, x, y, num_parts)
        step()
        step()
        ends.append(list(model.parameters()))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
