"""Exchange values between ranks through the store, so that they cannot be mixed up with an answer's messages."""

import itertools
import json
from typing import Any

import torch.distributed as dist

_number = itertools.count()


def meet(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order; `value` is plain (JSON).

    Every rank must call this equally often.
    """
    tell(f"meeting {(number := next(_number))}, rank {dist.get_rank()}", value)
    return [hear(f"meeting {number}, rank {rank}") for rank in range(dist.get_world_size())]


def tell(what: str, value: Any) -> None:
    """Put a value into the store under the key `what`."""
    dist.distributed_c10d._get_default_store().set(what, json.dumps(value))


def hear(what: str) -> Any:
    """Wait for the value of the key `what`, and return it."""
    return json.loads(dist.distributed_c10d._get_default_store().get(what))
