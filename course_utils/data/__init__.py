"""The course's images, bundled or downloaded, shuffled batches of them, and its text."""

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from .files import DATA, DATA_SETS, folders, load_half
from .text import Text, load_text

__all__ = ["Images", "Text", "batches", "load_images", "load_text"]

_NAMES = ("digits", *DATA_SETS)
# Height (= width) and channels, which the digits take as a substitute.
_SHAPES = {"mnist": (28, 1), "fashion_mnist": (28, 1), "cifar10": (32, 3)}


@dataclass
class Images:
    """Images with their labels.

    `images` is float32 of shape (N, C, H, W), pixel values scaled to [0, 1]; no mean is subtracted, so the values mean
    the same for every data set. `labels` is int64 of shape (N,), from 0 to `num_classes` - 1. `name` is the data set
    actually loaded.
    """

    images: torch.Tensor
    labels: torch.Tensor
    name: str
    num_classes: int = 10

    def __len__(self) -> int:
        return len(self.labels)


def load_images(
    name: str = "digits", train: bool = True, size: int | None = None, channels: int | None = None
) -> Images:
    """Load "digits", "mnist", "fashion_mnist" or "cifar10": the training or the test images.

    The digits (1,437 for training, 360 for testing) are in the repository. The others are read from COURSE_DATA, else
    from data/downloads, else downloaded to there, or to a folder in the user's home if the checkout is read-only. If
    that fails, one line says so and the digits are returned in the shape of the requested images. To get matching test
    images, load them by the `name` of the training images.

    `size` resizes to `size` × `size` pixels (bilinear); `channels=3` repeats a grey channel.

    Raises ValueError for an unknown name, size or number of channels, NotADirectoryError if COURSE_DATA is not a
    directory, and RuntimeError, naming the file, if a file is damaged.
    """
    if name not in _NAMES:
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(_NAMES)}")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ValueError(f"size is {size!r}; it must be a whole number of pixels, 1 or more")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels is {channels!r}; it must be 1 or 3")
    if name == "cifar10" and channels == 1:
        raise ValueError("cifar10 is in colour: channels must be 3, or left out")
    folders()  # a wrong COURSE_DATA raises even when only digits are wanted
    loaded = load_half(name, train) if name != "digits" else _load_digits(train)
    if loaded is None:
        size, channels = size or _SHAPES[name][0], channels or _SHAPES[name][1]
        name, loaded = "digits", _load_digits(train)
    pixels, labels = loaded
    return Images(_shaped(pixels, name, size, channels), labels, name)


def batches(
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = True,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shuffled batches (x, y) of one epoch, the same for the same `seed` and `epoch`.

    The order is that of torch's `DistributedSampler` with this seed and epoch: what W ranks with batches of B see
    together in a step is one batch of W × B here.

    Raises ValueError if a batch is larger than the data, so that no epoch is silently empty.
    """
    if len(images) != len(labels):
        raise ValueError(f"there are {len(images)} images but {len(labels)} labels")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number, 1 or more")
    if batch_size > len(images):
        raise ValueError(
            f"batch_size is {batch_size}, but there are only {len(images)} images; choose one of at most {len(images)}"
        )

    def one_epoch():
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed + epoch))
        for chosen in order.split(batch_size):
            if len(chosen) == batch_size or not drop_last:
                yield images[chosen], labels[chosen]

    return one_epoch()  # a nested generator, so that the checks above run at the call


def _shaped(pixels: torch.Tensor, name: str, size: int | None, channels: int | None) -> torch.Tensor:
    """Convert pixels (N, C, H, W) to float32 in [0, 1], resized, with grey repeated if asked."""
    images = pixels.to(torch.float32) / (16 if name == "digits" else 255)
    if size is not None and size != images.shape[-1]:
        images = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True).clamp_(
            0, 1
        )  # rounding may slightly leave [0, 1]
    if channels == 3 and images.shape[1] == 1:
        images = images.repeat(1, 3, 1, 1)  # (N, 1, H, W) -> (N, 3, H, W)
    return images


def _load_digits(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    path = DATA / "digits.npz"
    try:
        with np.load(path) as stored:
            pixels, labels = stored["images"], stored["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RuntimeError(f"{path} is missing or damaged ({error}); run `git checkout -- data/digits.npz`") from error
    # Every fifth image in label order is for testing: each class is split 4 to 1, without a random generator whose
    # numbers may change between versions.
    test = np.sort(np.argsort(labels, kind="stable")[::5])
    chosen = np.setdiff1d(np.arange(len(labels)), test) if train else test
    return torch.from_numpy(pixels[chosen])[:, None], torch.from_numpy(labels[chosen]).long()
