"""What the tests of modules share: small networks, and their gradients as one vector."""
import torch

import libtgrad


def make(n_modes, in_channels, out_channels, hidden_channels, n_layers=2, **arguments):
    return libtgrad.nn.FNO(n_modes, in_channels, out_channels, hidden_channels, n_layers, **arguments)


def small(seed=0, hidden_channels=8, **arguments):
    """A network and a batch."""
    torch.manual_seed(seed)
    model = make((8, 6), 2, 3, hidden_channels, **arguments)
    return model, torch.randn(3, 2, 16, 12)


def _numbers(tensor):
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten()


def gradients(model):
    """All gradients in the order of their names, which are taken away."""
    found = torch.cat([_numbers(parameter.grad) for _, parameter in sorted(model.named_parameters())])
    for parameter in model.parameters():
        parameter.grad = None
    return found


def difference(a, b):
    return (torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b)).item()
