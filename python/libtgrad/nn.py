"""Modules of PyTorch whose forward and backward are the library's kernels.

    model = libtgrad.nn.FNO(n_modes=(16, 16), in_channels=1, out_channels=1, hidden_channels=32)
    model = libtgrad.nn.convert(model)      # the FNOs of a model made with neuraloperator

Arguments, and the names and shapes of parameters, are neuraloperator's: `load_state_dict` takes
weights of either.
"""
from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from . import nn_ops
from ._config import in_yaml
from ._library import Error, c, log
from ._shards import distribute_tensor, is_sharded
from ._torch import describe
from .nn_settings import settings_of, uno_settings_of

_REAL = {torch.float32: "f32", torch.float64: "f64"}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def _is_exporting():
    """Whether torch.export is tracing: its programs only predict. Within torch.compile is_exporting() is
    always True."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


class _Names(torch.nn.Module):
    """A part of a network that has names of parameters in it. Hooks of it, such as those of fully_shard, are
    around the forward pass of the network."""

    def forward(self, inner, x):
        return inner(x)


class _Network(torch.nn.Module):
    """A network of the library with these settings (section fno). Names of its parameters omit the
    prefix. Optimizers number parameters: the part `first` precedes the others, as in neuraloperator."""

    def __init__(self, settings: Mapping[str, Any], prefix: str = "", first: str | None = None):
        super().__init__()
        dtype = torch.get_default_dtype()
        if dtype not in _REAL:
            raise Error(f"libtgrad.nn: the default dtype is {dtype}; float32 or float64 is needed", c.TG_E_DTYPE)
        dropout = float(settings.get("channel_mlp_dropout", 0))
        self._text = "".join(f"{key}: {in_yaml(value, key)}\n" for key, value in settings.items()
                             if key != "channel_mlp_dropout")
        self._dropout = f"channel_mlp_dropout: {dropout!r}\n" if dropout else ""
        is_full = settings["saved_precision"] == settings["fno_block_precision"] == "full"
        self._autocast = "saved_precision: 8bit\n" if is_full else ""
        config = nn_ops.network_config(self._text)
        self.n_dim, self.in_channels, self.out_channels = config.n_dim, config.in_channels, config.out_channels
        self._is_complex = config.complex_data
        self._parts = []
        self._slots, self._names = [], []  # (module, leaf) and name of each parameter, in the library's order
        if first:
            self._part(self, first)
        for name, kind, shape in nn_ops.parameters_of(self._text):
            kind = _COMPLEX[dtype] if kind.is_complex else dtype
            self._declare(name.removeprefix(prefix), torch.nn.Parameter(torch.empty(shape, dtype=kind)))
        self._real = next(i for i, weight in enumerate(self._weights()) if not weight.is_complex())
        self.reset_parameters()

    def _part(self, module, name):
        if name not in module._modules:
            module.add_module(name, _Names())
            self._parts.append(module._modules[name])
        return module._modules[name]

    def _declare(self, name, parameter):
        *path, leaf = name.split(".")
        module = self
        for part in path:
            module = self._part(module, part)
        module.register_parameter(leaf, parameter)
        self._slots.append((module, leaf))
        self._names.append(name)

    def reset_parameters(self) -> None:
        """Random weights, distributed as neuraloperator's; torch.manual_seed repeats them."""
        weights = self._weights()
        if weights[0].is_meta:
            return
        seed = int(torch.randint(2**62, (), device="cpu"))
        with torch.no_grad():
            for weight, value in zip(weights, nn_ops.initial_weights(self._text, seed)):
                if is_sharded(weight):
                    value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
                weight.copy_(value)

    def _weights(self):
        if torch.compiler.is_compiling():
            return [getattr(module, name) for module, name in self._slots]
        # as getattr, which takes longer; parametrizations keep them elsewhere
        return [module._parameters[name] if name in module._parameters else getattr(module, name)
                for module, name in self._slots]

    # ---- the interface of torch.nn.Module ----

    def _apply(self, fn, recurse=True):
        """dtypes of float32 and float64; complex weights follow, with their imaginary parts."""
        kind = fn(torch.empty(0, dtype=self._weights()[self._real].dtype, device="cpu")).dtype
        if kind not in _REAL:
            raise Error(f"libtgrad.nn: weights of {kind} are not supported; float32 and float64 are, and "
                        "torch.autocast keeps less of the activations in memory", c.TG_E_DTYPE)

        def convert(tensor):
            if not tensor.is_complex():
                return fn(tensor)
            parts = torch.view_as_real(tensor)[None, None, None]  # 6 dimensions or more: no memory format is for them
            return torch.view_as_complex(fn(parts)[0, 0, 0])

        return super()._apply(convert, recurse)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Takes the dictionary of this module or of neuraloperator's, which has an extra entry. If one
        weight has another shape, none is loaded."""
        state_dict = {name: value for name, value in state_dict.items() if name != "_metadata"}
        for name, parameter in self.named_parameters():
            if name in state_dict and state_dict[name].shape != parameter.shape:
                raise Error(f"{name}: it is {describe(state_dict[name])} in the state_dict, and "
                            f"{describe(parameter)} here; construct the module with the arguments of the one "
                            "that was saved", c.TG_E_SHAPE)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def save_checkpoint(self, save_folder: str | os.PathLike, save_name: str) -> None:
        """As neuraloperator's models, for its Trainer: weights in SAVE_NAME_state_dict.pt."""
        folder = pathlib.Path(save_folder)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / f"{save_name}_state_dict.pt")

    def __repr__(self):
        return f"{type(self).__name__}({', '.join((self._text + self._dropout).splitlines())})"

    # ---- forward ----

    def forward(self, x: torch.Tensor, output_shape: None = None, **others: Any) -> torch.Tensor:
        """The output on the grid of x. `output_shape` and `others` are arguments of neuraloperator's
        forward, for its Trainer: the first must be None, the others have no effect there either."""
        if output_shape is not None:
            raise Error(f"output_shape: {output_shape}; networks that change the resolution have no counterpart "
                        "here; it must be None", c.TG_E_UNSUPPORTED)
        run = self._run
        for part in self._parts:
            if part._forward_pre_hooks or part._forward_hooks:
                run = functools.partial(part, run)
        return run(x)

    def _run(self, x):
        weights = self._weights()
        kind = weights[self._real].dtype
        config = self._text
        is_eager = nn_ops.is_eager(x, *weights)
        self._check_tensors(x, weights, is_eager)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(_COMPLEX[kind] if x.is_complex() else kind)
            config += self._autocast if kind is torch.float32 else ""
        self._check_input(x, kind)
        if kind is torch.float64:
            config += "dtype: f64\n"
        is_dropping = self.training and self._dropout != ""
        wanted = []
        if torch.is_grad_enabled() and not _is_exporting():
            wanted = [i for i, tensor in enumerate([x, *weights]) if tensor.requires_grad]
        if not wanted and not is_dropping:
            return (nn_ops.run if is_eager else nn_ops.fno)(x, weights, config)
        seed = None
        if is_dropping:
            config += self._dropout
            seed = torch.randint(2**62, (1,), device="cpu")
        if x.requires_grad:
            config += "input_gradient: true\n"
        if wanted and not torch.compiler.is_compiling():
            config += nn_ops.room_for_updates(weights)
        if is_eager:
            return nn_ops.train(x, weights, seed, config, wanted)
        return nn_ops.fno_train(x, weights, seed, config, wanted)[0]

    def _check_input(self, x, kind):
        if x.dim() != 2 + self.n_dim or x.shape[1] != self.in_channels:
            raise Error(f"x: its shape is {tuple(x.shape)}; (batch, {self.in_channels} channels, "
                        f"{self.n_dim} dimensions of the grid) is needed", c.TG_E_SHAPE)
        needed = _COMPLEX[kind] if self._is_complex else kind
        if x.dtype != needed:
            raise Error(f"x: it is {x.dtype}, and the weights need {needed}: x.to({needed}), or convert the "
                        "module by double() or float()", c.TG_E_DTYPE)

    def _check_tensors(self, x, weights, is_eager):
        if not isinstance(x, torch.Tensor):
            raise Error(f"x: it is a {type(x).__name__}; a torch.Tensor is needed (torch.as_tensor)")
        if not torch.compiler.is_compiling():
            nn_ops.refuse_transforms(x, weights, is_eager)
        kind = weights[self._real].dtype
        if kind not in _REAL:
            raise Error(f"libtgrad.nn: weights of {kind}, as a MixedPrecisionPolicy of fully_shard makes them, are not "
                        "supported; float32 and float64 are, and torch.autocast keeps less of the activations in memory",
                        c.TG_E_DTYPE)
        if x.device.type not in ("cpu", "cuda"):
            raise Error(f"x: it is on device {x.device}; cpu and cuda are possible")
        device = x.device
        for weight in weights:
            if weight.device != device:
                raise Error(f"x: it is on {x.device}, a weight on {weight.device}; "
                            "module.to(device) and x.to(device) bring them together")


