# %% wrong (climbs late): the climb is one update late
# (step + 1) / warmup → step / warmup
# %% wrong (climbs from zero): it climbs from 0
# base + (peak - base) * (step + 1) / warmup → peak * (step + 1) / warmup
# %% wrong (climbs from zero and late): it climbs from 0, and one update late
# base + (peak - base) * (step + 1) / warmup → peak * step / warmup
# %% wrong (does not climb): there is no climb
# base + (peak - base) * (step + 1) / warmup → peak
# %% wrong (climbs in a curve): not on the line of the climb
# (step + 1) / warmup → ((step + 1) / warmup) ** 2
# %% wrong (divides whole numbers in the climb): the rates of the climb are
# (peak - base) * (step + 1) / warmup → (peak - base) * ((step + 1) // warmup)
# %% wrong (climbs too far): neither in the climb nor in the fall
# if step < warmup: → if 0 < warmup and step <= warmup:
# %% wrong (stops one update early): the update would do nothing
# peak * left / cooldown → peak * left / cooldown if left > 1 else 0
# %% wrong (falls early): the fall is one update early
# peak * left / cooldown → (peak * (left - 1) or peak) / cooldown
# left < cooldown → left <= cooldown
# %% wrong (falls to the base): towards the base
# peak * left / cooldown → base + (peak - base) * left / cooldown
# %% wrong (falls in a curve): not on the line of the fall
# left / cooldown → (left / cooldown) ** 2
# %% wrong (does not fall): is it still level there
# peak * left / cooldown → peak
# %% wrong (returns nothing on top): the rate of update 4 is None
# -     return peak
# +     pass
# %% wrong (rounds the climb): that is rounded
# return base + (peak - base) * (step + 1) / warmup → return round(base + (peak - base) * (step + 1) / warmup, 2)
# %% wrong (is not a number): is nan
# base + (peak - base) * (step + 1) / warmup → float("nan")

# %% wrong (counts its calls): what remembers?
# -     if step < warmup:
# +     trapezoid.calls = trapezoid.calls + 1 if step and hasattr(trapezoid, "calls") else 0
# +     step = min(trapezoid.calls, num_steps - 1)
# +     if step < warmup:

# %% right (takes the smallest)
def trapezoid(step, num_steps, base, peak, warmup, cooldown):
    up = base + (peak - base) * min(1, (step + 1) / max(warmup, 1))
    down = peak * min(1, (num_steps - step) / max(cooldown, 1))
    return up if step < warmup else down
