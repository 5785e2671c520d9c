"""Exercise 1.3: answers that its check must refuse, each with words from the reason that it must give."""

import copy

import torch


def moves_tensors_only(batch, device):
    return batch.to(device)


def goes_one_level_deep(batch, device):
    def moved(value):
        return value.to(device) if isinstance(value, torch.Tensor) else value

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: moved(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)([moved(value) for value in batch])
    return batch


def forgets_tuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: forgets_tuples(value, device) for key, value in batch.items()}
    if isinstance(batch, list):
        return [forgets_tuples(value, device) for value in batch]
    return batch


def makes_lists_of_tuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: makes_lists_of_tuples(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [makes_lists_of_tuples(value, device) for value in batch]
    return batch


def makes_tuples_of_namedtuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: makes_tuples_of_namedtuples(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(makes_tuples_of_namedtuples(value, device) for value in batch)
    if isinstance(batch, list):
        return [makes_tuples_of_namedtuples(value, device) for value in batch]
    return batch


def hands_a_namedtuple_one_argument(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: hands_a_namedtuple_one_argument(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(hands_a_namedtuple_one_argument(value, device) for value in batch)
    return batch


def works_in_place(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = works_in_place(batch[key], device)
        return batch
    if hasattr(batch, "_fields"):
        return type(batch)(*(works_in_place(value, device) for value in batch))
    if isinstance(batch, tuple):
        return tuple(works_in_place(value, device) for value in batch)
    if isinstance(batch, list):
        batch[:] = [works_in_place(value, device) for value in batch]
    return batch


def takes_texts_for_lists(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: takes_texts_for_lists(value, device) for key, value in batch.items()}
    if hasattr(batch, "__iter__"):
        return type(batch)([takes_texts_for_lists(value, device) for value in batch])
    return batch


def expects_only_tensors_inside(batch, device):
    if isinstance(batch, dict):
        return {key: expects_only_tensors_inside(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(expects_only_tensors_inside(value, device) for value in batch)
    return batch.to(device)


def drops_what_it_does_not_know(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: drops_what_it_does_not_know(value, device) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(drops_what_it_does_not_know(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(drops_what_it_does_not_know(value, device) for value in batch)


def throws_the_copy_away(batch, device):
    if isinstance(batch, torch.Tensor):
        batch.to(device)
    elif isinstance(batch, dict):
        for value in batch.values():
            throws_the_copy_away(value, device)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            throws_the_copy_away(value, device)
    return batch


def copies_all_and_moves_to_the_cpu(batch, device):
    return copy.deepcopy(batch)


def turns_arrays_into_tensors(batch, device):
    if isinstance(batch, dict):
        return {key: turns_arrays_into_tensors(value, device) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(turns_arrays_into_tensors(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(turns_arrays_into_tensors(value, device) for value in batch)
    return batch if batch is None or isinstance(batch, (str, bytes)) else torch.as_tensor(batch).to(device)


WRONG = [
    (moves_tensors_only, "'tuple' object has no attribute 'to'"),
    (goes_one_level_deep, "of a list in a dict, the result['images'][0] is still on cpu"),
    (forgets_tuples, "of a pair of tensors, the result[0] is still on cpu"),
    (makes_lists_of_tuples, "is a list, and was a tuple: the kind of container must stay"),
    (makes_tuples_of_namedtuples, "is a tuple, and was a Sample"),
    (hands_a_namedtuple_one_argument, "missing 1 required positional argument: 'label'"),
    (works_in_place, "moving a dict has changed the original"),
    (takes_texts_for_lists, "call itself for ever"),
    (expects_only_tensors_inside, "'str' object has no attribute 'to'"),
    (drops_what_it_does_not_know, "is None, and was 'seven', which should come back as it is"),
    (throws_the_copy_away, "of a tensor, the result is still on cpu"),
    (copies_all_and_moves_to_the_cpu, "of a tensor, the result is still on cpu, asked for was meta"),
    (turns_arrays_into_tensors, "is tensor(..., device='meta', size=(), dtype=torch.int64), and was 7"),
]


def matches_what_it_is_given(batch, device):
    match batch:
        case torch.Tensor():
            return batch.to(device)
        case dict():
            return dict(zip(batch, matches_what_it_is_given(list(batch.values()), device)))
        case list():
            return [matches_what_it_is_given(value, device) for value in batch]
        case tuple():
            values = [matches_what_it_is_given(value, device) for value in batch]
            return batch._make(values) if hasattr(batch, "_make") else tuple(values)
        case _:
            return batch


def lets_torch_walk(batch, device):
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)


RIGHT = [matches_what_it_is_given, lets_torch_walk]
