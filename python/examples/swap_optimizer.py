# %% [markdown]
# # The optimizer of an FNO, swapped
# An FNO of neuraloperator learns Darcy flow twice: with AdamW, and with TensorGRaD in its place. One line differs;
# the optimizer keeps about a third of AdamW's state, an eighth with 8-bit state (a network of usual size: a quarter
# and 7 %).

# %%
import torch
from neuralop import LpLoss
from neuralop.models import FNO

import libtgrad

EPOCHS, BATCH = 8, 16
x, y = (torch.from_numpy(array) for array in libtgrad.generate("darcy", n=96, resolution=16, grid=31))
x_test, y_test = (torch.from_numpy(a) for a in libtgrad.generate("darcy", n=32, resolution=16, grid=31, test=True))
mean, std = y.mean(), y.std()

# %% [markdown]
# The same loop for both: the optimizer is what differs.

# %%
loss_of = LpLoss(d=2, p=2, reduction="mean")


def train(make_optimizer):
    torch.manual_seed(0)
    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=20, n_layers=3)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss_of(model(x[batch]), (y[batch] - mean) / std).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        error = loss_of(model(x_test) * std + mean, y_test).item()
    return error, optimizer


# %%
adam_error, _ = train(lambda model: torch.optim.AdamW(model.parameters(), lr=4e-3))
error, optimizer = train(lambda model: libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=4e-3))
error_8bit, optimizer_8bit = train(
    lambda model: libtgrad.TensorGRaD(libtgrad.param_groups(model, state_precision="8bit"), lr=4e-3,
                                      in_backward=True))  # updates inside of backward: one gradient at a time

# %%
memory, memory_8bit = optimizer.memory(), optimizer_8bit.memory()
print(f"AdamW              test error {adam_error:.3f}   state {memory['adamw']} bytes")
print(f"TensorGRaD         test error {error:.3f}   state {memory['state']} bytes")
print("projection errors:", {name: round(error, 2) for name, error in optimizer.projection_errors().items()})
print(f"TensorGRaD, 8 bit  test error {error_8bit:.3f}   state {memory_8bit['state']} bytes")

# %%
assert memory["state"] < 0.4 * memory["adamw"] and memory_8bit["state"] < 0.2 * memory["adamw"]
assert max(error, error_8bit) < 1.3 * adam_error
