# %% wrong (A): what do two ranks draw after the same torch.manual_seed?
# "C", "state" → "A", "start"
# %% wrong (B): how many images does a step of all its ranks use?
# "C", "state" → "B", "rate"
# %% wrong (D): which numbers does hvd.local_rank() have
# "C", "state" → "D", "device"
# %% wrong (E): which image is in two ranks' shares
# "C", "state" → "E", "data"
# %% wrong (its start): What else is loaded?
# "state" → "start"
# %% wrong (its rate): What goes into a step beside the rate and the gradient?
# "state" → "rate"
# %% wrong (its device): What has rank 0 that the other ranks have not?
# "state" → "device"
# %% wrong (its data): What makes their steps differ?
# "state" → "data"
# %% wrong (the letter alone): not a list or tuple of a script's letter and a word
# "C", "state" → "C"
# %% wrong (the word first): and the scripts are 'A' to 'E'
# "C", "state" → "state", "C"
# %% wrong (a word of its own): and the words are
# "state" → "momentum"
# %% right (a list)
# return "C", "state" → return ["C", "state"]
# %% right (a small letter)
# "C", "state" → "c", "state"
