"""Exercise 1.1: answers that its check must refuse, each with words from the reason that it must give."""

import sys


def prints_the_rows(model):
    for name, tensor in model.state_dict().items():
        print(name, tuple(tensor.shape), tensor.device, tensor.nbytes)


def lists_parameters_only(model):
    return [(name, tuple(p.shape), str(p.device), p.nbytes) for name, p in model.named_parameters()]


def adds_what_is_not_saved(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return [(name, tuple(t.shape), str(t.device), t.nbytes) for name, t in tensors.items()]


def takes_four_bytes_for_all(model):
    return [(name, tuple(t.shape), str(t.device), 4 * t.numel()) for name, t in model.state_dict().items()]


def counts_elements(model):
    return [(name, tuple(t.shape), str(t.device), t.numel()) for name, t in model.state_dict().items()]


def counts_the_whole_storage(model):
    state = model.state_dict().items()
    return [(name, tuple(t.shape), str(t.device), t.untyped_storage().nbytes()) for name, t in state]


def measures_the_python_object(model):
    return [(name, tuple(t.shape), str(t.device), sys.getsizeof(t)) for name, t in model.state_dict().items()]


def asks_one_tensor_where_it_is(model):
    device = str(next(model.parameters()).device)
    return [(name, tuple(t.shape), device, t.nbytes) for name, t in model.state_dict().items()]


def leaves_the_device_a_device(model):
    return [(name, tuple(t.shape), t.device, t.nbytes) for name, t in model.state_dict().items()]


def sorts_by_name(model):
    return sorted((name, tuple(t.shape), str(t.device), t.nbytes) for name, t in model.state_dict().items())


def returns_a_dict(model):
    return {name: (tuple(t.shape), str(t.device), t.nbytes) for name, t in model.state_dict().items()}


def leaves_the_bytes_a_tensor(model):
    import torch

    return [(name, tuple(t.shape), str(t.device), torch.tensor(t.nbytes)) for name, t in model.state_dict().items()]


def returns_inside_the_loop(model):
    rows = []
    for name, t in model.state_dict().items():
        rows.append((name, tuple(t.shape), str(t.device), t.nbytes))
        return rows


def forgets_the_shape(model):
    return [(name, str(t.device), t.nbytes) for name, t in model.state_dict().items()]


WRONG = [
    (prints_the_rows, "are the rows returned, or only printed?"),
    (lists_parameters_only, "no row for ['1.running_mean']: a state_dict holds more than parameters"),
    (adds_what_is_not_saved, "there is a row ['scratch'], which is not in the state_dict"),
    (takes_four_bytes_for_all, "elements of torch.bfloat16, and not every dtype takes 4 bytes"),
    (counts_elements, "an element takes more than one byte"),
    (counts_the_whole_storage, "only a part of the memory that they lie in"),
    (measures_the_python_object, "the bytes are "),
    (asks_one_tensor_where_it_is, "is each tensor asked where it is?"),
    (leaves_the_device_a_device, "which is not a text"),
    (sorts_by_name, "the rows come in the order"),
    (returns_a_dict, "not a list of tuples"),
    (leaves_the_bytes_a_tensor, "the bytes are tensor(48), not a whole number"),
    (returns_inside_the_loop, "there is no row for ['0.bias']: does the answer go through all of them?"),
    (forgets_the_shape, "not a list of tuples"),
]


def asks_for_nbytes(model):
    rows = []
    for name, tensor in model.state_dict().items():
        rows.append((name, tensor.shape, f"{tensor.device}", tensor.nbytes))  # torch.Size is a tuple
    return rows


def multiplies_the_shape(model):
    rows = []
    for name, tensor in model.state_dict().items():
        num_elements = 1
        for length in tensor.shape:
            num_elements *= length
        rows.append((name, (*tensor.shape,), str(tensor.device), num_elements * tensor.dtype.itemsize))
    return rows


RIGHT = [asks_for_nbytes, multiplies_the_shape]
