"""Exercise 5.4: answers that its check must refuse, each with words from the reason that it must give."""

import copy

import torch


def _gaps(whole, replicas, x, sizes):
    outputs = torch.cat([replica(part) for replica, part in zip(replicas, x.split(sizes))])
    of_outputs = (outputs - whole(x)).abs()
    of_means = (replicas[0].running_mean - whole.running_mean).abs()
    return of_outputs, of_means


def uses_the_layer_itself(layer, x, sizes):
    a, b = _gaps(layer, [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a.max().item(), b.max().item()


def one_replica_for_all_parts(layer, x, sizes):
    replica = copy.deepcopy(layer)
    a, b = _gaps(copy.deepcopy(layer), [replica] * len(sizes), x, sizes)
    return a.max().item(), b.max().item()


def evaluates(layer, x, sizes):
    a, b = _gaps(copy.deepcopy(layer).eval(), [copy.deepcopy(layer).eval() for _ in sizes], x, sizes)
    return a.max().item(), b.max().item()


def leaves_the_layer_in_evaluation(layer, x, sizes):
    layer.eval()
    return evaluates(layer, x, sizes)


def takes_the_mean(layer, x, sizes):
    a, b = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a.mean().item(), b.mean().item()


def forgets_abs(layer, x, sizes):
    whole, replicas = copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes]
    outputs = torch.cat([replica(part) for replica, part in zip(replicas, x.split(sizes))])
    return (outputs - whole(x)).min().item(), (replicas[0].running_mean - whole.running_mean).min().item()


def looks_at_the_last_replica(layer, x, sizes):
    replicas = [copy.deepcopy(layer) for _ in sizes]
    whole = copy.deepcopy(layer)
    a, _ = _gaps(whole, replicas, x, sizes)
    return a.max().item(), (replicas[-1].running_mean - whole.running_mean).abs().max().item()


def looks_at_the_first_part(layer, x, sizes):
    a, b = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a[: sizes[0]].max().item(), b.max().item()


def returns_tensors(layer, x, sizes):
    a, b = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a.max(), b.max()


def returns_one_number(layer, x, sizes):
    return returns_tensors(layer, x, sizes)[0].item()


def splits_into_equal_parts(layer, x, sizes):
    parts = x.chunk(len(sizes))
    a, b = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, [len(part) for part in parts])
    return a.max().item(), b.max().item()


def makes_new_layers(layer, x, sizes):
    new = type(layer)(layer.num_features).double()
    return one_right(new, x, sizes)


def one_right(layer, x, sizes):
    a, b = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a.max().item(), b.max().item()


def averages_the_running_means(layer, x, sizes):
    replicas, whole = [copy.deepcopy(layer) for _ in sizes], copy.deepcopy(layer)
    a, _ = _gaps(whole, replicas, x, sizes)
    mean = torch.stack([replica.running_mean for replica in replicas]).mean(0)
    return a.max().item(), (mean - whole.running_mean).abs().max().item()


def copies_shallowly(layer, x, sizes):
    a, b = _gaps(copy.copy(layer), [copy.copy(layer) for _ in sizes], x, sizes)
    return a.max().item(), b.max().item()


def restores_the_mean_only(layer, x, sizes):
    mean, outputs, means = layer.running_mean.clone(), [], []
    for part in (x, *x.split(sizes)):
        outputs.append(layer(part))
        means.append(layer.running_mean.clone())
        layer.running_mean.copy_(mean)
    gap = (torch.cat(outputs[1:]) - outputs[0]).abs().max().item()
    return gap, (means[1] - means[0]).abs().max().item()


def compares_a_replica_with_itself(layer, x, sizes):
    whole = copy.deepcopy(layer)
    a, b = _gaps(whole, [whole] + [copy.deepcopy(layer) for _ in sizes[1:]], x, sizes)
    return a.max().item(), b.max().item()


def takes_the_worst_replica(layer, x, sizes):
    replicas, whole = [copy.deepcopy(layer) for _ in sizes], copy.deepcopy(layer)
    a, _ = _gaps(whole, replicas, x, sizes)
    return a.max().item(), max((r.running_mean - whole.running_mean).abs().max().item() for r in replicas)


