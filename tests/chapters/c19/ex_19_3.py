# %% wrong (at the peak): has the seconds that the job comes to
# forward = job["flops"] / (job["peak"] * job["matrix"]) → forward = job["flops"] / job["peak"]
# %% wrong (a fixed tolerance): the answer is None, and one of the lines is wrong
# rel_tol=1e-6 → rel_tol=0, abs_tol=1e-3
# %% wrong (exact equality): has the seconds that the job comes to
# not math.isclose(lines[name], seconds, rel_tol=1e-6) → lines[name] != seconds
# %% wrong (backward as long as forward): the answer is None, and one of the lines is wrong
# 2 * forward → forward
# %% wrong (always recomputes): the answer is None, and one of the lines is wrong
# forward if job["recomputed"] else 0.0 → forward
# %% wrong (a bubble of all stages): is there anything of it in this job?
# (job["stages"] - 1) * micro_batch → job["stages"] * micro_batch
# %% wrong (a bubble without the rest): compute it from the job
# "products again", "the rest") → "products again")
# %% wrong (looks at the bubble before its micro-batch): the bubble follows from the lines as they are
# lines[name] for name in ("forward products", "backward products", "products again", "the rest")) → [forward, 2 * forward, forward * job["recomputed"], job["bytes"] / (job["bandwidth"] * job["memory"])])
# right.items() → reversed(right.items())
# %% wrong (the seconds as they are): that is what the line has now
# return name, seconds → return name, lines[name]
# %% wrong (in milliseconds): that is in milliseconds
# return name, seconds → return name, 1000 * seconds
# %% wrong (the name alone): not a list or tuple of the line's name
# return name, seconds → return name
# %% wrong (a name with a capital): the line is 'Forward products'; there are
# return name, seconds → return name.capitalize(), seconds
# %% wrong (seconds with a unit): the right seconds of 'forward products' is '
# return name, seconds → return name, f"{seconds:.3g} s"
# %% right (a bubble of what should be)
# lines[name] for name in ("forward products", "backward products", "products again", "the rest")) → [forward, 2 * forward, forward * job["recomputed"], job["bytes"] / (job["bandwidth"] * job["memory"])])
