# %% [markdown]
# # A ConvNet on images
# TensorGRaD is made for spectral weights, but compresses the gradients of convolutions and linear layers just as
# well. Here a small ConvNet learns to tell discs, squares and crosses in noise.

# %%
import torch
from torch import nn
from torch.nn import functional

import libtgrad

SIZE, CLASSES = 24, 3


def images(count, seed):
    """Discs, squares and crosses of random place and size, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    centre = 7 + 10 * torch.rand(count, 2, 1, 1, generator=generator)
    radius = 3 + 3 * torch.rand(count, 1, 1, generator=generator)
    axis = torch.arange(SIZE).float()
    dx, dy = (axis[None, None] - centre[:, 0]).abs(), (axis[None, :, None] - centre[:, 1]).abs()
    disc = dx.square() + dy.square() < radius.square()
    square = torch.maximum(dx, dy) < 0.8 * radius
    cross = (torch.minimum(dx, dy) < 1.2) & (torch.maximum(dx, dy) < radius)
    shapes = torch.stack([disc, square, cross])[labels, torch.arange(count)]
    return shapes[:, None].float() + 0.15 * torch.randn(count, 1, SIZE, SIZE, generator=generator), labels


# %%
def train(make_optimizer, epochs=12):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(64 * 9, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = make_optimizer(model)
    x, labels = images(768, seed=1)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
    x, labels = images(512, seed=2)
    with torch.no_grad():
        return (model(x).argmax(1) == labels).float().mean().item(), optimizer


# %%
adam, _ = train(lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3))
ours, optimizer = train(lambda model: libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=3e-3))
print(f"accuracy: AdamW {adam:.3f}, TensorGRaD {ours:.3f}")
memory = optimizer.memory()
print(f"state: {memory['state']} bytes, AdamW's {memory['adamw']}")

# %%
assert ours > 0.8 and ours > adam - 0.1
assert memory["state"] < 0.35 * memory["adamw"]
