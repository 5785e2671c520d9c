"""What each framework does with one variable, one gradient and eight samples, in workers of `launch`.

In each process, a variable starts at the number of its rank, its gradient is that number, and samples 0 to 7 are
distributed, in batches of four. Each function returns {"rank", "replicas", "start", "gradient", "samples"} as they are
afterwards. DDP uses DistributedSampler; Horovod has no sampler of its own, so a slice is used.
"""

import json
import os

from ...frameworks.meeting import meet_for_horovod

NUM_SAMPLES = 8


def ddp():
    """Use DistributedDataParallel, in launch's process group."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    rank = dist.get_rank()
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, rank)
    model = DistributedDataParallel(layer)
    start = layer.weight.item()
    (rank * model(torch.ones(1, 1))).sum().backward()
    samples = list(DistributedSampler(range(NUM_SAMPLES), shuffle=False))
    return {
        "rank": rank,
        "replicas": dist.get_world_size(),
        "start": start,
        "gradient": layer.weight.grad.item(),
        "samples": samples,
    }


def horovod(folder):
    """Use Horovod; `folder` is as for meet_for_horovod."""
    meet_for_horovod(folder)
    import horovod.torch as hvd
    import torch

    hvd.init()
    variable = torch.tensor([float(hvd.rank())])
    hvd.broadcast_parameters({"variable": variable}, root_rank=0)
    gradient = hvd.allreduce(torch.tensor(float(hvd.rank())))
    samples = list(range(NUM_SAMPLES))[hvd.rank() :: hvd.size()]
    return {
        "rank": hvd.rank(),
        "replicas": hvd.size(),
        "start": variable.item(),
        "gradient": gradient.item(),
        "samples": samples,
    }


def multi_worker(ports):
    """Use TensorFlow's MultiWorkerMirroredStrategy; `ports` has the ports of all workers."""
    index = int(os.environ["RANK"])
    workers = [f"127.0.0.1:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variable = tf.Variable(float(index))
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(NUM_SAMPLES).batch(4))
    samples = [number for part in data for number in strategy.experimental_local_results(part)[0].numpy().tolist()]

    @tf.function
    def average():  # returns the sum over the replicas
        return strategy.reduce("sum", strategy.run(lambda: tf.constant(float(index))), axis=None)

    return {"rank": strategy.cluster_resolver.task_id, "replicas": strategy.num_replicas_in_sync,
            "start": float(variable.numpy()), "gradient": float(average()), "samples": samples}  # fmt: skip
