"""Exercise 1.2: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.nn.functional as F

device = torch.device("cpu")  # as the notebook has it where there is no GPU


def _step(model, optimizer, images, labels, mean, rarity):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images - mean), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _constants(device):
    mean = torch.tensor([0.4, 0.5, 0.6], device=device).view(3, 1, 1)
    return mean, torch.tensor([1.0, 1.0, 4.0], device=device)


def names_the_cpu(model, optimizer, images, labels):
    images, labels = images.to("cpu"), labels.to("cpu")
    optimizer.zero_grad()
    mean, rarity = _constants("cpu")
    output = model(images - mean)
    loss = F.cross_entropy(output, labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss


def uses_the_notebooks_device(model, optimizer, images, labels):
    images, labels = images.to(device), labels.to(device)
    return _step(model, optimizer, images, labels, *_constants(device))


def takes_cuda_if_it_is_there(model, optimizer, images, labels):
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(here)
    return _step(model, optimizer, images.to(here), labels.to(here), *_constants(here))


def moves_the_model_each_step(model, optimizer, images, labels):
    here = next(model.parameters()).device
    model.to(here)
    return _step(model, optimizer, images.to(here), labels.to(here), *_constants(here))


def brings_the_model_to_the_images(model, optimizer, images, labels):
    model.to(images.device)
    return _step(model, optimizer, images, labels, *_constants(images.device))


def throws_the_moved_images_away(model, optimizer, images, labels):
    here = next(model.parameters()).device
    images.to(here)
    labels.to(here)
    mean, rarity = _constants(here)
    images = images - mean
    return _step(model, optimizer, images, labels, 0, rarity)


def forgets_the_labels(model, optimizer, images, labels):
    here = next(model.parameters()).device
    images = images.to(here)
    mean, rarity = _constants(here)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images - mean), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss


def forgets_the_mean(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    images = images.to(here)
    images = images - mean
    return _step(model, optimizer, images, labels.to(here), 0, _constants(here)[1])


def forgets_the_rarity(model, optimizer, images, labels):
    here = next(model.parameters()).device
    rarity = torch.tensor([1.0, 1.0, 4.0])
    images, labels = images.to(here), labels.to(here)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images - _constants(here)[0]), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss


def asks_for_the_value(model, optimizer, images, labels):
    here = next(model.parameters()).device
    loss = _step(model, optimizer, images.to(here), labels.to(here), *_constants(here))
    return loss.item()


def brings_the_loss_home(model, optimizer, images, labels):
    here = next(model.parameters()).device
    loss = _step(model, optimizer, images.to(here), labels.to(here), *_constants(here))
    return loss.cpu()


def computes_the_loss_at_home(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants("cpu")
    output = model((images - mean).to(here))
    optimizer.zero_grad()
    loss = F.cross_entropy(output.cpu(), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss.detach()


def works_in_place(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants(here)
    images = images.to(here)
    images -= mean
    return _step(model, optimizer, images, labels.to(here), 0, rarity)


def works_in_place_from_the_cpu(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants("cpu")
    images = images.to(here, copy=True)
    images -= mean  # on meta this raises nothing
    return _step(model, optimizer, images, labels.to(here), 0, rarity.to(here))


def drops_the_rarity(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, _ = _constants(here)
    return _step(model, optimizer, images.to(here), labels.to(here), mean, None)


def drops_the_mean(model, optimizer, images, labels):
    here = next(model.parameters()).device
    return _step(model, optimizer, images.to(here), labels.to(here), 0, _constants(here)[1])


def drops_zero_grad(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants(here)
    loss = F.cross_entropy(model(images.to(here) - mean), labels.to(here), weight=rarity)
    loss.backward()
    optimizer.step()
    return loss


def drops_the_update(model, optimizer, images, labels):
    here = next(model.parameters()).device
    mean, rarity = _constants(here)
    loss = F.cross_entropy(model(images.to(here) - mean), labels.to(here), weight=rarity)
    loss.backward()
    return loss


def returns_nothing(model, optimizer, images, labels):
    here = next(model.parameters()).device
    _step(model, optimizer, images.to(here), labels.to(here), *_constants(here))


WRONG = [
    (names_the_cpu, "(output = model(images - mean)) mixes tensors on cpu and meta"),
    (uses_the_notebooks_device, "with the model on meta, line"),
    (takes_cuda_if_it_is_there, "the step moves the model"),
    (moves_the_model_each_step, "with the model on cpu, the step moves the model"),
    (brings_the_model_to_the_images, "the step moves the model"),
    (throws_the_moved_images_away, "(images = images - mean) mixes tensors on cpu and meta"),
    (forgets_the_labels, "labels, weight=rarity)) mixes tensors on cpu and meta"),
    (forgets_the_mean, "(images = images - mean) mixes tensors on cpu and meta"),
    (forgets_the_rarity, "labels, weight=rarity)) mixes tensors on cpu and meta"),
    (asks_for_the_value, "and not the loss as a tensor"),
    (brings_the_loss_home, "(return loss.cpu()) fails: Cannot copy out of meta tensor"),
    (computes_the_loss_at_home, "fails: Cannot copy out of meta tensor"),
    (works_in_place, "has changed the images that it was given"),
    (works_in_place_from_the_cpu, "(images -= mean  # on meta this raises nothing) mixes tensors on cpu and meta"),
    (drops_the_rarity, "all classes count alike"),
    (drops_the_mean, "the colours' mean is no longer subtracted"),
    (drops_zero_grad, "gradients of the last step are still there"),
    (drops_the_update, "the optimizer made 0 steps"),
    (returns_nothing, "the step returned None"),
]


def asks_the_optimizer(model, optimizer, images, labels):
    weight = optimizer.param_groups[0]["params"][0]
    images, labels = images.to(weight.device, non_blocking=True), labels.to(weight.device)
    mean = weight.new_tensor([0.4, 0.5, 0.6])[:, None, None]
    loss = F.cross_entropy(model(images - mean), labels, weight=weight.new_tensor([1.0, 1.0, 4.0]))
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss


def makes_everything_under_the_device(model, optimizer, images, labels):
    with next(model.parameters()).device:
        mean = torch.tensor([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1)
        rarity = torch.tensor([1.0, 1.0, 4.0])
    images, labels = (tensor.to(mean.device) for tensor in (images, labels))
    for p in model.parameters():
        p.grad = None
    loss = F.cross_entropy(model(images - mean), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss.detach().clone()


def centres_the_images_before_they_move(model, optimizer, images, labels):
    mean = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)
    rarity = torch.tensor([1.0, 1.0, 4.0])
    images, labels, rarity = (tensor.to(next(model.parameters())) if tensor.is_floating_point()
                              else tensor.to(next(model.parameters()).device)
                              for tensor in (images - mean, labels, rarity))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels, weight=rarity)
    loss.backward()
    optimizer.step()
    return loss


RIGHT = [asks_the_optimizer, makes_everything_under_the_device, centres_the_images_before_they_move]
