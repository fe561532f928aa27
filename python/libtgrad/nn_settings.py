"""The arguments of neuraloperator's FNO as the library's settings, without that package."""
import torch
from torch.nn import functional

from ._library import Error, c

# Arguments that are settings of ours under the same names.
SHARED = ("in_channels", "out_channels", "hidden_channels", "n_layers", "lifting_channel_ratio",
          "projection_channel_ratio", "norm", "complex_data", "use_channel_mlp", "channel_mlp_dropout",
          "channel_mlp_expansion", "channel_mlp_skip", "fno_skip", "stabilizer", "preactivation",
          "factorization", "rank", "implementation", "separable")
ACTIVATIONS = {"gelu": functional.gelu, "relu": functional.relu, "silu": functional.silu, "tanh": torch.tanh}
_MODULES = {"gelu": torch.nn.GELU, "relu": torch.nn.ReLU, "silu": torch.nn.SiLU, "tanh": torch.nn.Tanh}


def check_common(settings, dims):
    """Refuses networks that neuraloperator 2.0 computes differently from the library."""
    if not settings["use_channel_mlp"]:
        raise Error("use_channel_mlp: without it neuraloperator 2.0 applies GELU twice in a block, and the "
                    "library once", c.TG_E_UNSUPPORTED)
    if settings["complex_data"] and dims > 1:
        raise Error(f"complex_data: of complex data in {dims} dimensions neuraloperator 2.0 keeps "
                    "frequencies that depend on the grid, and the library the lowest ones",
                    c.TG_E_UNSUPPORTED)
    if settings["complex_data"] and settings["norm"]:
        raise Error(f"norm: of complex data neuraloperator 2.0 mixes both parts in its {settings['norm']}, "
                    "and the library normalizes each by itself", c.TG_E_UNSUPPORTED)


def _check_conv_module(given):
    module = given.get("conv_module")
    if module is not None and (module.__module__, module.__name__) != (
            "neuralop.layers.spectral_convolution", "SpectralConv"):
        raise Error(f"conv_module: networks with {module} have no counterpart here; it must be "
                    "neuraloperator's SpectralConv", c.TG_E_UNSUPPORTED)


def _embedding(value, dims):
    if value is None or value == "grid":
        return value
    kinds = [kind.__name__ for kind in type(value).__mro__]
    if "GridEmbeddingND" in kinds and all(list(map(float, b)) == [0.0, 1.0]
                                          for b in value.grid_boundaries[:dims]):
        return "grid"
    raise Error("positional_embedding: coordinates from 0 to 1, 'grid', or None are supported",
                c.TG_E_UNSUPPORTED)


def _activation(found):
    for name, function in ACTIVATIONS.items():
        is_module = type(found) is _MODULES[name] and getattr(found, "approximate", "none") == "none"
        if is_module or found in (function, getattr(functional, name), getattr(torch, name, function)):
            return name
    raise Error(f"non_linearity: {found} has no counterpart here; it is one of {', '.join(ACTIVATIONS)}",
                c.TG_E_UNSUPPORTED)


def _ranks(rank, form, dims):
    """A rank of neuraloperator as ours: the integer 1 is a rank there, and a share here."""
    if isinstance(rank, int) and rank == 1 and form:
        return {"tucker": [1] * (dims + 2), "tt": [1] * (dims + 3)}.get(form.lower(), rank)
    return rank


def settings_of(given):
    """Section fno for a network constructed with these arguments, or an Error that names the one
    without a counterpart."""
    modes = [given["n_modes"]] if isinstance(given["n_modes"], int) else list(given["n_modes"])
    if given.get("resolution_scaling_factor") is not None:
        raise Error("resolution_scaling_factor: networks that change the resolution have no counterpart "
                    "here; it must be None", c.TG_E_UNSUPPORTED)
    _check_conv_module(given)
    check_common(given, len(modes))
    if given["max_n_modes"] is not None:
        raise Error(f"max_n_modes: weights for {given['max_n_modes']} modes, of which {modes} are used, "
                    "have no counterpart here", c.TG_E_UNSUPPORTED)
    padding = given.get("domain_padding") or 0
    padding = list(map(float, padding)) if isinstance(padding, (list, tuple)) else float(padding)
    settings = {name: given[name] for name in SHARED}
    settings.update(n_modes=modes, domain_padding=padding, domain_padding_mode="symmetric",
                    non_linearity=_activation(given["non_linearity"]),
                    fixed_rank_modes=given["fixed_rank_modes"] or [],
                    positional_embedding=_embedding(given["positional_embedding"], len(modes)),
                    rank=_ranks(given["rank"], given["factorization"], len(modes)))
    if given["complex_data"] and len(modes) == 1:
        settings["complex_modes"] = "nonnegative"
    return settings


def uno_settings_of(given):
    """Section fno for a UNO constructed with these arguments."""
    for name in ("uno_out_channels", "uno_n_modes", "uno_scalings"):
        if given[name] is None or len(given[name]) != given["n_layers"]:
            raise Error(f"{name}: {given[name]}; a list with one entry for each of the {given['n_layers']} layers "
                        "is needed", c.TG_E_CONFIG)
    if given["operator_block"] is not None and given["operator_block"].__name__ != "FNOBlocks":
        raise Error(f"operator_block: networks with {given['operator_block']} have no counterpart here; it must "
                    "be neuraloperator's FNOBlocks", c.TG_E_UNSUPPORTED)
    width = given["hidden_channels"]
    modes = [list(row) for row in given["uno_n_modes"]]
    settings = settings_of({**given, "n_modes": modes[0], "max_n_modes": None, "complex_data": False,
                            "stabilizer": None, "use_channel_mlp": True,
                            "lifting_channel_ratio": given["lifting_channels"] / width,
                            "projection_channel_ratio": given["projection_channels"] / width})
    del settings["n_modes"]  # they follow from the lists
    skips = given["horizontal_skips_map"]
    return {"architecture": "uno", **settings, "uno_n_modes": modes,
            "uno_out_channels": list(given["uno_out_channels"]),
            "uno_scalings": [[float(factor) for factor in row] for row in given["uno_scalings"]],
            "horizontal_skip": given["horizontal_skip"],
            **({} if skips is None else {"horizontal_skips_map": [list(pair) for pair in skips.items()]})}