def _settings(given, settings_of=settings_of):
    """Section fno for the arguments of a module; other names in `given` are ignored."""
    if given["decomposition_kwargs"]:
        raise Error("decomposition_kwargs: the library has no such options; it must be None or {}",
                    c.TG_E_UNSUPPORTED)
    ours = ("fno_block_precision", "activation_checkpoint", "saved_precision")
    return {**settings_of(given), **{name: given[name] for name in ours}}


class FNO(_Network):
    """neuraloperator's FNO. Its arguments that the library has no counterpart for are refused when they
    are set. Two more save memory: `activation_checkpoint` ("off", "block", "minimal") recomputes
    activations in the backward pass, `saved_precision` ("full", "bf16", "8bit") keeps them smaller."""

    def __init__(self, n_modes, in_channels, out_channels, hidden_channels, n_layers=4,
                 lifting_channel_ratio=2, projection_channel_ratio=2, positional_embedding="grid",
                 non_linearity=functional.gelu, norm=None, complex_data=False, use_channel_mlp=True,
                 channel_mlp_dropout=0, channel_mlp_expansion=0.5, channel_mlp_skip="soft-gating",
                 fno_skip="linear", resolution_scaling_factor=None, domain_padding=None,
                 fno_block_precision="full", stabilizer=None, max_n_modes=None, factorization=None,
                 rank=1.0, fixed_rank_modes=False, implementation="factorized", decomposition_kwargs=None,
                 separable=False, preactivation=False, conv_module=None, *,
                 activation_checkpoint="off", saved_precision="full"):
        settings = _settings(locals())
        super().__init__(settings, first="fno_blocks")
        self.n_modes, self.hidden_channels, self.n_layers = tuple(settings["n_modes"]), hidden_channels, n_layers


