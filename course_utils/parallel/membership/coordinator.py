"""Who is alive, who is in, and which steps count: the one process that decides, so that all others agree."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time

import torch.distributed as dist


class Coordinator:
    """Knows which replicas are alive and decides whether a step counts; use it in a `with`.

    The first generation begins when `num_replicas` have joined. Who joins later comes in after a step that counts.
    `address` is what `Member` needs. It listens on `host` only.

    `events` lists what happened, a dict each, with `time_s` (as `time.time()`) and `what`: "joined", "left" and "died"
    with `member`; "voted" with `member`, `stage`, `step` and `ok`; "decided" with `stage`, `step`, `ok` and `members`,
    those that could vote; "generation" with its number, `generation`, and its `members`.
    """

    def __init__(self, num_replicas, host="127.0.0.1"):
        self.num_replicas, self.host, self.events = num_replicas, host, []
        self.generation, self.members = 0, []
        self._connected = {}  # of those who are alive: {member: where to write to it}
        self._votes, self._current = {}, set()  # who has the parameters of now

    def __enter__(self):
        with socket.create_server((self.host, 0)) as listener:
            port, fd = listener.getsockname()[1], os.dup(listener.fileno())
        # The store takes over the socket: alone, it would listen on all interfaces.
        self._store = dist.TCPStore(self.host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
        listener = socket.create_server((self.host, 0))
        self.address = f"{self.host}:{listener.getsockname()[1]}"
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        serving = self._serve(listener)
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[serving], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()
        self._store = None

    async def _serve(self, listener):
        server = await asyncio.start_server(self._attend, sock=listener)
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _attend(self, reader, writer):
        """Listen to one member until its connection is closed."""
        member, end = None, "died"
        with contextlib.closing(writer), contextlib.suppress(OSError, json.JSONDecodeError, asyncio.CancelledError):
            asked = json.loads(await reader.readline())["join"]
            if asked in self._connected:
                self._tell(writer, refused=f"there is a member {asked} already")
                return
            member, self._connected[asked] = asked, writer
            self._note("joined", member=member)
            self._decide()
            while (line := await reader.readline()).endswith(b"\n"):
                if (vote := json.loads(line)) == "leave":
                    end = "left"
                    break
                self._votes[member] = vote
                self._note("voted", member=member, **vote)
                self._decide()
        if member is None or self._stop.is_set():
            return
        del self._connected[member]
        self._current.discard(member)
        self._note(end, member=member)
        if member in self.members:
            for other in self._living():
                self._tell(self._connected[other], gone=member)  # it may wait for this one in a group that is made
            self._decide()

    def _living(self):
        return [member for member in self.members if member in self._connected]

    def _decide(self):
        """If all members have voted or died, tell those who are left the outcome, and who they are from now on."""
        living, everybody = self._living(), sorted(self._connected)
        if self.generation == 0:
            if len(everybody) == self.num_replicas:
                self._current = set(everybody)  # all begin with the same parameters
                self._begin(everybody, True)
        elif not living:
            self._begin(everybody, False)  # new ones, who never got the parameters: they must be told
        elif all(member in self._votes for member in living):
            ok = all(self._votes.get(member, {"ok": False})["ok"] for member in self.members)
            stage, step = (self._votes[living[0]][name] for name in ("stage", "step"))
            self._note("decided", stage=stage, step=step, ok=ok, members=self.members)
            if ok and stage == "state":
                self._current |= set(living)
            self._begin(everybody if ok and stage == "step" else living, ok)

    def _begin(self, members, ok):
        """Tell all of `members` whether the last vote was `ok`; they are a new generation if it was not, or others."""
        self._votes = {}
        if members != self.members or not ok:
            self.generation, self.members = self.generation + 1, members
            self._note("generation", generation=self.generation, members=members)
        answer = {
            "ok": ok, "generation": self.generation, "members": members,
            "current": sorted(self._current), "store": self._store.port,
        }  # fmt: skip
        for member in members:
            self._tell(self._connected[member], **answer)

    def _tell(self, writer, **message):
        writer.write(json.dumps(message).encode() + b"\n")

    def _note(self, what, **fields):
        self.events.append({"time_s": time.time(), "what": what} | fields)
