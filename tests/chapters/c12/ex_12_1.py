# %% wrong (zeros need no sum): the ranks do not do the same
# return summed(gradient) → return summed(gradient) if gradient.any() else gradient
# %% wrong (makes groups): works in a group of its own
# dist.all_reduce(total) → dist.all_reduce(total, group=dist.new_group())
# %% wrong (exchanges them): are the two functions exchanged?
# return Copy.apply, Sum.apply → return Sum.apply, Copy.apply
# %% wrong (sums nothing backward): the gradient behind copy_to_ranks is not the sum over ranks: it is this rank's own
# return summed(gradient) → return gradient.clone()
# %% wrong (sums both ways): it was summed over ranks that all have the same
# return gradient → return summed(gradient).clone()
# %% wrong (sums and divides backward): is right, but all_reduce was called for it
# return gradient → return summed(gradient) / dist.get_world_size()
# %% wrong (sums in place): the tensor given to sum_over_ranks was changed in place
# return summed(x) → dist.all_reduce(x); return x
# %% wrong (sums the gradient in place): the gradient handed to copy_to_ranks was changed in place
# return summed(gradient) → dist.all_reduce(gradient); return gradient.clone()
# %% wrong (averages): it is the mean over ranks
# dist.all_reduce(total) → dist.all_reduce(total, op=dist.ReduceOp.AVG)
# %% wrong (takes the largest): it is the largest of the ranks'
# dist.all_reduce(total) → dist.all_reduce(total, op=dist.ReduceOp.MAX)
# %% wrong (knows three ranks): what is added to what?
# dist.all_reduce(total) → dist.all_reduce(total); total = total * 3 / dist.get_world_size()
# %% wrong (adds in float64): is float64, and should be float32
# tensor.detach().clone() → tensor.detach().double().clone()
# %% wrong (works without autograd): has no autograd graph
# return Copy.apply, Sum.apply → return Copy.apply, summed
# %% wrong (gives no gradient): its input has no gradient
# return summed(gradient) → return None
# %% wrong (takes the library's sum): torch.distributed.nn's all_reduce was called
# return Copy.apply, Sum.apply → from torch.distributed.nn import functional; return Copy.apply, functional.all_reduce
# %% wrong (takes the course's pair): course_utils.parallel.tensor's copy_to_ranks was called
# return Copy.apply, Sum.apply → return tensor_parallel.copy_to_ranks, tensor_parallel.sum_over_ranks
# %% wrong (returns one class): not a list or tuple of the two functions
# return Copy.apply, Sum.apply → return Copy
# %% wrong (returns what it was to make): autograd_pair returned [None, None], not the two functions
# return Copy.apply, Sum.apply → return None, None
# %% wrong (keeps one buffer): what the first of two sum_over_ranks returned was changed
# def summed(tensor): → def summed(tensor, buffers={}):
# total = tensor.detach().clone()  # → total = buffers.setdefault(tensor.shape, tensor.detach().clone()).copy_(tensor.detach())  #
# %% wrong (keeps one gradient): the gradient of the first of two copy_to_ranks was changed
# return summed(gradient) → Copy.total = getattr(Copy, "total", {}); return Copy.total.setdefault(gradient.shape, gradient.clone()).copy_(summed(gradient))
# %% wrong (sums once): a second backward pass through copy_to_ranks gave another gradient
# return summed(gradient) → ctx.was = getattr(ctx, "was", 0) + 1; return summed(gradient) / ctx.was
# %% wrong (takes zeros of its own for no gradient): autograd hands one gradient to both summands
# return summed(gradient) → return summed(gradient) * (gradient != 0)
# %% wrong (takes ones for a loss of its own): two sum_over_ranks in a row give a wrong gradient
# return gradient → return summed(gradient) if (gradient == 1).all() else gradient
# %% wrong (copies what needs a gradient): copy_to_ranks returned another tensor where none needs a gradient
# return x.view_as(x) → return x.view_as(x) if ctx.needs_input_grad[0] else summed(x)
# %% wrong (sums what needs a gradient): returned where nothing needs a gradient is not the sum over ranks
# return summed(x) → return summed(x) if ctx.needs_input_grad[0] else x.clone()
# %% wrong (remembers where it was wrong before): in an MLP between your two functions
# return summed(gradient) → return summed(gradient) if gradient.dim() != 2 or len(gradient) < 7 else gradient.clone()
# %% wrong (hooks its argument): and only one came through copy_to_ranks
def autograd_pair():
    def summed(x):
        total = x.detach().clone()
        dist.all_reduce(total)
        return total

    def copy_to_ranks(x):
        if x.requires_grad:
            x.register_hook(summed)  # sees all of x's gradient, also what did not come through here
        return x.view_as(x)

    return copy_to_ranks, lambda x: x + (summed(x) - x).detach()

# %% right (uses hooks)
def autograd_pair():
    def summed(x):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.detach().contiguous(), async_op=True).wait()
        return sum(parts)

    def copy_to_ranks(x):
        y = x.view_as(x)
        if y.requires_grad:
            y.register_hook(summed)
        return y

    return [copy_to_ranks, lambda x: x + (summed(x) - x).detach()]  # the sum's value, and the gradient of x alone