class TFNO(FNO):
    """An FNO with factorized weights: neuraloperator's TFNO, with its two defaults."""

    def __init__(self, *arguments, factorization="Tucker", rank=0.1, **named):
        super().__init__(*arguments, factorization=factorization, rank=rank, **named)


class UNO(_Network):
    """neuraloperator's UNO, of layers with channels, modes and a grid of their own. Outputs have the grid
    of inputs: the products of `uno_scalings` are 1. Memory is saved as in FNO."""

    def __init__(self, in_channels, out_channels, hidden_channels, lifting_channels=256, projection_channels=256,
                 positional_embedding="grid", n_layers=4, uno_out_channels=None, uno_n_modes=None,
                 uno_scalings=None, horizontal_skips_map=None, channel_mlp_dropout=0, channel_mlp_expansion=0.5,
                 non_linearity=functional.gelu, norm=None, preactivation=False, fno_skip="linear",
                 horizontal_skip="linear", channel_mlp_skip="soft-gating", separable=False, factorization=None,
                 rank=1.0, fixed_rank_modes=False, integral_operator=None, operator_block=None,
                 implementation="factorized", decomposition_kwargs=None, domain_padding=None, verbose=False, *,
                 activation_checkpoint="off", saved_precision="full"):
        super().__init__(_settings({**locals(), "fno_block_precision": "full", "conv_module": integral_operator},
                                   uno_settings_of))
        self.hidden_channels, self.n_layers = hidden_channels, n_layers


