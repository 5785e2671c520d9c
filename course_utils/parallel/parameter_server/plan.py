"""Which server holds which key; a key's tensor lies whole on one server."""

from collections import namedtuple

Key = namedtuple("Key", "shape dtype num_bytes")


class Plan:
    """The keys of a training and the ranks that serve or work; every rank computes the same plan.

    `tensors` is {key: tensor}, such as dict(model.named_parameters()); `spares` are ranks that can become servers
    later. `keys` is {key: Key}. `held` is {server: [keys]}: keys are assigned largest first, each to the server with
    the fewest bytes so far.

    Raises ValueError for more servers than keys, for tensors of several dtypes, and for a rank with two roles or none.
    """

    def __init__(self, tensors, servers, workers, spares=()):
        self.servers, self.workers, self.spares = tuple(servers), tuple(workers), tuple(spares)
        self.keys = {name: Key(tuple(t.shape), t.dtype, t.numel() * t.element_size()) for name, t in tensors.items()}
        self._require_sense()
        self.dtype = next(iter(self.keys.values())).dtype
        self.held = {server: [] for server in self.servers}
        for name in sorted(self.keys, key=self._num_bytes, reverse=True):  # the sort is stable, so equal on every rank
            min(self.held.values(), key=self._sum_bytes).append(name)

    def _require_sense(self):
        ranks = [*self.servers, *self.workers, *self.spares]
        if len(set(ranks)) < len(ranks):
            raise ValueError(
                f"a rank either serves or works: servers {self.servers}, workers {self.workers}, spares {self.spares}"
            )
        if not self.servers or not self.workers:
            raise ValueError("it takes one server and one worker at least")
        if len(self.servers) > len(self.keys):
            raise ValueError(
                f"{len(self.servers)} servers cannot share {len(self.keys)} keys, since a key lies on one server, "
                f"whole: take {len(self.keys)} servers at most"
            )
        dtypes = {key.dtype for key in self.keys.values()}
        if len(dtypes) > 1:
            raise ValueError(
                f"all keys travel in one message, so they need one dtype, and have {sorted(map(str, dtypes))}"
            )

    def with_server(self, rank):
        """The plan in which a spare serves too, with keys taken from the fullest servers while that evens out the load.

        Raises ValueError for a rank that is no spare, and if there is no key that it could take.
        """
        if rank not in self.spares:
            raise ValueError(f"rank {rank} is not one of the spares {self.spares}")
        plan = object.__new__(Plan)
        vars(plan).update(vars(self))
        plan.servers = (*self.servers, rank)
        plan.spares = tuple(spare for spare in self.spares if spare != rank)
        plan.held = {server: list(names) for server, names in self.held.items()} | {rank: []}
        while True:
            room = {
                server: self._sum_bytes(plan.held[server]) - self._sum_bytes(plan.held[rank]) for server in self.servers
            }
            fits = [
                (room[server], self._num_bytes(name), server, name)
                for server in self.servers
                if len(plan.held[server]) > 1
                for name in plan.held[server]
                if self._num_bytes(name) < room[server]
            ]
            if not fits:
                break
            # From the server with the largest surplus that can give, take the largest key smaller than that surplus.
            *_, giver, moved = max(fits)
            plan.held[giver].remove(moved)
            plan.held[rank].append(moved)
        if not plan.held[rank]:
            raise ValueError(
                f"there is no key that rank {rank} could take over: each server has one, or none can be spared"
            )
        return plan

    def bytes_of(self, server):
        """The bytes of the parameters that a server holds."""
        return self._sum_bytes(self.held[server])

    def require(self, name, shape, dtype):
        """Raise ValueError unless some server holds `name`, in this shape and dtype."""
        if name not in self.keys:
            raise ValueError(f"no server holds the key {name!r}; the keys are {', '.join(self.keys)}")
        key = self.keys[name]
        if tuple(shape) != key.shape:
            raise ValueError(f"{name} has the shape {tuple(shape)} here and {key.shape} on its server")
        if dtype != key.dtype:
            raise ValueError(f"{name} is {dtype} here and {key.dtype} on its server")

    def require_rows(self, name, rows):
        """Raise ValueError unless the key has all of `rows`, an int64 tensor."""
        num_rows = self.keys[name].shape[0]
        missing = [row for row in rows.tolist() if not 0 <= row < num_rows]
        if missing:
            raise ValueError(f"{name} has {num_rows} rows, from 0 on: there is no row {missing[0]}")

    def _num_bytes(self, name):
        return self.keys[name].num_bytes

    def _sum_bytes(self, names):
        return sum(map(self._num_bytes, names))
