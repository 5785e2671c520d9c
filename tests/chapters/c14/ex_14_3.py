# %% wrong (one worker's): all of them push
# num_workers * max(held) → max(held)
# %% wrong (takes them for equal): the mean of all servers
# num_workers * max(held) → num_workers * total / num_servers
# %% wrong (in the order given): in the order given?
# sorted(key_bytes, reverse=True) → key_bytes
# %% wrong (smallest first): bytes are said to enter the busiest server
# sorted(key_bytes, reverse=True) → sorted(key_bytes)
# %% wrong (both ways): what leaves the server
# num_workers * max(held) → 2 * num_workers * max(held)
# %% wrong (all servers): all servers together
# num_workers * max(held) → num_workers * total
# %% wrong (servers push, too): who sends it what?
# num_workers * max(held) → (num_workers + num_servers) * max(held)
# %% wrong (the server's as a text): what enters the server is '
# num_workers * max(held) → f"{num_workers * max(held):,}"
# %% wrong (the idlest): fewest bytes
# num_workers * max(held) → num_workers * min(held)
# %% wrong (both ways at a worker): does not enter it
# "worker": total → "worker": 2 * total
# %% wrong (from one server): it pulls from all servers
# "worker": total → "worker": max(held)
# %% wrong (all workers'): all workers together
# "worker": total → "worker": num_workers * total
# %% wrong (a worker's share): what does it pull?
# "worker": total → "worker": total / num_workers
# %% wrong (the worker's as a text): what enters a worker is '
# "worker": total → "worker": f"{total:,}"
# %% wrong (no chunks): as many chunks as steps
# 2 * (num_workers - 1) / num_workers * total → 2 * (num_workers - 1) * total
# %% wrong (reduce-scatter only): and an all-gather
# ring = 2 * (num_workers → ring = (num_workers
# %% wrong (servers in the ring): no members of the ring
# ring = 2 * (num_workers - 1) / num_workers * total → ring = 2 * (num_workers + num_servers - 1) / (num_workers + num_servers) * total
# %% wrong (the limit): need not be sent
# ring = 2 * (num_workers - 1) / num_workers * total → ring = 2 * total
# %% wrong (the busiest server's keys in the ring): that is the busiest server's part only
# / num_workers * total → / num_workers * max(held)
# %% wrong (the ring's as a text): what enters a process of the ring is '
# "ring": ring → "ring": f"{ring:,}"
# %% wrong (a tuple): a dict is asked
# return {"server": num_workers * max(held), "worker": total, "ring": ring} → return num_workers * max(held), total, ring
# %% wrong (other keys): and three others are asked
# {"server": → {"servers":
# %% right (by a plan)
def bytes_in(key_bytes, num_servers, num_workers):
    tensors = {str(i): torch.empty(size, dtype=torch.uint8) for i, size in enumerate(key_bytes)}
    plan = ps.Plan(tensors, range(num_servers), range(num_servers, num_servers + num_workers))
    most = max(map(plan.bytes_of, plan.servers))
    return dict(server=most * num_workers, worker=sum(key_bytes), ring=2 * (num_workers - 1) * sum(key_bytes) / num_workers)
