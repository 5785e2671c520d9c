"""A replica's part: groups with those who are there, sums, and the vote on whether they count."""

import contextlib
import io
import json
import queue
import socket
import threading

import torch
import torch.distributed as dist


class Member:
    """A replica's place among those that train together; `number` is its name, which no other may have.

    Waits until it is let in. `members` lists the numbers of all, `rank` is its place in it, `world_size` its length;
    each of `meet` and `commit` may change them. All members must call `meet`, `all_reduce` and `commit` alike.

    Raises ValueError if there is a member `number`, ConnectionError, here and later, if the coordinator has ended, and
    RuntimeError, later, if nobody who has the parameters is left.
    """

    def __init__(self, address, number):
        host, _, port = address.rpartition(":")
        self.number, self.generation, self.members = number, 0, []
        self._host, self._step, self._group, self._error, self._num_failed = host, 0, None, None, 0
        self._socket = socket.create_connection((host, int(port)))
        self._inbox = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._send({"join": number})
        self._hear_outcome()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._send("leave")
        self._group = None
        self._socket.close()

    @property
    def rank(self):
        return self.members.index(self.number)

    @property
    def world_size(self):
        return len(self.members)

    def meet(self, step, *objects):
        """Make a group of the present members, unless they have one; return `step`, or for a new one that of the rest.

        New members get the states of `objects`, which have a `state_dict()` and are the same, in order, on all.
        """
        self._step, is_new, state = step, self.number not in self._current, None
        while self._group is None or not self._current.issuperset(self.members):
            if not self._current:
                raise RuntimeError("nobody who has the parameters is left: start all anew, from a checkpoint")
            if self._group is None:
                self._group = self._make_group()
                self._vote(self._group is not None, "group")
            else:
                state = self._share_state(objects)
                self._vote(state is not None, "state")
        if is_new:
            step, states = torch.load(io.BytesIO(state.numpy()), map_location="cpu", weights_only=True)
            for thing, its_state in zip(objects, states, strict=True):
                thing.load_state_dict(its_state)
        return step

    def all_reduce(self, tensors):
        """Replace each tensor by its sum over all members, in place; False if that failed, and some are not sums."""
        return self._try(lambda: [self._group.allreduce([tensor]).wait() for tensor in tensors])

    def commit(self, ok):
        """Return whether all members have called this with a true `ok`, and no other has died before it could.

        All get the same answer. If it is False, call `meet`, reduce the same gradients again, and vote again.
        """
        return self._vote(ok, "step")

    def _try(self, collectives):
        try:
            collectives()
            return True
        except RuntimeError as error:  # of a rank that has ended, or that has done the next line
            self._error, self._group = error, None  # closes the connections to all others
            return False

    def _share_state(self, objects):
        """Return, on all members, the bytes of one that has the state; None if a member died meanwhile."""
        source = min(self._current.intersection(self.members))
        options = dist.BroadcastOptions()
        options.rootRank = self.members.index(source)
        data, length = torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
        if self.number == source:
            torch.save((self._step, [thing.state_dict() for thing in objects]), file := io.BytesIO())
            data = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
            length += len(data)
        is_shared = self._try(lambda: self._group.broadcast([length], options).wait())
        if is_shared and self.number != source:
            data = torch.empty(int(length), dtype=torch.uint8)
        if is_shared and self._try(lambda: self._group.broadcast([data], options).wait()):
            return data
        return None

    def _make_group(self):
        """Return a group of all members, or None if one of them died before it was made."""
        generation = self.generation

        def make():  # in a thread, which is left alone if it waits for one that has died
            try:
                store = dist.TCPStore(self._host, self._store_port, is_master=False)
                options = dist.ProcessGroupGloo._Options()
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._socket.getsockname()[0])]
                store = dist.PrefixStore(str(generation), store)
                made = dist.ProcessGroupGloo(store, self.rank, self.world_size, options)
            except RuntimeError as error:
                made = error
            self._inbox.put({"made": made, "generation": generation})

        threading.Thread(target=make, daemon=True).start()
        while True:
            message = self._hear()
            if "gone" in message:
                return None
            if "made" in message and message["generation"] == generation:
                if isinstance(message["made"], RuntimeError):
                    self._error = message["made"]
                    return None
                return message["made"]

    def _vote(self, ok, stage):
        self._send({"ok": ok, "stage": stage, "step": self._step})
        before = self.members
        is_ok = self._hear_outcome()
        if before != self.members or (is_ok and stage == "step"):
            self._num_failed = 0
        elif not is_ok:  # and nobody died: a connection broke, or this program has a bug
            self._num_failed += 1
            if self._num_failed == 3:
                raise RuntimeError(f"members {self.members} are alive, but fail again and again") from self._error
        return is_ok

    def _hear_outcome(self):
        """Wait for the coordinator's answer, and return whether the vote was ok."""
        while "ok" not in (answer := self._hear()):
            pass  # of a group that was given up, or of a member that is gone, as the answer will say
        if answer["generation"] != self.generation:
            self._group = None
        self.generation, self.members = answer["generation"], answer["members"]
        self._current, self._store_port = set(answer["current"]), answer["store"]
        return answer["ok"]

    def _hear(self):
        message = self._inbox.get()
        if message is None:
            raise ConnectionError("the coordinator has ended, and with it the training of all members")
        if "refused" in message:
            raise ValueError(message["refused"])
        return message

    def _send(self, message):
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the coordinator has ended, which `_hear` says

    def _listen(self):
        with contextlib.suppress(OSError, ValueError):
            for line in self._socket.makefile("rb"):
                self._inbox.put(json.loads(line))
        self._inbox.put(None)
