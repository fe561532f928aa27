"""Networks of neuraloperator as models of libtgrad, and back."""
from __future__ import annotations

import inspect
import pathlib
import tempfile

import torch

from . import _arrays
from ._library import Error, c
from .models import Model, open_context
from .nn_settings import ACTIVATIONS, SHARED, check_common, settings_of, uno_settings_of

try:
    from neuralop.models import FNO, TFNO, UNO
except ModuleNotFoundError as error:
    if error.name != "neuralop":
        raise
    raise ImportError("networks of neuraloperator need that package: pip install neuraloperator") from error

_EPSILON = 1e-7  # of normalizers: (value - mean) / (std + epsilon)


_SKIPS = {"Identity": "identity", "SoftGating": "soft-gating", "Flattened1dConv": "linear"}
_NORMS = {"GroupNorm": "group_norm", "InstanceNorm": "instance_norm"}


def arguments_of(network, what):
    """What an FNO or UNO was constructed with, defaults included. Refuses subclasses that compute something
    of their own."""
    kind = type(network)
    if (kind.__init__ not in (FNO.__init__, TFNO.__init__, UNO.__init__)
            or kind.forward not in (FNO.forward, UNO.forward)):
        raise Error(f"{what}: a {kind.__name__} has an __init__ or forward of its own, which has no "
                    "counterpart here", c.TG_E_UNSUPPORTED)
    if isinstance(network, UNO):
        return _arguments_of_uno(network)
    parameters = inspect.signature(FNO).parameters
    plain = {name: parameter.default for name, parameter in parameters.items()}
    if isinstance(network, TFNO):  # it takes any arguments, and has two defaults of its own
        plain.update(factorization="Tucker", rank=0.1)
    given = {name: value for name, value in network._init_kwargs.items() if name in parameters}
    given = {**plain, **given, **dict(zip(parameters, network._init_kwargs["args"]))}
    if list(network.n_modes) != list(given["n_modes"]):
        raise Error(f"max_n_modes: weights for {given['max_n_modes'] or given['n_modes']} modes, of which "
                    f"{list(network.n_modes)} are used, have no counterpart here", c.TG_E_UNSUPPORTED)
    return given


def _arguments_of_uno(network):
    """From its parts: a UNO keeps no record of its arguments."""
    block, skips = network.fno_blocks[0], list(network.horizontal_skips.values())
    norm = type(block.norm[0]).__name__ if block.norm else None
    of_network = ("in_channels", "out_channels", "hidden_channels", "lifting_channels", "projection_channels",
                  "n_layers", "uno_out_channels", "uno_n_modes", "uno_scalings", "horizontal_skips_map",
                  "non_linearity", "positional_embedding", "preactivation", "operator_block")
    of_blocks = ("channel_mlp_dropout", "channel_mlp_expansion", "fno_skip", "channel_mlp_skip", "separable",
                 "factorization", "rank", "fixed_rank_modes", "implementation", "decomposition_kwargs")
    return {**{name: getattr(network, name) for name in of_network},
            **{name: getattr(block, name) for name in of_blocks}, "norm": _NORMS.get(norm, norm),
            "domain_padding": getattr(network.domain_padding, "domain_padding", None),
            "horizontal_skip": _SKIPS.get(type(skips[0]).__name__) if skips else "linear"}


def from_neuralop(network: FNO | UNO, *, backend: str | None = None, threads: int = 0) -> Model:
    """A model with the weights of a neuraloperator FNO or UNO, for predictions without PyTorch and for
    `save`, whose file `tgrad predict`, `tgrad eval` and `tgrad train --init` take.

    It has no normalizers: what the network took, it takes. On grids of odd sizes neuraloperator 2.0
    shifts frequencies by one mode, and outputs differ (docs/exchange.md).
    """
    if not isinstance(network, (FNO, UNO)):
        raise Error(f"from_neuralop: a {type(network).__name__} is no FNO or UNO of neuraloperator", c.TG_E_ARGUMENT)
    convert = uno_settings_of if isinstance(network, UNO) else settings_of
    settings = {"fno": convert(arguments_of(network, "from_neuralop"))}
    weights = {name: _arrays.to_numpy(value) for name, value in network.state_dict().items()
               if isinstance(value, torch.Tensor)}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights.safetensors"
        _arrays.write_archive(path, weights, open_context())
        return Model.load(path, config=settings, backend=backend, threads=threads)


