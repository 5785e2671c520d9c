"""A data set of compressed images, so that reading one costs CPU time, with random augmentation."""

import zlib

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset


class PackedImages(Dataset):
    """The images and labels of a data set, with one-byte pixels compressed by zlib, as in a PNG file.

    `packed[i]` is (image, label), decompressed and augmented. `decode(i)` is the original image, float32 in [0, 1].
    """

    def __init__(self, data):
        self.shape, self.labels = tuple(data.images.shape[1:]), data.labels
        self.files = [zlib.compress((image * 255).byte().numpy().tobytes()) for image in data.images]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return augment(self.decode(i)[None])[0], self.labels[i]

    def decode(self, i):
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.files[i])), dtype=torch.uint8)
        return pixels.view(self.shape) / 255


def augment(images):
    """Rotate each of `images` (N, C, H, W) by up to 0.25 rad and shift it by up to 5 % of its size, on its device."""
    angle = 0.5 * torch.rand(len(images), device=images.device) - 0.25
    dx, dy = 0.2 * torch.rand(2, len(images), device=images.device) - 0.1  # 2 is the whole width
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([cos, -sin, dx, sin, cos, dy], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(turn, images.shape, align_corners=False)  # (N, H, W, 2): source of each pixel
    return F.grid_sample(images, grid, align_corners=False)
