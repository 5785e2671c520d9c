"""Exercise 1.4: answers that its check must refuse, each with words from the reason that it must give."""

import copy

import torch


def converts_the_model(model, dtype):
    model.to(dtype)
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])


def counts_the_state_dict(model, dtype):
    return sum(t.numel() * (dtype.itemsize if t.is_floating_point() else t.element_size())
               for t in model.state_dict().values())


def leaves_out_buffers(model, dtype):
    return sum(p.numel() * dtype.itemsize for p in model.parameters())


def converts_whole_numbers(model, dtype):
    return sum(t.numel() * dtype.itemsize for t in [*model.parameters(), *model.buffers()])


def counts_what_is_there_now(model, dtype):
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])


def counts_elements(model, dtype):
    return sum(t.numel() for t in [*model.parameters(), *model.buffers()])


def goes_layer_by_layer(model, dtype):
    total = 0
    for layer in model.modules():
        for tensor in [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            total += tensor.numel() * (dtype.itemsize if tensor.is_floating_point() else tensor.element_size())
    return total


def leaves_out_what_is_not_saved(model, dtype):
    saved = model.state_dict()
    total = sum(p.numel() * dtype.itemsize for p in model.parameters())
    for name, b in model.named_buffers():
        if name in saved:
            total += b.numel() * (dtype.itemsize if b.is_floating_point() else b.element_size())
    return total


def halves_what_is_there(model, dtype):
    now = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    return now // 2 if dtype == torch.bfloat16 else now


def takes_whole_numbers_for_eight_bytes(model, dtype):
    return sum(t.numel() * (dtype.itemsize if t.is_floating_point() else 8)
               for t in [*model.parameters(), *model.buffers()])


def divides_eight_bits(model, dtype):
    bits = torch.finfo(dtype).bits
    return sum(t.numel() * (bits / 8 if t.is_floating_point() else t.element_size())
               for t in [*model.parameters(), *model.buffers()])


def counts_twice_as_saved(model, dtype):
    return sum(t.nbytes for t in copy.deepcopy(model).to(dtype).state_dict().values())


WRONG = [
    (converts_the_model, "the model itself was converted"),
    (counts_the_state_dict, "leaves out a buffer that is not saved"),
    (leaves_out_buffers, "which leaves out the buffers"),
    (converts_whole_numbers, "with BatchNorm in bfloat16 the answer was 258, which converts whole numbers"),
    (counts_what_is_there_now, "before the conversion"),
    (counts_elements, "a number of elements and not of bytes"),
    (goes_layer_by_layer, "which counts the shared weight twice"),
    (leaves_out_what_is_not_saved, "leaves out a buffer that is not saved"),
    (halves_what_is_there, "in bfloat16 the answer was 40, which is half of what it takes now"),
    (takes_whole_numbers_for_eight_bytes, "bytes too many"),
    (divides_eight_bits, "not a whole number of bytes"),
    (counts_twice_as_saved, "leaves out a buffer that is not saved"),
]


def converts_a_copy(model, dtype):
    converted = copy.deepcopy(model).to(dtype)  # a deep copy keeps shared tensors shared
    return sum(t.nbytes for t in [*converted.parameters(), *converted.buffers()])


def remembers_what_it_has_seen(model, dtype):
    seen, total = set(), 0
    for layer in model.modules():
        for tensor in [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                kept = tensor.dtype if not tensor.is_floating_point() else dtype
                total += tensor.numel() * torch.empty(0, dtype=kept).element_size()
    return total


RIGHT = [converts_a_copy, remembers_what_it_has_seen]
