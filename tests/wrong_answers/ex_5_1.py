"""Exercise 5.1: answers that its check must refuse, each with words from the reason that it must give."""

import numpy as np
import torch


def _require(x, devices):
    if len(x) < len(devices):
        raise ValueError(f"{len(x)} images cannot be shared by {len(devices)} devices")


def uses_chunk(x, y, devices):
    _require(x, devices)
    parts = zip(x.chunk(len(devices)), y.chunk(len(devices)), devices)
    return [(a.to(device), b.to(device)) for a, b, device in parts]


def drops_the_rest(x, y, devices):
    _require(x, devices)
    size = len(x) // len(devices)
    return [(x[i * size :][:size].to(d), y[i * size :][:size].to(d)) for i, d in enumerate(devices)]


def gives_the_rest_to_the_last(x, y, devices):
    _require(x, devices)
    size, last = len(x) // len(devices), len(devices) - 1
    ends = [(i + 1) * size for i in range(last)] + [len(x)]
    return [(x[i * size : end].to(d), y[i * size : end].to(d)) for i, (end, d) in enumerate(zip(ends, devices))]


def larger_parts_last(x, y, devices):
    _require(x, devices)
    bounds = [i * len(x) // len(devices) for i in range(len(devices) + 1)]
    return [(x[a:b].to(d), y[a:b].to(d)) for a, b, d in zip(bounds, bounds[1:], devices)]


def deals_like_cards(x, y, devices):
    _require(x, devices)
    n = len(devices)
    return [(x[i::n].to(d), y[i::n].to(d)) for i, d in enumerate(devices)]


def lets_parts_be_empty(x, y, devices):
    parts = zip(x.tensor_split(len(devices)), y.tensor_split(len(devices)), devices)
    return [(a.to(d), b.to(d)) for a, b, d in parts]


def returns_two_lists(x, y, devices):
    _require(x, devices)
    return [a.to(d) for a, d in zip(x.tensor_split(len(devices)), devices)], [
        b.to(d) for b, d in zip(y.tensor_split(len(devices)), devices)
    ]


def forgets_the_labels(x, y, devices):
    _require(x, devices)
    return [(a.to(d), y.to(d)) for a, d in zip(x.tensor_split(len(devices)), devices)]


def leaves_them_where_they_are(x, y, devices):
    _require(x, devices)
    return list(zip(x.tensor_split(len(devices)), y.tensor_split(len(devices))))


def moves_the_images_only(x, y, devices):
    _require(x, devices)
    parts = zip(x.tensor_split(len(devices)), y.tensor_split(len(devices)), devices)
    return [(a.to(d), b) for a, b, d in parts]


def says_nothing_of_the_numbers(x, y, devices):
    if len(x) < len(devices):
        raise ValueError("the batch is too small")
    return lets_parts_be_empty(x, y, devices)


def asserts_instead(x, y, devices):
    assert len(x) >= len(devices), f"{len(x)} < {len(devices)}"
    return lets_parts_be_empty(x, y, devices)


def returns_nothing(x, y, devices):
    lets_parts_be_empty(x, y, devices)


def refuses_one_image_each(x, y, devices):
    if len(x) <= len(devices):
        raise ValueError(f"{len(x)} images for {len(devices)} devices")
    return lets_parts_be_empty(x, y, devices)


def takes_places_for_names(x, y, devices):
    _require(x, devices)
    names = [torch.device("cuda", i) if device.type == "cuda" else device for i, device in enumerate(devices)]
    return lets_parts_be_empty(x, y, names)


def shows_the_shape_only(x, y, devices):
    if len(x) < len(devices):
        raise ValueError(f"a batch of {tuple(x.shape)} is too small")
    return lets_parts_be_empty(x, y, devices)


def uses_the_list_up(x, y, devices):
    _require(x, devices)
    parts = list(zip(x.tensor_split(len(devices)), y.tensor_split(len(devices))))
    return [(a.to(device), b.to(device)) for (a, b), device in ((part, devices.pop(0)) for part in parts)]


def squeezes(x, y, devices):
    _require(x, devices)
    return [(a.squeeze(), b) for a, b in lets_parts_be_empty(x, y, devices)]


def yields(x, y, devices):
    _require(x, devices)
    yield from lets_parts_be_empty(x, y, devices)


WRONG = [
    (uses_chunk, "their sizes may differ by one at most"),
    (drops_the_rest, "parts of [3, 3, 3, 3], together 12"),
    (gives_the_rest_to_the_last, "the larger ones come first"),
    (larger_parts_last, "the larger ones come first"),
    (deals_like_cards, "are not the batch in its order"),
    (lets_parts_be_empty, "nothing was raised"),
    (returns_two_lists, "two lists came back"),
    (forgets_the_labels, "the labels into [64, 64, 64, 64]"),
    (leaves_them_where_they_are, "the images of device 0 are on cuda:0"),
    (moves_the_images_only, "the labels of device 0 are on cuda:0"),
    (says_nothing_of_the_numbers, "wants to know both numbers"),
    (asserts_instead, "and not a ValueError"),
    (returns_nothing, "not a list of pairs"),
    (refuses_one_image_each, "4 images for 4 devices"),
    (takes_places_for_names, "are on cuda:0, and should be on cuda:1"),
    (shows_the_shape_only, "wants to know both numbers"),
    (uses_the_list_up, "list of devices was changed"),
    (squeezes, "the images were split into [2, 3, 3, 3]"),
    (yields, "not a list of pairs"),
]


def with_tensor_split(x, y, devices):
    _require(x, devices)
    return tuple(
        [a.to(d), b.to(d)] for a, b, d in zip(x.tensor_split(len(devices)), y.tensor_split(len(devices)), devices)
    )


def with_numpy_indices(x, y, devices):
    _require(x, devices)
    places = np.array_split(np.arange(len(x)), len(devices))
    return [(x[place.tolist()].to(d), y[place.tolist()].to(d)) for place, d in zip(places, devices)]


def by_taking_turns(x, y, devices):
    _require(x, devices)
    begin, pairs = 0, []
    for i, device in enumerate(devices):
        left = len(devices) - i
        end = begin + -(-(len(x) - begin) // left)
        pairs.append((torch.clone(x[begin:end]).to(device), y[begin:end].to(device)))
        begin = end
    return pairs


def with_an_error_of_its_own(x, y, devices):
    class TooFew(ValueError):
        pass

    if x.size(0) < len(devices):
        raise TooFew(x.size(0), len(devices))
    images = [part.to(device) for part, device in zip(x.tensor_split(len(devices)), devices)]
    return list(zip(images, [part.to(device) for part, device in zip(y.tensor_split(len(devices)), devices)]))


def moves_before_it_cuts(x, y, devices):
    _require(x, devices)
    sizes = [len(range(i, len(x), len(devices))) for i in range(len(devices))]
    return [tuple(whole.to(device).split(sizes)[i] for whole in (x, y)) for i, device in enumerate(devices)]


RIGHT = [with_tensor_split, with_numpy_indices, by_taking_turns, with_an_error_of_its_own, moves_before_it_cuts]
