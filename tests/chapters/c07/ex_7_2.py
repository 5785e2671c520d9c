# %% wrong (looks at the output only): which result of the backward pass is a sum
# "backward": (grad_xs, leaf.grad)} → }
# %% wrong (looks at the gradient only): which result of the forward pass is a sum
# "forward": (ys, y.detach()), → 
# %% wrong (never finds anything): and the sum of the backward pass is missing
# if not all(is_close → if not any(True or is_close
# %% wrong (returns the first one only): can more than one be missing
# -     return [
# +     return [*[
# -     ]
# +     ][:1]]
# %% wrong (looks at device 0): where the sum reached device 0 only: your test returned []
# for each in copies) → for each in copies[:1])
# %% wrong (is content with one good copy): whose copy did you compare
# not all(is_close( → not any(is_close(
# %% wrong (compares copies with one another): all devices hold the same numbers, and they are wrong
# truth) for each in copies) → copies[0]) for each in copies)
# %% wrong (wants equal bits): do you allow for rounding
# <= 1e-9 * b.abs().max() → == 0
# %% wrong (allows for an absolute difference): how large a difference is too large
# <= 1e-9 * b.abs().max() → <= 1e-3
# %% wrong (allows for a small absolute difference): how large a difference is too large
# return (a - b).abs().max() <= 1e-9 * b.abs().max() → return torch.allclose(a, b, atol=1e-5)
# %% wrong (gives the reference another gradient): is grad_y the gradient that both layers got
# y.backward(grad_y) → y.sum().backward()
# %% wrong (exchanges the passes): it is the other pass whose sum is missing
# "forward": (ys, y.detach()), "backward": (grad_xs, leaf.grad) → "backward": (ys, y.detach()), "forward": (grad_xs, leaf.grad)
# %% wrong (says yes or no): came back, and a list is asked
# -     return [
# +     return bool([
# -     ]
# +     ])
# %% wrong (forgets to return): a list is asked whose items
# -     return [
# +     found = [
# %% wrong (makes a leaf of the input itself): x.requires_grad was changed
# (leaf,) = leaves([x]) → leaf = x.requires_grad_()
# %% wrong (repairs the layer that it tests): was changed in place
# y = whole(leaf) → whole[0].weight.data.mul_(2); y = whole(leaf)
# %% right (by assert_close)
def missing_sums(split, whole, x, grad_y):
    leaf = x.clone().requires_grad_()
    y = whole(leaf)
    (grad_x,) = torch.autograd.grad(y, leaf, grad_y)
    ys = split.forward(split.group.broadcast(x))
    grad_xs = split.backward(split.group.broadcast(grad_y))
    missing = set()
    for name, copies, truth in (("forward", ys, y.detach()), ("backward", grad_xs, grad_x)):
        for copy_ in copies:
            try:
                torch.testing.assert_close(copy_.to(x.device), truth, rtol=1e-6, atol=1e-15)
            except AssertionError:
                missing.add(name)
    return missing
# %% right (by gathering the copies)
def missing_sums(split, whole, x, grad_y):
    (leaf,) = leaves([x])
    y = whole(leaf)
    y.backward(grad_y)
    n = len(split.group)
    ys = split.group.gather(split.forward(split.group.broadcast(x)))
    grads = split.group.gather(split.backward(split.group.broadcast(grad_y)))
    found = ()
    if not torch.allclose(ys, y.detach().repeat(n, 1), atol=0):
        found += ("forward",)
    if not torch.allclose(grads, leaf.grad.repeat(n, 1), atol=1e-14):
        found += ("backward",)
    return found
# %% right (with the chapter's function)
def missing_sums(split, whole, x, grad_y):
    (leaf,) = leaves([x])
    y = whole(leaf)
    y.backward(grad_y)
    results = {"backward": None, "forward": split.forward(split.group.broadcast(x))}
    results["backward"] = split.backward(split.group.broadcast(grad_y))
    truths, missing = {"forward": y.detach(), "backward": leaf.grad}, []
    for name, copies in results.items():
        truth = truths[name] / truths[name].std()
        try:
            assert_equal([c.to(x.device) / truths[name].std() for c in copies], len(copies) * [truth])
        except AssertionError:
            missing.append(name)
    return missing
# %% right (with norms)
def missing_sums(split, whole, x, grad_y):
    leaf = x.detach().clone().requires_grad_()
    y = whole(leaf)
    y.backward(grad_y)
    ys = split.forward(split.group.broadcast(x))
    grads = split.backward(split.group.broadcast(grad_y))
    far = lambda rows, truth: max((row.to(truth.device) - truth).norm() for row in rows) > 1e-6 * truth.norm()
    return ["forward"] * bool(far(ys, y.detach())) + ["backward"] * bool(far(grads, leaf.grad))