class SpectralBlock(_Network):
    """neuraloperator's FNOBlocks, `n_layers` of them in turn: from (batch, channels, grid..) to the same
    shape, as a part of other networks. As there, the last block has no activation."""

    def __init__(self, in_channels, out_channels, n_modes, resolution_scaling_factor=None, n_layers=1,
                 max_n_modes=None, fno_block_precision="full", use_channel_mlp=True, channel_mlp_dropout=0,
                 channel_mlp_expansion=0.5, non_linearity=functional.gelu, stabilizer=None, norm=None,
                 ada_in_features=None, preactivation=False, fno_skip="linear",
                 channel_mlp_skip="soft-gating", complex_data=False, separable=False, factorization=None,
                 rank=1.0, conv_module=None, fixed_rank_modes=False, implementation="factorized",
                 decomposition_kwargs=None, *, activation_checkpoint="off", saved_precision="full"):
        if in_channels != out_channels:
            raise Error(f"out_channels: {out_channels}, and in_channels is {in_channels}; blocks that change "
                        "the number of channels have no counterpart here", c.TG_E_UNSUPPORTED)
        if ada_in_features is not None:
            raise Error("ada_in_features: the library has no such norm; it must be None", c.TG_E_UNSUPPORTED)
        super().__init__({**_settings({**locals(), "hidden_channels": in_channels, "positional_embedding": None,
                                       "lifting_channel_ratio": 2, "projection_channel_ratio": 2}),
                          "blocks_only": True}, prefix="fno_blocks.")


def _from_neuralop(network):
    """The module for an FNO or UNO of neuraloperator, with the very same parameters."""
    from . import neuralop

    arguments = neuralop.arguments_of(network, "convert")
    kind = UNO if isinstance(network, neuralop.UNO) else FNO
    if any(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
           for module in network.modules()):
        raise Error("it has hooks, which the library's module would not call", c.TG_E_UNSUPPORTED)
    with torch.device("meta"):
        found = kind(**arguments)
    held, expected = dict(network.named_parameters()), dict(found.named_parameters())
    for name in {**expected, **held}:
        if name not in held or name not in expected or held[name].shape != expected[name].shape:
            raise Error(f"its parameter {name} is not what its arguments make (a part of it was replaced, "
                        "pruned or parametrized)", c.TG_E_UNSUPPORTED)
    dtypes = {weight.dtype for weight in held.values()}
    if not dtypes <= {*_REAL, *_COMPLEX.values()}:
        raise Error(f"its weights are {', '.join(map(str, dtypes))}; float32 and float64 are "
                    "possible", c.TG_E_DTYPE)
    for (module, leaf), name in zip(found._slots, found._names):
        setattr(module, leaf, held[name])
    return found.train(network.training)


def convert(model: torch.nn.Module) -> torch.nn.Module:
    """Replaces every FNO, TFNO and UNO of neuraloperator in a model by the library's module, in place; a
    model that is itself one of them comes back as a new module. Parameters are the same objects, so that
    optimizers made before go on. The logger "libtgrad" has a warning for each network that is left alone,
    with the reason."""
    if not isinstance(model, torch.nn.Module):
        raise Error(f"convert: {type(model).__name__} is no torch.nn.Module")
    try:
        from neuralop.layers.fno_block import FNOBlocks
        from neuralop.models import FNO as FNO_, UNO as UNO_
    except ModuleNotFoundError as error:
        raise ImportError("libtgrad.nn.convert needs neuraloperator: pip install neuraloperator") from error
    replaced = {}  # module: what takes its place, often itself

    def replacement(module, path):
        if isinstance(module, (FNO_, UNO_)):
            return _from_neuralop(module)
        if isinstance(module, FNOBlocks):
            raise Error("blocks of another network, which asks for them one by one", c.TG_E_UNSUPPORTED)
        if hasattr(module, "_orig_mod"):
            raise Error("torch.compile has it already; convert the model before", c.TG_E_UNSUPPORTED)
        for name, child in module.named_children():
            setattr(module, name, walk(child, f"{path}.{name}" if path else name))
        return module

    def walk(module, path):
        if module not in replaced:
            replaced[module] = module  # as long as its children are looked at
            try:
                replaced[module] = replacement(module, path)
            except Error as error:
                log.warning("convert: %s is left as it is: %s", path or "the model", error)
        return replaced[module]

    return walk(model, "")
