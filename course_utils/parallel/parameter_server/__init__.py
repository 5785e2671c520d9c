"""A parameter server: servers hold the parameters, workers compute gradients, and a rule says who waits.

    worker                                              server, one or more
    ─────────────────────────────────────────────────────────────────────────────────────────
    Client.pull ── PULL, step, [keys or rows] ────────▶ a thread for each worker
                                                        rules: may this worker begin its step?
                ◀─ DONE, [numbers] ────────────────────  or GONE, who: never again
    Client.push ── PUSH, step, [keys or rows], numbers ▶ shard: torch's optimizer makes an update

`plan`: which server holds which key. `rules`: synchronous, asynchronous (also scaled by staleness), bounded delay.
`wire`: the message format. `server`: its threads. `shard`: a server's keys with their optimizer. `client`: the worker's
side. `schedule`: when each worker would compute.

After Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, without its replica
chains, key ranges and message compression.
"""

from .client import Client, ServerGone, WorkerGone
from .plan import Plan
from .rules import Asynchronous, BoundedDelay, Scaled, Synchronous
from .schedule import schedule
from .server import Push, Served, serve

__all__ = [
    "Asynchronous",
    "BoundedDelay",
    "Client",
    "Plan",
    "Push",
    "Scaled",
    "Served",
    "ServerGone",
    "Synchronous",
    "WorkerGone",
    "schedule",
    "serve",
]
