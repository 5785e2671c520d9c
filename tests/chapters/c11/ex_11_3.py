# %% wrong (one ranks batch): what one rank alone would make
# num_images // batch_size → num_images // per_rank
# %% wrong (rounds up): the last of them has no full batch
# num_images // batch_size → math.ceil(num_images / batch_size)
# %% wrong (divides exactly): is 22.453125, not a whole number
# num_images // batch_size → num_images / batch_size
# %% wrong (counts all epochs): those are of all epochs
# "updates_per_epoch": updates_per_epoch → "updates_per_epoch": updates
# %% wrong (counts nothing): how many images go into one update
# "updates_per_epoch": updates_per_epoch → "updates_per_epoch": 1
# %% wrong (drops once at the end): at the end of every epoch
# num_epochs * updates_per_epoch → num_images * num_epochs // batch_size
# %% wrong (counts each ranks updates): the ranks make each of them together
# "updates": updates → "updates": updates * world_size
# %% wrong (forgets the epochs): in each of 20 epochs
# "updates": updates, → "updates": updates_per_epoch,
# %% wrong (in seconds): that is in seconds
# updates * step_s / 3600 → updates * step_s
# %% wrong (in minutes): that is in minutes
# updates * step_s / 3600 → updates * step_s / 60
# %% wrong (adds the ranks hours): the ranks work at the same time
# "hours": hours → "hours": hours * world_size
# %% wrong (shares the hours out): there are 440 updates
# "hours": hours → "hours": hours / world_size
# %% wrong (rounds the hours): leave the hours
# "hours": hours → "hours": round(hours, 2)
# %% wrong (pays for one rank): the price of one rank
# hours * world_size * price_per_hour → hours * price_per_hour
# %% wrong (rounds the price): leave the dollars
# hours * world_size * price_per_hour → round(hours * world_size * price_per_hour, 2)
# %% wrong (pays for whole hours): at 3.0 an hour are paid for
# hours * world_size * price_per_hour → math.ceil(hours) * world_size * price_per_hour
# %% wrong (says cost): has no 'dollars'
# "dollars" → "cost"
# %% wrong (returns a tuple): not a dict
# return { → return updates_per_epoch, updates, {
# %% right (with tensors)
def plan_run(num_images, per_rank, world_size, num_epochs, step_s, price):
    batch = torch.tensor(per_rank * world_size)
    if batch > num_images:
        raise ValueError("not one batch")
    n = num_images // batch
    hours = n * num_epochs * torch.tensor(step_s, dtype=torch.float64) / 3600
    return {"dollars": hours * world_size * price, "hours": hours, "updates": n * num_epochs, "updates_per_epoch": n}
