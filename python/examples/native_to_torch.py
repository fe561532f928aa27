# %% [markdown]
# # Trained natively, used in PyTorch
# The library's own trainer makes an operator for Burgers' equation, with far less memory than PyTorch would need.
# As a network of neuraloperator it can then be differentiated: here, to find the start that leads to a given end.

# %%
import pathlib
import tempfile

import torch

import libtgrad

folder = pathlib.Path(tempfile.mkdtemp())
parameters = {"resolution": 64, "viscosity": 0.05, "grid": 128, "folder": folder}
libtgrad.generate("burgers", n=128, **parameters)
x_test, y_test = libtgrad.generate("burgers", n=32, test=True, **parameters)

# %%
config = {
    "fno": {"n_modes": [16], "hidden_channels": 24, "n_layers": 3},
    "opt": {"name": "tensorgrad", "n_epochs": 12, "learning_rate": 3e-3, "training_loss": "l2"},
    "data": {"root": folder, "set": "burgers", "train_resolution": 64, "test_resolutions": [64], "batch_size": 16},
}
print(libtgrad.plan(config))
run = libtgrad.train(config, folder / "run")
run

# %%
model = libtgrad.Model.load(run)
print(model, model.evaluate(x_test, y_test))

# %% [markdown]
# The same operator in PyTorch, with the normalizers that it was trained with:

# %%
network = libtgrad.to_neuralop(model)
target = torch.from_numpy(y_test[:1])
start = torch.zeros_like(target, requires_grad=True)
optimizer = torch.optim.Adam([start], lr=0.05)
for step in range(60):
    optimizer.zero_grad()
    misfit = torch.linalg.norm(network(start) - target) / torch.linalg.norm(target)
    misfit.backward()
    optimizer.step()
print(f"the start that was found leads to the end within {misfit.item():.3f}")

# %%
assert torch.allclose(network(target), model.predict(target), atol=1e-5)
assert model.evaluate(x_test, y_test).l2 < 0.2 and misfit.item() < 0.2
