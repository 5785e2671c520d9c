"""A server: a shard, a rule, and two threads per worker, one that receives and one that answers."""

import contextlib
import queue
import threading
import time
from collections import namedtuple
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from . import wire
from .shard import Shard, as_bytes, from_bytes, joined

# One gradient: its worker; the worker's step, from 0; `staleness`, the updates since the worker's pull; `ahead`, the
# steps by which the worker led the slowest one when it began; and the time of arrival (time.monotonic() of this
# machine).
Push = namedtuple("Push", "worker step staleness ahead time_s")


@dataclass
class Served:
    """What a server returns: its number of updates, its pushes in order, its keys, and the workers it lost."""

    num_updates: int = 0
    pushes: list = field(default_factory=list)
    lost: dict = field(default_factory=dict)  # {worker that ended without leaving: time.monotonic()}
    parameters: dict = field(default_factory=dict)  # {key: tensor}


def serve(plan, tensors, make_optimizer, rule, watch=None):
    """Serve this rank's keys of `plan`, starting from `tensors`, until all workers have left; return Served.

    `make_optimizer(list of parameters)` returns a torch.optim optimizer. `watch(num_updates, {key: tensor})` is called
    after each update, before any worker can pull. If it returns True, training is over: from then on `pull` returns
    False, and gradients that still arrive are dropped. A spare waits until it is added or training ends.

    Raises ValueError for a rank that is neither, and what the optimizer or `watch` raises.
    """
    rank = dist.get_rank()
    if rank in plan.servers:
        shard = Shard({name: tensors[name] for name in plan.held[rank]}, make_optimizer)
        return _Server(plan, shard, rule, watch).run()
    if rank not in plan.spares:
        raise ValueError(f"rank {rank} does not serve: the servers are {plan.servers}, the spares {plan.spares}")
    taken = _take_over(plan, rank, make_optimizer)
    return Served() if taken is None else _Server(*taken[:2], rule, watch, *taken[2:]).run()


def _take_over(plan, rank, make_optimizer):
    """A spare's part of the hand-over: (plan with this rank, its shard, {worker: its steps}); None if never needed."""
    first = plan.servers[0]
    what, _, _, num_bytes = wire.recv_header(first)
    if what == wire.NEVER:
        return None
    said = from_bytes(wire.recv(first, num_bytes, torch.uint8))
    for server in said["servers"]:
        if server not in plan.servers:  # another former spare
            plan = plan.with_server(server)
    others = [wire.recv(server, wire.recv_header(server)[-1], torch.uint8) for server in plan.servers[1:]]
    shard = joined([said["given"], *(from_bytes(other)["given"] for other in others)], make_optimizer)
    return plan.with_server(rank), shard, said["clocks"]