class Normalized(torch.nn.Module):
    """A network between the normalizers it was trained with: takes and gives values in the units of
    the data. `network` is the FNO itself."""

    def __init__(self, network, x=None, y=None):
        super().__init__()
        self.network = network
        for side, values in (("x", x), ("y", y)):
            mean, std = values if values else (None, None)
            self.register_buffer(f"{side}_mean", mean)
            self.register_buffer(f"{side}_std", std)

    def forward(self, value, **arguments):
        def shaped(numbers):
            return numbers.view(1, -1, *[1] * (value.ndim - 2))

        if self.x_mean is not None:
            value = (value - shaped(self.x_mean)) / (shaped(self.x_std) + _EPSILON)
        value = self.network(value, **arguments)
        if self.y_mean is not None:
            value = value * (shaped(self.y_std) + _EPSILON) + shaped(self.y_mean)
        return value


def to_neuralop(model: Model) -> torch.nn.Module:
    """A model as a network of neuraloperator, to train on in PyTorch or to differentiate: an FNO, or
    with normalizers an FNO between them (`Normalized`), so that outputs are those of `predict`."""
    settings = model.settings["fno"]
    kind = settings.get("architecture", "fno")
    if kind != "fno":
        raise Error(f"to_neuralop: of a {kind.upper()} the weights alone go to neuraloperator, under its names "
                    "(weights())", c.TG_E_UNSUPPORTED)
    if settings["domain_padding"] and settings["domain_padding_mode"] != "symmetric":
        raise Error("fno.domain_padding_mode: neuraloperator pads on both sides only (symmetric)",
                    c.TG_E_UNSUPPORTED)
    if settings.get("incremental_n_modes"):
        raise Error("fno.incremental_n_modes: state_dict() of neuraloperator does not tell the modes in use; "
                    "train until all are", c.TG_E_UNSUPPORTED)
    modes = settings["n_modes"] if isinstance(settings["n_modes"], list) else [settings["n_modes"]]
    check_common(settings, len(modes))
    if settings["complex_data"] and len(modes) == 1 and settings["complex_modes"] != "nonnegative":
        raise Error("fno.complex_modes: neuraloperator keeps the frequencies 0 .. K - 1 of one-dimensional "
                    "complex data (nonnegative)", c.TG_E_UNSUPPORTED)
    if settings.get("rank") == 1:
        settings["rank"] = 1.0  # a share, where the whole number would be a rank
    network = FNO(n_modes=tuple(modes), positional_embedding=settings["positional_embedding"],
                  domain_padding=settings["domain_padding"] or None,
                  non_linearity=ACTIVATIONS[settings.get("non_linearity", "gelu")],
                  fixed_rank_modes=settings.get("fixed_rank_modes") or False,
                  **{name: settings[name] for name in SHARED if name in settings})
    weights = {name: torch.from_numpy(value) for name, value in model.weights().items()}
    network.load_state_dict(weights, assign=True)
    normalizers = _normalizers(model)
    return Normalized(network, **normalizers).eval() if normalizers else network.eval()


def _normalizers(model):
    """{"y": (mean, std)}, as tensors of the network's precision."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.safetensors"
        model.save(path)
        arrays, _ = _arrays.read_archive(path, open_context())
    found = {}
    for side in ("x", "y"):
        if f"encoder.{side}.mean" in arrays:
            mean, std = (torch.from_numpy(arrays[f"encoder.{side}.{part}"]) for part in ("mean", "std"))
            found[side] = (mean.to(torch.complex64 if mean.is_complex() else torch.float32), std.float())
    return found
