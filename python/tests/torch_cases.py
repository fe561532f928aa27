"""What the tests of the optimizer share: parameters, gradients, runs."""
import torch

import libtgrad

METHODS = ["adam", "lowrank", "galore", "structured", "unstructured", "tensorgrad"]


def make_params(seed=0):
    """A spectral weight, a convolution, a matrix and a vector; the same ones in every thread."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, dtype=torch.float32):
        return torch.nn.Parameter(torch.randn(*shape, dtype=dtype, generator=generator))

    return [draw(8, 8, 6, 5, dtype=torch.complex64), draw(12, 10, 3, 3), draw(48, 40), draw(9)]


def make_gradients(params, step, seed=100):
    generator = torch.Generator().manual_seed(seed + step)
    return [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in params]


def run(opt, params, steps, begin=0, make=make_gradients):
    for step in range(begin, begin + steps):
        for p, g in zip(params, make(params, step)):
            p.grad = g
        opt.step()
    return [p.detach().clone() for p in params]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


def tensorgrad(params, **keys):
    return libtgrad.TensorGRaD(params, **{"lr": 1e-2, "weight_decay": 0.01, "update_proj_gap": 3,
                                          "min_entries": 100, **keys})
