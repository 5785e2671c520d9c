"""Observe a rank's collectives: whether it waits for them, and whether all ranks call the same ones."""

import inspect
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_leaves, tree_map

from ... import cells
from ..expect import Wrong, expect
from .meeting import meet
from .messages import Messages

# {method: index of the argument that is sent}; argument 0 is filled. With None, ranks are compared and nothing is
# delayed.
_SENT = {
    "allreduce": 0, "broadcast": 0, "reduce": 0, "allgather": 1, "_allgather_base": 1, "all_gather_single": 1,
    "reduce_scatter": 1, "_reduce_scatter_base": 1, "reduce_scatter_single": 1, "gather": None, "scatter": None,
    "alltoall": None, "alltoall_base": None, "all_to_all_single": None, "barrier": None,
}  # fmt: skip
_OF_TWO_TENSORS = {"_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single"}


class Collectives(Messages):
    """A rank's messages and collectives; a collective's result reaches its tensors only in `wait`.

    The ranks meet before each collective and at the end of the block. If they call different collectives, or with
    tensors that do not fit, all of them raise the same Wrong, and there is no deadlock. `called` has the functions'
    names; `in_default` tells whether all calls used the default group.
    """

    def __enter__(self):
        super().__enter__()
        self.called, self.in_default, self._late = [], True, {}  # _late: {id of a Work: the method}
        for name in _SENT:
            if hasattr(ProcessGroup, name):
                call = inspect.getattr_static(ProcessGroup, name)
                self._before.append((ProcessGroup, name, call))
                setattr(ProcessGroup, name, self._meeting(name, call))
        return self

    def __exit__(self, kind, *error):
        super().__exit__(kind, *error)
        if kind is None:
            self._meet("the end of your function", "", "")

    def say(self) -> Any:
        """Return what this rank tells the others when they meet; for subclasses."""

    def heard(self, everyone: list[Any]) -> None:
        """Receive what each rank has told; for subclasses."""

    def started(self, name: str, tensors: list[torch.Tensor]) -> Any:
        """Handle the start of a collective that fills `tensors`; `arrived` is given the return value."""

    def arrived(self, what: Any) -> None:
        """Handle the end of the wait for a collective; `what` is from `started`."""

    def expect_waited(self) -> None:
        late = any(number in self._under_way for number in self._late)
        expect(
            not late,
            "nobody waited for a collective that was started with async_op=True: how does a rank know that its numbers "
            "are there?",
        )
        super().expect_waited()

    def _meeting(self, name, call):
        def meet_and_call(group, *args, **options):
            called, line = _called(name)
            self.called.append(called)
            self.in_default = self.in_default and group == dist.group.WORLD
            if group.size() == dist.get_world_size():
                self._meet(called, _size(name, args), f" at `{line}`" if line else "")
            if name in _OF_TWO_TENSORS:
                _expect_parts(called, *args[:2], is_gather="gather" in name)
            return (
                call(group, *args, **options)
                if _SENT[name] is None
                else self._call_late(name, call, group, *args, **options)
            )

        return meet_and_call

    def _call_late(self, name, call, group, filled, *args, **options):
        if _SENT[name] == 0:
            buffers = tree_map(_copy, filled)
        else:
            buffers, args = tree_map(torch.empty_like, filled), (tree_map(_copy, args[0]), *args[1:])
            tree_map(_spoil, filled)  # may overwrite what is sent, so that was copied
        what = self.started(name, tree_leaves(filled))
        work = call(group, buffers, *args, **options)

        def put():
            tree_map(lambda tensor, buffer: tensor.detach().copy_(buffer), filled, buffers)
            self.arrived(what)

        self._under_way[id(work)] = work, put
        self._late[id(work)] = name
        return work

    def _meet(self, *told):
        everyone = meet([told, self.say()])
        told = [one for one, _ in everyone]
        self.heard([other for _, other in everyone])
        if any(one[:2] != told[0][:2] for one in told):
            raise Wrong(
                f"the ranks do not do the same: {_by_rank(told)}. Every rank must call the same collectives, in the "
                "same order and with equally many numbers of one dtype: on what does it depend here?"
            )


def _called(name):
    """Return the name of the function that the student called, and the source line."""
    stack = traceback.extract_stack(limit=40)
    own = cells.innermost([(frame.filename, frame.lineno, frame.name) for frame in stack])
    if own is None:
        return name, ""
    return next(frame.name for frame in stack[own + 1 :] if frame.name != "wrapper"), stack[own].line


def _size(name, args):
    tensors = tree_leaves(args[_SENT[name]]) if _SENT[name] is not None else []
    num_numbers = sum(tensor.numel() for tensor in tensors)
    return f" with {num_numbers} number{'s' * (num_numbers != 1)} of {_dtype(tensors[0])}" if tensors else ""


def _by_rank(told):
    """Return a text that says what each rank called; each source line appears once."""
    stories, lines = {}, set()
    for rank, (called, size, line) in enumerate(told):
        ranks, _ = stories.setdefault(called + size, ([], "" if line in lines else line))
        ranks.append(str(rank))
        lines.add(line)
    return "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {' and '.join(ranks)} came to {story}{line}"
        for story, (ranks, line) in stories.items()
    )


def _expect_parts(called, filled, sent, is_gather):
    part, whole = (sent, filled) if is_gather else (filled, sent)
    times = dist.get_world_size()
    fits = part.dim() and whole.shape == (part.shape[0] * times, *part.shape[1:])
    given = (
        f"{called} was given a part, {tuple(part.shape)} in {_dtype(part)}, and a whole, {tuple(whole.shape)} in "
        f"{_dtype(whole)}"
    )
    expect(
        fits and part.dtype == whole.dtype,
        f"{given}: {times} parts, one behind the other along dim 0, must make the whole",
    )


def _dtype(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def _copy(tensor):
    return tensor.detach().clone()


def _spoil(tensor):
    if tensor.is_floating_point():
        tensor.detach().fill_(torch.nan)  # old memory could hold the right numbers by chance
