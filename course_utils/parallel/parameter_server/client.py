"""The worker's side: pull parameters, push gradients, and errors for ranks that have ended."""

import torch

from . import wire


class ServerGone(RuntimeError):
    """A server has ended and its keys are lost, so no rule can continue."""

    is_consequence = True  # launch reports the rank that ended first


class WorkerGone(RuntimeError):
    """A worker has ended, and the rule cannot continue without it."""

    is_consequence = True


class Client:
    """Connects this rank, a worker of `plan`, to the servers; `step` counts its steps, each ended by `push`."""

    def __init__(self, plan):
        self.plan, self.step = plan, 0

    def pull(self, into, rows=None):
        """Wait until the rule lets this step begin, then fill the tensors of {key: tensor} with the servers' values.

        Returns True, or False without filling anything if a server has ended the training.

        For a key in `rows`, {key: int64 tensor of row numbers}, only those rows are sent and filled. Tensors may be on
        any device. Raises ValueError for an unknown key or a wrong shape or dtype, ServerGone, and WorkerGone.
        """
        rows = {name: which.unique() for name, which in (rows or {}).items()}
        for name, tensor in into.items():
            self.plan.require(name, tensor.shape, tensor.dtype)
        for name, which in rows.items():
            if name not in into:
                raise ValueError(f"rows are asked for of {name!r}, which is not pulled")
            self.plan.require_rows(name, which)
        asked = {
            server: {name: rows.get(name) for name in held if name in into} for server, held in self.plan.held.items()
        }
        asked = {server: wanted for server, wanted in asked.items() if wanted}
        for server, wanted in asked.items():  # ask all first, so that no server waits for another
            self._send(server, wire.PULL, about=wire.describe(self.plan.held[server], wanted))
        answers = {server: self._answer(server) for server in asked}
        if None in answers.values():
            return False
        for server, wanted in asked.items():
            values = answers[server]
            for name, which in wanted.items():
                target = into[name].detach()
                shape = target.shape if which is None else (len(which), *target.shape[1:])
                piece, values = values.split([torch.Size(shape).numel(), len(values) - torch.Size(shape).numel()])
                if which is None:
                    target.copy_(piece.view(shape))
                else:
                    target[which.to(target.device)] = piece.view(shape).to(target.device)
        return True

    def push(self, gradients):
        """Send {key: gradient} and end this step.

        Of a sparse gradient (`nn.Embedding(…, sparse=True)`) only its rows are sent; a None is skipped. Raises
        ValueError as `pull` does, before anything is sent, and ServerGone.
        """
        gradients = {name: gradient.detach() for name, gradient in gradients.items() if gradient is not None}
        for name, gradient in gradients.items():
            self.plan.require(name, gradient.shape, gradient.dtype)
        gradients = {name: g.coalesce() if g.is_sparse else g for name, g in gradients.items()}
        for server, held in self.plan.held.items():  # even with no keys: each server counts steps
            sent = {name: gradients[name] for name in held if name in gradients}
            about = wire.describe(held, {name: g.indices()[0] if g.is_sparse else None for name, g in sent.items()})
            parts = [(g.values() if g.is_sparse else g).reshape(-1).cpu() for g in sent.values()]
            self._send(server, wire.PUSH, about=about, values=torch.cat(parts) if parts else None)
        self.step += 1

    def add_server(self, rank):
        """Make the spare `rank` a server; all workers must call this after the same number of steps."""
        plan = self.plan.with_server(rank)
        for server in self.plan.servers:
            self._send(server, wire.ADD, number=rank)
        for server in self.plan.servers:
            self._answer(server)
        self.plan = plan

    def leave(self):
        """Tell the servers that this worker has no more steps, so that nobody waits for it."""
        for server in self.plan.servers:
            self._send(server, wire.LEAVE)

    def _send(self, server, what, number=None, **parts):
        try:
            wire.send(server, what, self.step if number is None else number, patience_s=wire.PATIENCE_S, **parts)
        except wire.Lost as error:
            raise self._gone(server) from error

    def _answer(self, server):
        """The values that `server` sends, or None if it has ended the training."""
        try:
            status, who, _, num_values = wire.recv_header(server)
            values = wire.recv(server, num_values, self.plan.dtype, wire.PATIENCE_S)
        except wire.Lost as error:
            raise self._gone(server) from error
        if status == wire.GONE:
            raise WorkerGone(
                f"worker {who} is gone: the synchronous rule adds up the gradients of all workers, so no other "
                "can go on without it"
            )
        return None if status == wire.OVER else values

    def _gone(self, server):
        return ServerGone(
            f"server {server} is gone, and with it {', '.join(self.plan.held[server])}: no worker can go on "
            "without them; start again from a checkpoint"
        )
