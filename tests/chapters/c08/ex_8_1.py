# %% right (counts the other way)
# (rank - root) % world_size → (root - rank) % world_size
# messages.send(x, (rank + have) % world_size) → dist.isend(x, (rank - have) % world_size).wait()
# messages.recv(x, (rank - have) % world_size) → dist.irecv(x, (rank + have) % world_size).wait()
# %% endless (waits for the wrong rank): were in recv at
# messages.recv(x, (rank - have) → messages.recv(x, (rank + have)
# %% wrong (ignores the root): with 2 ranks, root 1: the root's own tensor has changed
# (rank - root) % world_size → rank
# %% wrong (fills a copy): rank 1 still had what it began with: x itself must be filled
# have = 1 → have, x = 1, x.clone()
# %% wrong (does not wait for what it sends): nobody waited for a message of isend or irecv
# messages.send(x, (rank + have) % world_size) → dist.isend(x, (rank + have) % world_size)
# %% wrong (passes on what has not come): a tensor was changed, or filled by a message, while it was sent
# have = 1 → have, works = 1, []
# messages.send(x, (rank + have) % world_size) → works.append(dist.isend(x, (rank + have) % world_size))
# messages.recv(x, (rank - have) % world_size) → works.append(dist.irecv(x, (rank - have) % world_size))
# -         have *= 2
# +         have *= 2
# +     for work in works:
# +         work.wait()
# %% wrong (adds instead of filling): rank 1 ended with a tensor that no rank had at the start
# messages.recv(x, (rank - have) % world_size) → mine = x.clone(); messages.recv(x, (rank - have) % world_size); x += mine
# %% wrong (sends everything twice): rank 1 received 2 messages: one is enough
# messages.send(x, (rank + have) % world_size) → [messages.send(x, (rank + have) % world_size) for _ in range(2)]
# messages.recv(x, (rank - have) % world_size) → [messages.recv(x, (rank - have) % world_size) for _ in range(2)]
# %% wrong (calls broadcast): called a collective (broadcast): build it from messages alone
# have = 1 → have = dist.broadcast(x, src=root) or world_size
# %% wrong (sends from the root to all): who else could pass it on meanwhile?
# -     while have < world_size:
# -         if place < have and place + have < world_size:
# +     for have in range(1, world_size):
# +         if place == 0:
# elif have <= place < 2 * have → elif place == have
# have *= 2 → pass

# %% wrong (goes down a heap): with 7 ranks, root 0: the last rank has it after 4 rounds
def broadcast_tree(x, root):
    world_size = dist.get_world_size()
    place = (dist.get_rank() - root) % world_size
    if place:
        dist.recv(x, ((place - 1) // 2 + root) % world_size)
    for child in (2 * place + 1, 2 * place + 2):
        if child < world_size:
            dist.send(x, (child + root) % world_size)
