# %% wrong (forgets the number of experts): the number of experts is missing in it
# loss = num_experts * (f → loss = (f
# %% wrong (soft shares): both factors are probabilities
# f = F.one_hot(scores.argmax(dim=1), num_experts).to(p).mean(dim=0) → f = p.mean(dim=0)
# %% wrong (hard probabilities): both factors are counts
# loss = num_experts * (f * p.mean(dim=0)).sum() → loss = num_experts * (f * f).sum()
# %% wrong (counts, not shares): one of its factors is a sum over the tokens
# loss = num_experts * (f * p.mean(dim=0)).sum() → loss = num_experts * (len(p) * f * p.mean(dim=0)).sum()
# %% wrong (the lowest scores): which expert has the highest score
# argmax → argmin
# %% wrong (the gradient of the probabilities): what does softmax add
# num_experts / num_tokens * p * (f - (p * f).sum(dim=1, keepdim=True)) → (num_experts / num_tokens * f).expand_as(p)
# %% wrong (the diagonal alone): depended on its own score alone
# num_experts / num_tokens * p * (f - (p * f).sum(dim=1, keepdim=True)) → num_experts / num_tokens * f * p * (1 - p)
# %% wrong (half of softmax): what its own probabilities leave of the mean
# (f - (p * f).sum(dim=1, keepdim=True)) → f
# %% wrong (shares with a gradient): treated as if it had a gradient
# -     gradient = num_experts / num_tokens * p * (f - (p * f).sum(dim=1, keepdim=True))
# +     g = f + p.mean(dim=0)
# +     gradient = num_experts / num_tokens * p * (g - (p * g).sum(dim=1, keepdim=True))
# %% wrong (forgets the mean): a mean over tokens has the number of tokens in it
# num_experts / num_tokens * p → num_experts * p
# %% wrong (forgets the experts in the gradient): the number of experts is missing in it
# num_experts / num_tokens * p → 1 / num_tokens * p
# %% wrong (differences): how does a score change the probabilities of all experts
# -     return loss, gradient
# +     of = lambda s: num_experts * (f * s.softmax(dim=1).mean(dim=0)).sum()
# +     for t in range(num_tokens):
# +         for e in range(num_experts):
# +             step = torch.zeros_like(scores)
# +             step[t, e] = 1e-1
# +             gradient[t, e] = (of(scores + step) - of(scores)) / 1e-1
# +     return loss, gradient
# %% wrong (the other sign): its sign is the other one
# num_experts / num_tokens * p → -num_experts / num_tokens * p
# %% wrong (exp overflows): the answer holds inf or nan
# scores.softmax(dim=1) → scores.exp() / scores.exp().sum(dim=1, keepdim=True)
# %% wrong (the loss alone): not a list or tuple of the loss and its gradient
# return loss, gradient → return loss
# %% wrong (by autograd): take the derivative by hand
def balance_loss(scores):
    leaf = scores.clone().requires_grad_()
    p = leaf.softmax(1)
    f = F.one_hot(scores.argmax(1), scores.shape[1]).to(p).mean(0)
    loss = scores.shape[1] * (f * p.mean(0)).sum()
    loss.backward()
    return loss.detach(), leaf.grad
# %% wrong (by torch.func): take the derivative by hand
def balance_loss(scores):
    f = F.one_hot(scores.argmax(1), scores.shape[1]).to(scores).mean(0)
    loss = lambda s: scores.shape[1] * (f * s.softmax(1).mean(0)).sum()
    return loss(scores), torch.func.grad(loss)(scores)
# %% right (loops)
def balance_loss(scores):
    T, E = scores.shape
    p = scores.softmax(1)
    best = scores.argmax(1).tolist()
    f = [best.count(e) / T for e in range(E)]
    loss = E * sum(f[e] * p[:, e].mean() for e in range(E))
    gradient = torch.zeros_like(scores)
    for t in range(T):
        mean = sum(p[t, e] * f[e] for e in range(E))
        for e in range(E):
            gradient[t, e] = E / T * p[t, e] * (f[e] - mean)
    return loss, gradient
# %% right (the whole Jacobian, without gradients)
def balance_loss(scores):
    with torch.no_grad():
        T, E = scores.shape
        p = torch.softmax(scores, -1)
        f = torch.bincount(scores.argmax(-1), minlength=E).to(scores.dtype) / T
        J = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return E * f @ p.mean(0), (E / T) * torch.einsum("tij,j->ti", J, f)
# %% right (a number and a view)
def balance_loss(scores):
    T, E = scores.shape
    p = (scores - scores.max(1, keepdim=True).values).exp()
    p = p / p.sum(1, keepdim=True)
    f = (scores == scores.amax(1, keepdim=True)).to(p).mean(0)
    g = E / T * f
    gradient = p * g - p * (p @ g)[:, None]
    return (E * f.dot(p.mean(0))).item(), gradient
# %% right (shares in float32)
def balance_loss(scores):
    T, E = scores.shape
    p = F.softmax(scores, dim=1)
    f = F.one_hot(scores.argmax(1), E).float().mean(0)
    loss = E * torch.sum(f * p.mean(0))
    return loss, E * p * (f[None] - (f * p).sum(1, keepdim=True)) / T
