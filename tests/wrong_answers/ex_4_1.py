"""Exercise 4.1: answers that its check must refuse, each with words from the reason that it must give."""

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_


def clips_before_unscaling(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def clips_before_it_calls_unscale(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def forgets_to_update(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    return loss.item()


def steps_past_the_scaler(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return loss.item()


def clips_after_the_step(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    return loss.item()


def never_clips(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def never_clears(model, optimizer, scaler, x, y, max_norm):
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def runs_backward_inside_autocast(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def forgets_autocast(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def takes_the_default_dtype(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def computes_the_loss_outside(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        output = model(x)
    loss = F.cross_entropy(output, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def returns_the_scaled_loss(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = scaler.scale(F.cross_entropy(model(x), y))
    loss.backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def returns_a_tensor(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss


def forgets_to_scale(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()


def clips_values_instead(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.clamp_(-max_norm / 10, max_norm / 10)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def clips_each_parameter(model, optimizer, scaler, x, y, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        clip_grad_norm_([p], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


WRONG = [
    (clips_before_unscaling, "was not the true gradient yet"),
    (clips_before_it_calls_unscale, "was not the true gradient yet"),
    (forgets_to_update, "the scaler was never told that the step is over"),
    (steps_past_the_scaler, "nobody would look for inf"),
    (clips_after_the_step, "it was not clipped, or too late"),
    (never_clips, "it was not clipped, or too late"),
    (never_clears, "still held gradients of the step before"),
    (runs_backward_inside_autocast, "the backward pass ran inside autocast"),
    (forgets_autocast, "the first layer's output was float32"),
    (takes_the_default_dtype, "the first layer's output was bfloat16"),
    (computes_the_loss_outside, "the loss itself had 16 bits"),
    (returns_the_scaled_loss, "which is 1024 times the loss"),
    (returns_a_tensor, "the loss is wanted, as a float"),
    (forgets_to_scale, "the loss was never scaled"),
    (clips_values_instead, "clipped as a whole?"),
    (clips_each_parameter, "clipped as a whole?"),
]


def clips_at_the_scaled_limit(model, optimizer, scaler, x, y, max_norm):
    with torch.autocast(device_type=str(x.device.type), dtype=torch.half):
        loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return loss.detach().item()


def clips_by_hand(model, optimizer, scaler, x, y, max_norm):
    with torch.amp.autocast(x.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    if norm.isfinite() and norm > max_norm:
        for p in model.parameters():
            p.grad *= max_norm / norm
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


RIGHT = [clips_at_the_scaled_limit, clips_by_hand]
