"""measure.jobs: of four causes the one that was made is found."""

import time

import pytest
import torch
import torch.distributed as dist

from course_utils import launch, models
from course_utils.measure import jobs


def ask(load_s=0.0, late_s=0.0, batch=64):
    model = models.mlp(d=256)
    if late_s and dist.get_rank() == 1:
        model.register_forward_hook(lambda *_: time.sleep(late_s))
    return jobs.causes(model, torch.rand(batch, 1, 16, 16), torch.zeros(batch, dtype=torch.long), load=lambda: time.sleep(load_s))


@pytest.mark.parametrize("settings, cause", [
    ({"load_s": 1.0}, "waits for data"), ({"late_s": 1.0}, "unequal ranks"), ({"batch": 2}, "small share"),
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
