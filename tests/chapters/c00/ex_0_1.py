# %% right (reads the environment)
def whoami():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


# %% wrong (prints instead of returning): only what it returns comes back
# return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → print(dist.get_rank(), dist.get_world_size())
# %% wrong (takes the environment as it is): with a text in it
# int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → os.environ["RANK"], os.environ["WORLD_SIZE"]
# %% wrong (swaps the two): which of the two numbers comes first
# int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → dist.get_world_size(), dist.get_rank()
# %% wrong (returns the rank alone): what rank 0 returned is 0, not a list or tuple
# int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → dist.get_rank()
# %% wrong (does not call them): a number that came back is the function get_rank, not a number: call it, with ()
# int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → dist.get_rank, dist.get_world_size
# %% wrong (returns the functions' names as a text): the function get_rank
# int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) → "0", dist.get_rank
# %% wrong (returns floats): not a whole number
# int(os.environ["RANK"]) → float(os.environ["RANK"])
# %% wrong (counts from one): ranks count from 0
# int(os.environ["RANK"]) → int(os.environ["RANK"]) + 1
# %% wrong (assumes two workers): ask, do not assume
# int(os.environ["WORLD_SIZE"]) → 2
# %% wrong (writes the rank of the first): each worker must tell its own
# int(os.environ["RANK"]) → 0
