"""The networks of the course.

None has BatchNorm or dropout, so every way of splitting the work gives the same numbers.
"""

import torch
import torch.nn.functional as F
from torch import nn


class LectureNet(nn.Module):
    """The lecture's convolutional network for 3×32×32 images and 10 classes: 120,078 parameters.

    Nearly all of its time goes into the layers before the first linear one, which has nearly half of its parameters.
    """

    def __init__(self, hidden_channels=128):
        super().__init__()
        self.conv1 = nn.Conv2d(3, hidden_channels, 5)
        self.conv2 = nn.Conv2d(hidden_channels, 16, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):  # (B, 3, 32, 32)
        x = self.pool(F.relu(self.conv1(x)))  # (B, 128, 14, 14)
        x = self.pool(F.relu(self.conv2(x)))  # (B, 16, 5, 5)
        x = x.flatten(1)  # (B, 400)
        x = F.relu(self.fc1(x))  # (B, 120)
        x = F.relu(self.fc2(x))  # (B, 84)
        return self.fc3(x)  # (B, 10)


class DigitsNet(nn.Module):
    """A small convolutional network for 1×16×16 images and 10 classes: 38,282 parameters, seconds to train on a CPU."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):  # (B, 1, 16, 16)
        x = self.pool(F.relu(self.conv1(x)))  # (B, 16, 8, 8)
        x = self.pool(F.relu(self.conv2(x)))  # (B, 32, 4, 4)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # (B, 10)


class Attention(nn.Module):
    """Self-attention with `d // head_dim` independent heads; the output layer has no bias.

    `attend(q, k, v)` mixes what the heads hold, each (b, heads, s, head_dim); by default every token attends to all.
    """

    def __init__(self, d, head_dim, attend=F.scaled_dot_product_attention):
        super().__init__()
        self.head_dim, self.attend = head_dim, attend
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.out = nn.Linear(d, d, bias=False)

    def forward(self, x):  # (b, s, d): b sequences of s tokens
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = self.attend(q, k, v)  # (b, heads, s, head_dim): each head separately
        return self.out(mixed.transpose(1, 2).flatten(2))  # (b, s, d)


class MLP(nn.Module):
    """Two linear layers, the second without a bias."""

    def __init__(self, d, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))  # (b, s, d) → (b, s, hidden) → (b, s, d)


class TransformerBlock(nn.Module):
    """Attention, then an MLP of width 4d, each with a LayerNorm before it and a residual connection.

    `attend` is as for `Attention`; `mlp` replaces the MLP.
    """

    def __init__(self, d, head_dim, attend=F.scaled_dot_product_attention, mlp=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention, self.mlp = Attention(d, head_dim, attend), mlp or MLP(d, 4 * d)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Residual(nn.Sequential):
    """A sequence of layers with a residual connection around it."""

    def forward(self, x):
        return x + super().forward(x)


class Patches(nn.Module):
    """Cut an image into patches of 4 × 4 pixels, embed each as a token, and add a learned position."""

    def __init__(self, num_tokens, d):
        super().__init__()
        self.embed = nn.Linear(4 * 4, d)
        self.place = nn.Parameter(torch.zeros(num_tokens, d))

    def forward(self, x):  # (b, 1, H, W)
        x = F.unfold(x, 4, stride=4).transpose(1, 2)  # (b, s, 16): s = H/4 · W/4 patches
        return self.embed(x) + self.place  # (b, s, d)


class Guess(nn.Module):
    """Classifies into ten classes from the mean of all tokens."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.classes = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, x):  # (b, s, d)
        return self.classes(self.norm(x).mean(1))  # (b, 10)


def causal_attention(q, k, v):
    """Attend from each token to itself and those before it; shapes (b, heads, s, head_dim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class LanguageModel(nn.Module):
    """Predicts each next character: codes (b, s) → logits (b, s, num_symbols).

    `positions` (s,) says where in the whole sequence the tokens stand, 0 to s − 1 by default. `attend` is as for
    `Attention`, causal by default; `make_mlp()` makes the MLP of each block.
    """

    def __init__(
        self, num_symbols, d=64, head_dim=16, num_blocks=2, max_length=256, attend=causal_attention, make_mlp=None
    ):
        super().__init__()
        self.embed, self.place = nn.Embedding(num_symbols, d), nn.Embedding(max_length, d)
        self.blocks = nn.ModuleList(
            TransformerBlock(d, head_dim, attend, make_mlp and make_mlp()) for _ in range(num_blocks)
        )
        self.norm, self.logits = nn.LayerNorm(d), nn.Linear(d, num_symbols)

    def forward(self, codes, positions=None):  # (b, s)
        if positions is None:
            positions = torch.arange(codes.shape[1], device=codes.device)
        x = self.embed(codes) + self.place(positions)  # (b, s, d)
        for block in self.blocks:
            x = block(x)  # (b, s, d)
        return self.logits(self.norm(x))  # (b, s, num_symbols)


def mlp(d=128, num_blocks=4):
    """A sequence of equal two-layer residual blocks for 1×16×16 images: 561,034 parameters; it can be cut anywhere."""
    blocks = [Residual(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d)) for _ in range(num_blocks)]
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16 * 16, d)), *blocks, nn.Linear(d, 10))


def transformer(d=64, head_dim=16, num_blocks=4):
    """A sequence of transformer blocks over the 16 patches of a 1×16×16 image: 202,314 parameters."""
    blocks = [TransformerBlock(d, head_dim) for _ in range(num_blocks)]
    return nn.Sequential(Patches(16, d), *blocks, Guess(d))
