#!/usr/bin/env python3
"""neuraloperator's FNO on Darcy flow, with one line changed: the optimizer.

    python3 examples/torch_fno.py [EPOCHS]

The samples are made by libtgrad's own solver.
"""
import sys

import torch
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO

import libtgrad


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.manual_seed(0)
    a, u = (torch.as_tensor(part, dtype=torch.float32)
            for part in libtgrad.generate("darcy", n=240, resolution=16, seed=3, progress=False))
    a, u = (a - a.mean()) / a.std(), (u - u.mean()) / u.std()
    model = FNO(n_modes=(12, 12), hidden_channels=24, in_channels=1, out_channels=1, n_layers=4)

    # opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=5e-3, update_proj_gap=100,
                              in_backward=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    loss, error = H1Loss(d=2), LpLoss(d=2, p=2)
    for epoch in range(epochs):
        for batch in torch.randperm(200).split(20):
            loss(model(a[batch]), u[batch]).backward()  # updates, and leaves no gradient
            opt.step()
        schedule.step()
        with torch.no_grad():
            print(f"epoch {epoch + 1}: error {error(model(a[200:]), u[200:]).item() / 40:.4f}")
    memory = opt.memory()
    print(f"state {memory['state']} bytes, that of AdamW {memory['adamw']}")
    print("projection errors:", {name: round(error, 2) for name, error in opt.projection_errors().items()})


main()
