"""Modules of the library beside those of neuraloperator: the same weights, outputs and gradients."""
import logging
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("neuralop")
from neuralop.models import FNO, GINO, TFNO, UNO  # noqa: E402

import libtgrad  # noqa: E402
from nn_cases import difference, gradients  # noqa: E402
from test_neuralop import NETWORKS, pair  # noqa: E402


def compare(ours, theirs, x, of_outputs, of_gradients):
    """Outputs and all gradients of two networks, with bounds of their differences. Returns the output."""
    x.requires_grad_()
    y = theirs(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    of_input, x.grad = x.grad, None
    found = ours(x)
    found.backward(dy)
    assert difference(found, y) < of_outputs
    assert difference(x.grad, of_input) < of_gradients
    assert difference(gradients(ours), gradients(theirs)) < of_gradients
    return y


@pytest.mark.parametrize("modes, arguments, grid", NETWORKS)
def test_numbers_and_names(modes, arguments, grid):
    theirs, x = pair(modes, arguments, grid)
    theirs.train()
    ours = libtgrad.nn.FNO(modes, 2, 3, 8, **{"n_layers": 2, **arguments})
    ours.load_state_dict(theirs.state_dict())
    expected = [(name, value.shape) for name, value in theirs.named_parameters()]  # optimizers number them in order
    assert [(name, value.shape) for name, value in ours.named_parameters()] == expected
    y = compare(ours, theirs, x, 1e-6, 3e-6)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs(x), y)


UNO_LAYERS = {"n_layers": 3, "uno_out_channels": [8, 10, 8], "uno_n_modes": [[6, 6], [4, 4], [6, 6]],
              "uno_scalings": [[1, 1], [0.5, 0.5], [2, 2]], "channel_mlp_skip": "linear"}


@pytest.mark.parametrize("arguments", [
    {}, {"lifting_channels": 20, "projection_channels": 12, "horizontal_skips_map": {2: 1}, "norm": "group_norm"},
    {"factorization": "tucker", "rank": 0.5, "domain_padding": 0.25, "positional_embedding": None},
    {"norm": "instance_norm", "horizontal_skip": "soft-gating", "non_linearity": torch.nn.functional.silu}])
def test_unos(arguments):
    torch.manual_seed(0)
    theirs = UNO(2, 3, 8, **UNO_LAYERS, **arguments)
    ours = libtgrad.nn.UNO(2, 3, 8, **UNO_LAYERS, **arguments)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 2, 16, 16)
    y = compare(ours, theirs, x, 1e-5, 1e-5)
    theirs.load_state_dict(ours.state_dict())
    converted = libtgrad.nn.convert(theirs)
    assert isinstance(converted, libtgrad.nn.UNO)
    assert all(a is b for a, b in zip(converted.parameters(), theirs.parameters()))
    assert difference(converted(x), y) < 1e-5
    assert difference(libtgrad.from_neuralop(theirs).predict(x.detach()), y) < 1e-5


@pytest.mark.parametrize("arguments, sentence", [
    ({"uno_n_modes": None}, "uno_n_modes: None; a list with one entry for each of the 3 layers"),
    ({"uno_scalings": [[1, 1], [0.5, 0.5], [1, 1]]}, "uno_scalings"),
    ({"operator_block": torch.nn.Conv2d}, "operator_block")])
