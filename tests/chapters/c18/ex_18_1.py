# %% wrong (lost time is useful): time whose steps were lost is not useful
# -         since_s = seconds
# +         if event == "killed" and since_s is not None:
# +             useful_s += trained_s if is_saving else seconds - since_s
# +         is_saving, since_s = event == "save", seconds
# %% wrong (the stretch before a save counts when the save begins): the stretch before a save that was killed
# -         if event in ("saved", "end"):
# +         if event in ("save", "end"):
# %% wrong (saves are useful): saving is not useful time
# -             saves_s.append(seconds - since_s)
# +             saves_s.append(seconds - since_s)
# +             useful_s += saves_s[-1]
# %% wrong (forgets the end): what the last save does not hold is safe once the job has ended
# -         if event in ("saved", "end"):
# +         if event == "saved":
# %% wrong (begins at the first start): the job began at 0
# total_s, kills = log[-1][0], → total_s, kills = log[-1][0] - log[0][0],
# %% wrong (goodput of the training time alone): which stretches of training were kept
# useful_s / total_s, → useful_s / (useful_s + sum(saves_s)),
# %% wrong (kills are counted by starts): there are more starts than kills
# total_s, kills = log[-1][0], sum(event == "killed" for _, event in log) → total_s, kills = log[-1][0], sum(event == "start" for _, event in log)
# %% wrong (no factor 2): a factor is missing under the root
# math.sqrt(2 * save_s → math.sqrt(save_s
# %% wrong (no root): what does a save cost
# math.sqrt(2 * save_s * total_s / kills) → 2 * save_s * total_s / kills
# %% wrong (the last save): the mean of all complete saves
# save_s = sum(saves_s) / len(saves_s) → save_s = saves_s[-1]
# %% wrong (killed saves count): a save that was killed does not say how long a save takes
# -     save_s = sum(saves_s) / len(saves_s)
# +     begun = [b[0] - a[0] for a, b in zip(log, log[1:]) if a[1] == "save"]
# +     save_s = sum(begun) / len(begun)
# %% wrong (zero if there is no kill): the interval
# if kills else math.inf → if kills else 0.0
# %% wrong (words if there is no kill): not a number
# if kills else math.inf → if kills else "never"
# %% wrong (the goodput alone): not a list or tuple of the goodput and the interval
# return useful_s / total_s, math.sqrt(2 * save_s * total_s / kills) if kills else math.inf → return useful_s / total_s
# %% wrong (changes the log): log holds other items
# -     total_s, kills = log[-1][0], sum(event == "killed" for _, event in log)
# +     total_s, kills = log.pop()[0], sum(event == "killed" for _, event in log)
# %% right (pairs of lines)
def account(log):
    pairs = list(zip(log, log[1:], log[2:] + [(0, "")]))
    useful = sum(u - t for (t, _), (u, b), (_, c) in pairs if b == "end" or (b, c) == ("save", "saved"))
    saves = [u - t for (t, a), (u, b), _ in pairs if b == "saved"]
    kills = [event for _, event in log].count("killed")
    mtbf = log[-1][0] / kills if kills else float("inf")
    return useful / log[-1][0], (2 * sum(saves) / len(saves) * mtbf) ** 0.5
# %% right (a list, NumPy's numbers)
def account(log):
    import numpy as np
    t = np.array([row[0] for row in log])
    e = [row[1] for row in log]
    useful = np.float64(0)
    saves = []
    for i in range(1, len(t)):
        if e[i] == "end":
            useful += t[i] - t[i - 1]
        if e[i] == "saved":
            useful += t[i - 1] - t[i - 2]
            saves.append(t[i] - t[i - 1])
    n = e.count("killed")
    return [useful / t[-1], np.sqrt(2 * np.mean(saves) * t[-1] / n) if n else np.inf]
# %% right (states)
def account(log):
    state, begun, held, useful, saves, kills = "down", 0.0, 0.0, 0.0, [], 0
    for seconds, event in log:
        spent = seconds - begun
        if state == "train":
            held = spent
        if event == "saved":
            saves.append(spent)
        if event in ("saved", "end"):
            useful += held
            held = 0.0
        if event == "killed":
            kills += 1
        state = {"start": "train", "saved": "train", "save": "saving", "killed": "down", "end": "done"}[event]
        begun = seconds
    mtbf = math.inf if kills == 0 else begun / kills
    return useful / begun, math.sqrt(2 * mtbf * sum(saves) / len(saves))
