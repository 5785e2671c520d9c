# %% wrong (in gigabytes): in gigabytes a second
# 8 * num_sent → num_sent
# %% wrong (in bits): in bits a second
# / 1e9 → / 1
# %% wrong (in megabits): in megabits a second
# / 1e9 → / 1e6
# %% wrong (in gibibits): a gigabit is 10^9 bits
# / 1e9 → / 2**30
# %% wrong (sends once): twice, once to be added up
# 2 * (num_servers - 1) → (num_servers - 1)
# %% wrong (sends all twice): which share of it
# 2 * (num_servers - 1) / num_servers * num_bytes → 2 * num_bytes
# %% wrong (sends all once): how many bytes does one server send
# 2 * (num_servers - 1) / num_servers * num_bytes → num_bytes
# %% wrong (adds all servers): each has a link of its own
# 2 * (num_servers - 1) / num_servers * num_bytes → 2 * (num_servers - 1) * num_bytes
# %% wrong (counts all in each step): which share is sent in one
# 2 * (num_servers - 1) / num_servers * num_bytes → 2 * math.log2(num_servers) * num_bytes
# %% wrong (turns the share over): which bytes, in which time
# (num_servers - 1) / num_servers → num_servers / (num_servers - 1)
# %% wrong (rounds): that is rounded
# return 8 * num_sent / time_s / 1e9 → return round(8 * num_sent / time_s / 1e9, 2)
# %% wrong (does not wait): nothing can be sent in the first part
# num_sent / time_s → num_sent / backward_s
# %% wrong (waits for more): less time to send, not more
# num_sent / time_s → num_sent / (backward_s + wait_s)
# %% wrong (is faster than light): come after the backward pass
# time_s <= 0 → time_s == 0
# %% wrong (knows no end): a ZeroDivisionError came
# time_s <= 0 → time_s < 0
# %% wrong (sees the end first): however little time there is
# if num_servers == 1: → if num_servers == 1 and wait_s < backward_s:
# %% wrong (sends to itself): a single server has nobody to send to
# if num_servers == 1: → if num_servers < 1:
# (num_servers - 1) → max(num_servers - 1, 1)

# %% right (by steps)
def link_that_hides(num_bytes, num_servers, backward_s, wait_s):
    num_sent = sum(num_bytes / num_servers for _ in range(2 * (num_servers - 1)))
    if num_sent == 0:
        return 0
    return torch.tensor(num_sent * 8e-9) / max(backward_s - wait_s, 0)
