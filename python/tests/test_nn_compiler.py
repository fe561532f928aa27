"""Modules of the library under torch.compile, torch.export and DistributedDataParallel."""
import io
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libtgrad  # noqa: E402
from libtgrad import nn_ops  # noqa: E402

from nn_cases import difference, gradients, small  # noqa: E402


@pytest.mark.parametrize("arguments", [{}, {"channel_mlp_dropout": 0.3}])
def test_compile_in_one_graph(arguments):
    model, x = small(**arguments)
    x.requires_grad_()
    torch._dynamo.reset()

    def loss(value):
        return torch.nn.functional.gelu(model(2 * value)).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for batch in (3, 2):  # the second size is traced anew
        results = []
        for function in (loss, compiled):
            torch.manual_seed(1)
            x.grad = None
            value = function(x[:batch])
            value.backward()
            results.append((value.detach(), x.grad, gradients(model)))
        for plain, traced in zip(*results):
            assert difference(traced, plain) < 1e-6
    with torch.no_grad():
        assert torch.equal(compiled(x), loss(x)) or arguments


def test_export_with_dynamic_sizes():
    model, x = small()
    batch, rows = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("rows", min=8, max=64)
    program = torch.export.export(model.eval(), (x,), dynamic_shapes={"x": {0: batch, 2: rows}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((3, 2, 16, 12), (5, 2, 20, 12)):
        value = torch.randn(shape)
        assert torch.equal(loaded(value), model(value))


def test_operators_obey_torchs_rules():
    model, x = small()
    x.requires_grad_()
    weights, config = model._weights(), model._text
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(nn_ops.fno, (x.detach(), [w.detach() for w in weights], config), test_utils=utils)
    wanted = list(range(1 + len(weights)))
    torch.library.opcheck(nn_ops.fno_train, (x, weights, None, config + "input_gradient: true\n", wanted),
                          test_utils=utils)


WORKER = """
import os, sys, torch, torch.distributed as dist
import libtgrad
sys.path.insert(0, {tests!r})
from nn_cases import difference, gradients, make
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{file}", rank=rank, world_size=2)
torch.set_num_threads(1)
torch.manual_seed(rank)  # weights differ until they are broadcast
model = torch.nn.parallel.DistributedDataParallel(make((8, 6), 2, 3, 8))
torch.manual_seed(0)
x = torch.randn(4, 2, 16, 12)
for _ in range(2):
    model(x[2 * rank:2 * rank + 2]).square().mean().backward()
    found = gradients(model.module)
    model.module(x).square().mean().backward()
    assert difference(found, gradients(model.module)) < 1e-5
dist.destroy_process_group()
print("same", flush=True)
os._exit(0)  # now and then the threads of torch's reducer outlive it, which ends the process by SIGABRT
"""


def test_distributed_data_parallel(tmp_path):
    tests = os.path.dirname(__file__)
    text = WORKER.format(tests=tests, file=tmp_path / "store")
    path = os.pathsep.join([os.path.dirname(os.path.dirname(libtgrad.__file__)), os.environ.get("PYTHONPATH", "")])
    workers = [subprocess.Popen([sys.executable, "-c", text, str(rank)], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": path})
               for rank in range(2)]
    for worker in workers:
        output, _ = worker.communicate(timeout=300)
        assert worker.returncode == 0 and "same" in output, output
