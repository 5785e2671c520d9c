"""Observe a rank's messages, and whether it waits for them."""

import inspect

import torch
from torch.distributed import ProcessGroup, Work

from ...parallel.messages import Traffic
from ..expect import expect

_WATCHED = (ProcessGroup, "send"), (ProcessGroup, "recv"), (ProcessGroup, "recv_anysource"), (Work, "wait")


class Messages(Traffic):
    """Count a rank's messages and collectives as `Traffic` does; `expect_waited` finds those not waited for.

    A received message reaches its tensor only in `wait`, so reading too early always shows, not only on a slow machine.
    A message that is not waited for still arrives, so no rank hangs.
    """

    def __enter__(self):
        # getattr_static, because getattr would bind them to the class.
        self._before = [(*method, inspect.getattr_static(*method)) for method in _WATCHED]
        # {id of a Work: (the Work, what to call after its wait)}
        self._under_way, self._has_changed = {}, False
        self._sent_as, self._received_as = set(), set()  # dtypes
        send, recv, recv_anysource, wait = (function for _, _, function in self._before)
        ProcessGroup.send, Work.wait = self._sending(send), self._waiting(wait)
        ProcessGroup.recv, ProcessGroup.recv_anysource = self._receiving(recv), self._receiving(recv_anysource)
        return super().__enter__()

    def __exit__(self, *error):
        for owner, name, function in self._before:
            setattr(owner, name, function)
        return super().__exit__(*error)

    def _sending(self, send):
        def send_and_compare(group, tensors, *others):
            work, (tensor,) = send(group, tensors, *others), tensors
            sent = tensor.clone()
            self._sent_as |= {tensor.dtype} if tensor.numel() else set()
            self._under_way[id(work)] = work, lambda: self._compare(tensor, sent)
            return work

        return send_and_compare

    def _receiving(self, recv):
        def recv_and_put(group, tensors, *others):
            (tensor,) = tensors
            if not tensor.is_contiguous():
                return recv(group, tensors, *others)  # raises an error
            buffer = torch.empty_like(tensor)
            self._received_as |= {tensor.dtype} if tensor.numel() else set()
            work = recv(group, [buffer], *others)
            self._under_way[id(work)] = work, lambda: tensor.detach().copy_(buffer)
            return work

        return recv_and_put

    def _waiting(self, finish):
        def wait(work, *limit):
            result = finish(work, *limit)
            _, then = self._under_way.pop(id(work), (work, None))
            if then is not None:
                then()
            return result

        return wait

    def _compare(self, tensor, sent):
        self._has_changed = self._has_changed or not torch.equal(tensor, sent)

    def expect_waited(self) -> None:
        """Raise Wrong if a message was not waited for, or its tensor changed before the wait ended."""
        expect(
            not self._under_way,
            "nobody waited for a message of isend or irecv: how does a rank know that it has left, or come?",
        )
        expect(
            not self._has_changed,
            "a tensor was changed, or filled by a message, while it was sent: what is then on its way?",
        )

    def plain(self) -> dict[str, list[tuple[int | None, int]] | set[torch.dtype] | list[str]]:
        """Return the counts as plain values that can be pickled; messages of 0 bytes do not count."""
        return {
            "sent": [(rank, num_bytes) for rank, num_bytes in self.sent if num_bytes],
            "sent_as": self._sent_as,
            "received": [(rank, num_bytes) for rank, num_bytes in self.received if num_bytes],
            "received_as": self._received_as,
            "collectives": sorted({name for name, _ in self.collectives}),
        }