def test_unos_without_a_counterpart(arguments, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        libtgrad.nn.UNO(1, 1, 8, **{**UNO_LAYERS, **arguments})


def test_tfno_has_the_defaults_of_theirs():
    theirs, ours = TFNO((8, 6), 2, 3, 16, n_layers=2), libtgrad.nn.TFNO((8, 6), 2, 3, 16, n_layers=2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 2, 16, 12)
    assert difference(ours(x), theirs(x)) < 1e-6


def test_double_precision():
    theirs, x = pair((8, 6), {}, (16, 12))
    theirs = theirs.double()
    for parameter in theirs.parameters():  # double() leaves complex ones as they are
        parameter.data = parameter.data.to(torch.complex128) if parameter.is_complex() else parameter.data
    ours = libtgrad.nn.FNO((8, 6), 2, 3, 8, 2).double()
    ours.load_state_dict(theirs.state_dict())
    assert difference(ours(x.double()), theirs(x.double())) < 1e-6  # it multiplies spectra in complex64


def test_convert_keeps_parameters_and_reports(caplog):
    theirs, x = pair((8, 6), {"norm": "group_norm"}, (16, 12))
    second = TFNO((8, 6), 3, 2, 8, n_layers=1, rank=0.5)
    left = FNO((8, 6), 2, 2, 8, n_layers=1, use_channel_mlp=False)
    model = torch.nn.ModuleDict({"body": torch.nn.Sequential(theirs, second), "again": theirs, "other": left})
    expected = model["body"](x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "libtgrad"):
        assert libtgrad.nn.convert(model) is model
    assert [record.getMessage() for record in caplog.records] == [
        "convert: other is left as it is: use_channel_mlp: without it neuraloperator 2.0 applies GELU twice in a "
        "block, and the library once"]
    assert isinstance(model["body"][0], libtgrad.nn.FNO) and isinstance(model["body"][1], libtgrad.nn.FNO)
    assert model["again"] is model["body"][0] and model["other"] is left
    found = model["body"](x)
    assert difference(found, expected) < 1e-6
    found.sum().backward()
    optimizer.step()  # of the parameters that it was made with
    assert difference(model["body"](x), found) > 1e-6


def test_convert_of_a_network_itself():
    theirs, x = pair((8, 6), {}, (16, 12))
    ours = libtgrad.nn.convert(theirs)
    assert isinstance(ours, libtgrad.nn.FNO) and not ours.training
    assert difference(ours(x), theirs(x)) < 1e-6
    assert list(libtgrad.nn.convert(torch.nn.Linear(2, 3)).state_dict()) == ["weight", "bias"]


class Own(FNO):
    def forward(self, x, **keys):
        return super().forward(x, **keys) + 1


def changed(change):
    network, _ = pair((8, 6), {}, (16, 12))
    return change(network) or network


@pytest.mark.parametrize("network, sentence", [
    (lambda: Own((8, 6), 1, 1, 8), "forward of its own"),
    (lambda: UNO(1, 1, 8, **UNO_LAYERS, norm="batch_norm"), "fno.norm: expected"),
    (lambda: changed(lambda n: n.half()), "torch.float16"),
    (lambda: changed(lambda n: setattr(n, "n_modes", (4, 4))), r"of which \[4, 4\] are used"),
    (lambda: changed(lambda n: n.register_forward_hook(print) and None), "hooks"),
    (lambda: changed(lambda n: n.fno_blocks.convs[0].register_forward_hook(print) and None), "hooks"),
    (lambda: changed(lambda n: torch.nn.utils.parametrizations.weight_norm(n.projection.fcs[0]) and None),
     r"projection.fcs.0.weight is not what its arguments make"),
    (lambda: changed(lambda n: setattr(n, "projection", torch.nn.Conv2d(8, 3, 1))), "not what its arguments make"),
    (lambda: torch.compile(changed(lambda n: None)), "convert the model before"),
    (lambda: GINO(in_channels=1, out_channels=1), "fno_blocks is left as it is: blocks of another network"),
])
def test_convert_leaves_other_networks(network, sentence, caplog):
    network = network()
    model = torch.nn.ModuleList([network, torch.nn.Linear(2, 2), changed(lambda n: None)])
    with caplog.at_level(logging.WARNING, "libtgrad"):
        libtgrad.nn.convert(model)
    assert model[0] is network and isinstance(model[2], libtgrad.nn.FNO)
    said, = [record.getMessage() for record in caplog.records]
    assert said.startswith("convert: 0") and re.search(sentence, said)


def test_convert_takes_modules_alone():
    with pytest.raises(libtgrad.Error, match="int is no torch.nn.Module"):
        libtgrad.nn.convert(3)


def test_the_trainer_of_neuraloperator(tmp_path):
    from neuralop import LpLoss, Trainer
    torch.manual_seed(0)
    samples = [{"x": torch.randn(1, 16, 16), "y": torch.randn(1, 16, 16)} for _ in range(8)]
    loader, errors = torch.utils.data.DataLoader(samples, batch_size=4), []
    for resume in (None, tmp_path):
        torch.manual_seed(1)
        model = libtgrad.nn.convert(FNO((6, 6), 1, 1, 8, n_layers=1))
        opt = libtgrad.TensorGRaD(libtgrad.param_groups(model), lr=1e-3)
        trainer = Trainer(model=model, n_epochs=4 if resume else 2, device=torch.device("cpu"))
        found = trainer.train(loader, {16: loader}, opt, torch.optim.lr_scheduler.ConstantLR(opt),
                              training_loss=LpLoss(d=2), save_every=1, save_dir=tmp_path, resume_from_dir=resume)
        errors.append(found["train_err"])
    assert errors[1] < errors[0]
    with pytest.raises(libtgrad.Error, match="output_shape"):
        model(torch.randn(1, 1, 16, 16), output_shape=(32, 32))


@pytest.mark.parametrize("modes, arguments, grid", [
    ((8, 6), {"n_layers": 2}, (16, 12)),
    ((12,), {"norm": "group_norm", "channel_mlp_skip": "linear"}, (32,)),
    ((4, 4, 6), {"n_layers": 3, "preactivation": True, "stabilizer": "tanh"}, (8, 6, 10)),
    ((12,), {"n_layers": 2, "complex_data": True}, (32,)),
    ((8, 6), {"n_layers": 2, "factorization": "tucker", "rank": 0.5}, (16, 12)),
])
def test_blocks(modes, arguments, grid):
    from neuralop.layers.fno_block import FNOBlocks
    torch.manual_seed(0)
    theirs = FNOBlocks(6, 6, modes, **arguments)
    ours = libtgrad.nn.SpectralBlock(6, 6, modes, **arguments)
    ours.load_state_dict(theirs.state_dict())
    kind = torch.complex64 if arguments.get("complex_data") else torch.float32
    x = torch.randn(3, 6, *grid, dtype=kind, requires_grad=True)
    y = x
    for layer in range(arguments.get("n_layers", 1)):
        y = theirs(y, layer)
    dy = torch.randn_like(y)
    y.backward(dy)
    of_input, of_weights, x.grad = x.grad, gradients(theirs), None
    found = ours(x)
    found.backward(dy)
    assert difference(found, y) < 1e-6
    assert difference(x.grad, of_input) < 3e-6 and difference(gradients(ours), of_weights) < 3e-6


def test_blocks_are_parts_of_networks():
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 1), libtgrad.nn.SpectralBlock(6, 6, (8, 6)), torch.nn.GELU(),
                                  libtgrad.nn.SpectralBlock(6, 6, (8, 6)), torch.nn.Conv2d(6, 1, 1))
    network(torch.randn(2, 1, 16, 12)).square().sum().backward()
    assert all(torch.isfinite(torch.view_as_real(p.grad) if p.is_complex() else p.grad).all()
               for p in network.parameters())
    with pytest.raises(libtgrad.Error, match="out_channels"):
        libtgrad.nn.SpectralBlock(6, 8, (8, 6))