class _Server:
    def __init__(self, plan, shard, rule, watch, clocks=None):
        self.rank, self.plan, self.shard, self.rule, self.watch = dist.get_rank(), plan, shard, rule, watch
        # {worker: steps} of the workers present
        self.clocks = dict.fromkeys(plan.workers, 0) if clocks is None else clocks
        self.seen = {}  # worker: (updates made at its last pull, steps it was ahead then)
        self.waiting = {}  # worker: (step, its gradients), if the rule sums them
        self.asking = set()  # workers that have asked for another server
        self.left = {}  # worker: its steps, for workers that have left
        self.served, self.fault, self.is_over = Served(), None, False
        self.changed = threading.Condition()  # condition and lock for all of the above

    def run(self):
        for worker in list(self.clocks):
            threading.Thread(
                target=self._listen, args=(worker,), name=f"listens to worker {worker}", daemon=True
            ).start()
        with self.changed:
            self.changed.wait_for(lambda: self.fault or not self.clocks)
        if self.fault:
            raise self.fault
        if self.rank == self.plan.servers[0]:
            for spare in self.plan.spares:
                with contextlib.suppress(wire.Lost):
                    wire.send(spare, wire.NEVER)
        self.served.parameters = {name: p.detach() for name, p in self.shard.parameters.items()}
        return self.served

    def _listen(self, worker):
        """Queue the requests of `worker` until it leaves or ends; this thread notices its end at once."""
        requests = queue.SimpleQueue()
        threading.Thread(
            target=self._answer, args=(worker, requests), name=f"answers worker {worker}", daemon=True
        ).start()
        try:
            while (header := wire.recv_header(worker))[0] != wire.LEAVE:
                requests.put(header)
            requests.put(None)
        except wire.Lost:
            with self.changed:
                self.served.lost[worker] = time.monotonic()
                self._forget(worker)

    def _answer(self, worker, requests):
        """Answer the requests of `worker` one after the other."""
        answers = {wire.PULL: self._pull, wire.PUSH: self._push, wire.ADD: self._add}
        try:
            while (header := requests.get()) is not None:
                answers[header[0]](worker, *header[1:])
            with self.changed:
                self.left[worker] = self.clocks.get(worker)
                self._forget(worker)
        except wire.Lost:
            pass  # the listening thread handles it
        except BaseException as fault:
            with self.changed:
                self.fault = fault
                self.changed.notify_all()

    def _forget(self, worker):
        """Drop `worker`, so that no other waits for it."""
        self.clocks.pop(worker)
        self._update_if_complete()
        self.changed.notify_all()

    def _pull(self, worker, step, num_about, _):
        rows = wire.read(self.plan.held[self.rank], wire.recv(worker, num_about, torch.int64))
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    self.is_over
                    or self._is_gone(worker)
                    or self._missing(step - 1) is not None
                    or self.rule.may_begin(step, self.clocks)
                )
            )
            if self._is_gone(worker):
                return
            if self.is_over:
                answer = {"what": wire.OVER}
            elif (missing := self._missing(step - 1)) is not None:  # nothing of this step may be pushed then
                answer = {"what": wire.GONE, "number": missing}
            else:
                self.seen[worker] = self.served.num_updates, step - min(self.clocks.values())
                answer = {"what": wire.DONE, "values": self.shard.read(rows)}
        wire.send(worker, **answer)

    def _push(self, worker, step, num_about, num_values):
        rows = wire.read(self.plan.held[self.rank], wire.recv(worker, num_about, torch.int64))
        gradients = self.shard.gradients(rows, wire.recv(worker, num_values, self.plan.dtype))
        with self.changed:
            if self.is_over or self._is_gone(worker):
                return
            updates, ahead = self.seen.get(worker, (0, 0))
            push = Push(worker, step, self.served.num_updates - updates, ahead, time.monotonic())
            self.served.pushes.append(push)
            self.clocks[worker] = step + 1
            if self.rule.adds_up:
                self.waiting[worker] = step, gradients
                self._update_if_complete()
            else:
                weight = self.rule.weight(push.staleness)
                self._update([{name: weight * gradient for name, gradient in gradients.items()}])
            self.changed.notify_all()

    def _is_gone(self, worker):
        return worker not in self.clocks

    def _missing(self, step):
        """A worker whose gradient of this step never comes, if the rule sums all workers' gradients; else None."""
        if not self.rule.adds_up:
            return None
        return next(iter((*self.served.lost, *(worker for worker, steps in self.left.items() if steps <= step))), None)

    def _update_if_complete(self):
        if self.waiting and self.waiting.keys() >= self.clocks.keys():
            step = next(iter(self.waiting.values()))[0]
            if self._missing(step) is None:
                # a fixed order gives identical bits
                self._update([self.waiting[worker][1] for worker in sorted(self.waiting)])
                self.waiting.clear()

    def _update(self, gradients):
        self.shard.update(gradients)
        self.served.num_updates += 1
        if self.watch is not None:
            values = {name: p.detach() for name, p in self.shard.parameters.items()}
            self.is_over = self.watch(self.served.num_updates, values) is True

    def _add(self, worker, rank, *_):
        """Hand keys over to `rank` once all workers have asked, since no request is then in flight."""
        with self.changed:
            self.asking.add(worker)
            while rank not in self.plan.servers and not self._is_gone(worker):
                if self.asking >= self.clocks.keys():
                    self._hand_over(rank)
                    self.asking.clear()
                    self.changed.notify_all()
                else:
                    self.changed.wait()
        wire.send(worker, wire.DONE)

    def _hand_over(self, rank):
        plan = self.plan.with_server(rank)
        self.shard, given = self.shard.split(set(plan.held[rank]))
        said = {"servers": list(self.plan.servers), "clocks": dict(self.clocks), "given": given}
        try:
            wire.send(rank, wire.HAND_OVER, values=as_bytes(said))
        except wire.Lost as error:
            raise RuntimeError(
                f"rank {rank} is gone, which was about to serve: its keys were under way to it"
            ) from error
        self.plan = plan