def leaves_out_the_momentum(layer, x, sizes):
    a, _ = _gaps(copy.deepcopy(layer), [copy.deepcopy(layer) for _ in sizes], x, sizes)
    return a.max().item(), (x[: sizes[0]].mean((0, 2, 3)) - x.mean((0, 2, 3))).abs().max().item()


def compares_with_the_start(layer, x, sizes):
    replicas = [copy.deepcopy(layer) for _ in sizes]
    a, _ = _gaps(copy.deepcopy(layer), replicas, x, sizes)
    return a.max().item(), (replicas[0].running_mean - layer.running_mean).abs().max().item()


def averages_with_weights(layer, x, sizes):
    replicas, whole = [copy.deepcopy(layer) for _ in sizes], copy.deepcopy(layer)
    a, _ = _gaps(whole, replicas, x, sizes)
    mean = sum(n * replica.running_mean for n, replica in zip(sizes, replicas)) / len(x)
    return a.max().item(), (mean - whole.running_mean).abs().max().item()


def uses_the_sizes_up(layer, x, sizes):
    found = one_right(layer, x, sizes)
    while sizes:
        sizes.pop(0)
    return found


WRONG = [
    (uses_the_layer_itself, "the layer itself was changed"),
    (one_replica_for_all_parts, "did all parts go through one replica"),
    (evaluates, "in evaluation mode"),
    (leaves_the_layer_in_evaluation, "the layer is in evaluation mode now"),
    (takes_the_mean, "that is the mean difference"),
    (forgets_abs, "a negative difference is large too"),
    (looks_at_the_last_replica, "that is the last replica's"),
    (looks_at_the_first_part, "in the first part only"),
    (returns_tensors, ".item() makes one of a tensor"),
    (returns_one_number, "not two numbers"),
    (splits_into_equal_parts, "parts of 5, 2"),
    (makes_new_layers, "is each part normalised"),
    (averages_the_running_means, "is that the mean over all replicas"),
    (copies_shallowly, "the layer itself was changed"),
    (restores_the_mean_only, "the layer itself was changed (running_var"),
    (compares_a_replica_with_itself, "did whole and parts go through the same layer"),
    (takes_the_worst_replica, "that is the last replica's"),
    (leaves_out_the_momentum, "which replica's running_mean"),
    (compares_with_the_start, "which replica's running_mean"),
    (averages_with_weights, "is that a mean over all replicas"),
    (uses_the_sizes_up, "the list of sizes was changed"),
]


def part_by_part(layer, x, sizes):
    whole = copy.deepcopy(layer)
    expected, begin, gaps, kept = whole(x), 0, [], None
    for size in sizes:
        replica = copy.deepcopy(layer)
        output = replica(x[begin : begin + size])
        gaps.append(float((output - expected[begin : begin + size]).abs().max()))
        kept = replica.running_mean if kept is None else kept
        begin += size
    return [max(gaps), float((kept - whole.running_mean).abs().max())]


def without_grad(layer, x, sizes):
    with torch.no_grad():
        return one_right(layer, x, sizes)


def puts_the_state_back(layer, x, sizes):
    state, outputs, means = copy.deepcopy(layer.state_dict()), [], []
    for part in (x, *x.split(sizes)):
        outputs.append(layer(part))
        means.append(layer.running_mean.clone())
        layer.load_state_dict(state)
    gap = (torch.cat(outputs[1:]) - outputs[0]).abs().max().item()
    return gap, (means[1] - means[0]).abs().max().item()


def by_the_function(layer, x, sizes):
    def run(images):
        mean, variance = layer.running_mean.clone(), layer.running_var.clone()
        settings = layer.weight, layer.bias, True, layer.momentum, layer.eps
        return torch.nn.functional.batch_norm(images, mean, variance, *settings), mean

    (output, mean), parts = run(x), [run(part) for part in x.split(sizes)]
    gap = torch.dist(torch.cat([part for part, _ in parts]), output, p=float("inf"))
    return gap.item(), (parts[0][1] - mean).abs().amax().item()


RIGHT = [part_by_part, without_grad, puts_the_state_back, by_the_function]
