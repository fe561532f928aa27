"""Data, training, models, plans and reports, with NumPy alone."""
import copy
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
import warnings

import numpy
import pytest

import libtgrad
from libtgrad import _library, _program

EPOCHS = 2  # of the fixture `run`


# ---- data ----

@pytest.mark.parametrize("equation, resolution, parameters, x_shape, y_shape, kind", [
    ("burgers", 32, {"viscosity": 0.1, "grid": 64}, (3, 1, 32), (3, 1, 32), numpy.float32),
    ("darcy", 8, {"grid": 15}, (3, 1, 8, 8), (3, 1, 8, 8), numpy.float32),
    ("em", 32, {"grid": 64, "energy": [5, 10], "poling_length": [0.1, 0.2]}, (3, 4, 32), None,
     numpy.complex64),
    ("potential", 20, {"order": 4}, (3, 20, 3), (3, 1, 20), numpy.float32),
])
def test_generated_arrays(equation, resolution, parameters, x_shape, y_shape, kind):
    x, y = samples = libtgrad.generate(equation, 3, resolution, seed=1, **parameters)
    assert samples.x is x and x.shape == x_shape and x.dtype == kind == y.dtype
    assert y.ndim == x.ndim and y.shape[0] == 3 and (y_shape is None or y.shape == y_shape)
    assert numpy.isfinite(y).all() and numpy.ptp(numpy.abs(y)) > 0
    again, _ = libtgrad.generate(equation, 2, resolution, seed=1, **parameters)
    assert numpy.array_equal(again, x[:2])
    other, _ = libtgrad.generate(equation, 2, resolution, seed=1, test=True, **parameters)
    assert not numpy.array_equal(other, x[:2])


def test_equations_and_bad_requests():
    assert "Darcy" in libtgrad.equations()["darcy"]
    with pytest.raises(libtgrad.Error, match="darcey"):
        libtgrad.generate("darcey", 1)
    with pytest.raises(libtgrad.Error, match="n: -1 samples"):
        libtgrad.generate("darcy", -1, 8)
    with pytest.raises(libtgrad.Error, match="colour"):
        libtgrad.generate("burgers", 1, 32, colour="red")
    with pytest.raises(libtgrad.Error, match=r"data.x: an array \(20, 16, 16\) is no setting; .* data.train_file"):
        libtgrad.plan({"data": {"x": numpy.zeros((20, 16, 16))}})
    with pytest.raises(libtgrad.Error, match="grid: a object is no setting"):
        libtgrad.generate("burgers", 1, 32, grid=object())


# ---- training ----

def test_a_run_has_its_files_and_metrics(run):
    assert [line["epoch"] for line in run.metrics] == list(range(1, EPOCHS + 1))
    assert run.metrics[-1]["test"]["16"]["l2"] < 1.0
    assert run.settings["opt"]["n_epochs"] == EPOCHS and run.settings["fno"]["n_modes"] == [8, 8]
    assert "<td>2</td>" in run._repr_html_() and "2 epochs" in repr(run)


def test_a_folder_with_a_run_is_refused_resumed_or_replaced(config, run, tmp_path):
    with pytest.raises(libtgrad.Error, match="holds"):
        libtgrad.train(config, run, progress=False)
    folder = tmp_path / "short"
    libtgrad.train(config, folder, overrides={"opt.n_epochs": 1}, progress=False)
    libtgrad.train(None, folder, overrides={"opt": {"n_epochs": EPOCHS}}, resume=True, progress=False)
    losses = [line["train"]["loss"] for line in libtgrad.Run(folder).metrics]
    assert losses == [line["train"]["loss"] for line in run.metrics]
    again = libtgrad.train(config, folder, force=True, overrides={"opt.n_epochs": 1}, progress=False)
    assert len(again.metrics) == 1


def test_weights_to_begin_with(config, run, tmp_path):
    model = run.model()
    model.save(tmp_path / "model.safetensors")
    quiet = {"opt.n_epochs": 1, "opt.learning_rate": 0.0, "opt.weight_decay": 0.0}
    tuned = libtgrad.train(config, tmp_path / "tuned", init=tmp_path / "model.safetensors", overrides=quiet,
                           progress=False)
    again = libtgrad.train(config, tmp_path / "again", init=run, overrides=quiet, progress=False)
    for name, weight in model.weights().items():
        assert numpy.array_equal(weight, tuned.model().weights()[name])
        assert numpy.array_equal(weight, again.model().weights()[name])


def test_callbacks_see_every_epoch_and_may_fail(config, tmp_path):
    seen = []
    libtgrad.train(config, tmp_path / "seen", on_epoch=seen.append, progress=False)
    assert [record["epoch"] for record in seen] == [1, 2] and "16" in seen[0]["test"]
    with pytest.raises(ZeroDivisionError):
        libtgrad.train(config, tmp_path / "failed", on_epoch=lambda record: 1 / 0, progress=False)


@pytest.mark.parametrize("wrong, sentence", [
    ({"opt": {"n_epoch": 3}}, "n_epochs"),
    ({"data": {"batch_size": 0}}, "batch_size"),
    ({"fno": {"n_modes": "many"}}, "n_modes"),
])
def test_wrong_settings_are_named(config, tmp_path, wrong, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        libtgrad.train(config, tmp_path / "wrong", overrides=wrong, progress=False)
    with pytest.raises(libtgrad.Error, match="no-such.yaml"):
        libtgrad.train("no-such.yaml", tmp_path / "wrong", progress=False)
    with pytest.raises(libtgrad.Error, match="settings: a list is no mapping"):
        libtgrad.train(config, tmp_path / "wrong", overrides=["opt.n_epochs=1"], progress=False)
    assert not (tmp_path / "wrong").exists()


def test_ctrl_c_saves_and_ends(config, tmp_path):
    code = ("import json, sys, libtgrad\n"
            "libtgrad.train(json.loads(sys.argv[1]), sys.argv[2], progress=True,\n"
            "               on_epoch=lambda record: print(record['epoch'], flush=True))")
    long = {**config, "opt": {**config["opt"], "n_epochs": 100000}}
    folder = tmp_path / "stopped"
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(libtgrad.__file__)),
                   "LIBTGRAD_LIBRARY": str(_library.path)}
    child = subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", code, json.dumps(long), folder],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stdout.readline().strip() == "1"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt: stopped in epoch" in errors and "resume=True goes on" in errors
    assert list((folder / "checkpoints").glob("*.safetensors"))
    before = libtgrad.Run(folder).metrics[-1]["epoch"]
    assert "epoch 1  train" in errors
    more = libtgrad.train(None, folder, resume=True, overrides={"opt.n_epochs": before + 2}, progress=False)
    assert more.metrics[-1]["epoch"] == before + 2


# ---- who looks ----

class Shown:
    """What a notebook has on its page."""

    def __init__(self):
        self.pages = []

    def HTML(self, page):
        return page

    def display(self, page, display_id):
        assert display_id is True
        return self

    def update(self, page):
        self.pages.append(page)


def test_a_notebook_shows_a_bar_and_epochs(config, tmp_path, monkeypatch):
    shown = Shown()
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    libtgrad.train(config, tmp_path / "shown")
    assert '<progress value="' in shown.pages[0] and "epoch 1/2" in shown.pages[0]
    assert "<progress" not in shown.pages[-1] and "<td>2</td>" in shown.pages[-1] and "16: l2" in shown.pages[-1]


def test_lines_for_those_who_ask(config, tmp_path, capfd):
    libtgrad.train(config, tmp_path / "silent")
    assert capfd.readouterr() == ("", "")
    libtgrad.train(config, tmp_path / "lines", progress=True)
    assert len(capfd.readouterr().err.splitlines()) == EPOCHS


# ---- models ----

def test_a_model_in_double_precision(config, data, tmp_path):
    run = libtgrad.train(config, tmp_path / "double", progress=False, threads=1, overrides={
        "fno.dtype": "f64", "opt.n_epochs": numpy.int64(1), "opt.learning_rate": numpy.logspace(-4, -3, 2)[1],
        "data.n_train": 8, "data.n_tests": 2})
    assert run.settings["opt"]["learning_rate"] == 1e-3
    model = run.model()
    x, y = (array[:2] for array in libtgrad.generate("darcy", 8, 16, grid=31, folder=data, test=True))
    assert model.predict(x).dtype == numpy.float64
    assert model.evaluate(x, y).l2 == pytest.approx(run.metrics[0]["test"]["16"]["l2"], rel=1e-8)


def test_errors_that_are_not_finite_are_shown(run, tmp_path):
    line = {**run.metrics[0], "train": {"loss": None}, "test": {"16": {"l2": None, "h1": None}}}
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert libtgrad.Run(tmp_path)._repr_html_().count("not finite") == 2


def test_threads_take_turns_and_children_compute(run):
    model, x = run.model(threads=2), numpy.random.default_rng(0).standard_normal((16, 1, 32, 32))
    expected, found = model.predict(x), {}

    def ask(number):
        for _ in range(3):
            found[number] = model.predict(x[number:])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numpy.allclose(found[number], expected[number:], atol=1e-6) for number in range(4))
    child = multiprocessing.get_context("fork").Process(target=model.predict, args=(x,))
    child.start()
    child.join(60)  # one that waits for threads it has not would never end
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0


def test_files_are_read_as_in_training(tmp_path):
    x = numpy.random.default_rng(0).standard_normal((6, 12, 10, 2))
    numpy.savez(tmp_path / "own.npz", **{"start": x, "the end": x[..., :1]})
    config = {"fno": {"n_modes": [4, 4], "hidden_channels": 4, "n_layers": 1}, "opt": {"n_epochs": 1},
              "data": {"train_file": str(tmp_path / "own.npz"), "test_files": str(tmp_path / "own.npz"),
                       "x_name": "start", "y_name": "the end", "order": "nhwc", "batch_size": 3}}
    run = libtgrad.train(config, tmp_path / "run", progress=False)
    errors = run.model().evaluate(tmp_path / "own.npz")
    assert errors.l2 == pytest.approx(run.metrics[0]["test"]["12x10"]["l2"], rel=1e-6)
    subprocess.run([_program.find_program(), "predict", tmp_path / "run", "-i", tmp_path / "own.npz", "-o",
                    tmp_path / "y.npy", "--threads", "1"], check=True, capture_output=True)
    u = run.model(threads=1).predict(numpy.moveaxis(x, 3, 1))
    assert numpy.allclose(numpy.load(tmp_path / "y.npy"), numpy.moveaxis(u, 1, 3), atol=1e-6)


def test_channels_that_do_not_vary_are_told(tmp_path, caplog):
    x = numpy.random.default_rng(0).standard_normal((4, 2, 16))
    x[:, 1] = 0.3  # such as a viscosity that all of the training data have
    numpy.savez(tmp_path / "own.npz", x=x, y=x[:, :1] * 1e-9)
    libtgrad.train({"fno": {"n_modes": [4], "hidden_channels": 4, "n_layers": 1}, "opt": {"n_epochs": 1},
                    "data": {"train_file": str(tmp_path / "own.npz"), "encode_input": True}}, tmp_path / "run",
                   progress=False)
    told = [line.getMessage() for line in caplog.records if "hardly varies" in line.getMessage()]
    assert len(told) == 2 and "channel 1 of x" in told[0] and "channel 0 of y" in told[1]


def test_predictions_that_are_not_finite(run, data, tmp_path):
    x, _ = libtgrad.generate("darcy", 8, 16, grid=31, folder=data, test=True)
    for value in (numpy.nan, -numpy.inf):
        broken = numpy.array(x[:3])
        broken[1, ..., 5, 7] = broken[2, ..., 0, 0] = value
        with pytest.raises(libtgrad.Error, match=r"x: 2 values are NaN or Inf, the first at \(1, 0, 5, 7\)"):
            run.model().predict(broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numpy.isfinite(run.model().predict(x)).all()
    with pytest.warns(RuntimeWarning, match="the prediction has NaN or Inf, though x has not"):
        run.model().predict(numpy.full_like(x, 3e38))


def test_models_on_points(tmp_path):
    points, values = libtgrad.generate("potential", 3, 30, order=4, folder=tmp_path)
    more, _ = libtgrad.generate("potential", 3, 40, order=4)
    config = {"fno": {"architecture": "gino", "in_channels": 3, "n_modes": [3, 3, 3], "hidden_channels": 4,
                      "n_layers": 1, "in_gno_radius": 0.4, "out_gno_radius": 0.4, "in_gno_channel_mlp_hidden_layers": [4],
                      "out_gno_channel_mlp_hidden_layers": [4]},
              "opt": {"n_epochs": 1, "training_loss": "l2"},
              "data": {"train_file": str(tmp_path / "potential_train_30.h5"), "batch_size": 1, "latent_grid": 5,
                       "test_files": str(tmp_path / "potential_train_30.h5")}}
    run = libtgrad.train(config, tmp_path / "run", progress=False)
    model = run.model()
    u = model.predict(points)
    assert u.shape == values.shape and numpy.array_equal(model.predict(points[1]), u[1])
    assert model.predict(points, more).shape == (3, 1, 40)
    assert numpy.array_equal(model.predict(points, points[2])[2], u[2])
    errors = model.evaluate(points, values)
    assert errors.l2 == pytest.approx(run.metrics[0]["test"]["30"]["l2"], rel=1e-6) and numpy.isnan(errors.h1)
    assert model.evaluate(tmp_path / "potential_train_30.h5").l2 == errors.l2
    with pytest.raises(libtgrad.Error, match="takes .samples, points, 3"):
        model.predict(points.swapaxes(1, 2))
    with pytest.raises(libtgrad.Error, match="box"):
        model.predict(points + 1)


def test_predictions_of_every_form(run, data):
    model = run.model(threads=1)
    x, y = libtgrad.generate("darcy", 8, 16, grid=31, folder=data, test=True)
    u = model.predict(x)
    assert u.shape == y.shape and u.dtype == numpy.float32 and "8 hidden channels" in repr(model)
    assert numpy.array_equal(model(x[:, 0]), u[:, 0])
    assert numpy.allclose(model.predict(x[2, 0]), u[2, 0], atol=1e-6)
    assert numpy.allclose(model.predict(x.astype(float)[:, :, ::-1][:, :, ::-1]), u, atol=1e-6)
    assert model.predict(numpy.zeros((1, 1, 24, 20))).shape == (1, 1, 24, 20)
    assert model.predict(x[:0]).shape == (0, 1, 16, 16) and model.predict(x[:0, 0]).shape == (0, 16, 16)


def test_errors_are_those_of_the_run(run, data):
    x, y = libtgrad.generate("darcy", 8, 16, grid=31, folder=data, test=True)
    model = run.model()
    errors = model.evaluate(x, y)
    best = min(run.metrics, key=lambda line: line["test"]["16"]["l2"])["test"]["16"]
    assert errors.l2 == pytest.approx(best["l2"], rel=1e-5) and errors.h1 == pytest.approx(best["h1"], rel=1e-5)
    relative = [numpy.linalg.norm(model.predict(a[None]) - b) / numpy.linalg.norm(b) for a, b in zip(x, y)]
    assert errors.l2_samples == pytest.approx(relative, rel=1e-4) and errors.l2_channels.shape == (1,)
    assert model.evaluate(data / "darcy_test_16.h5").l2 == errors.l2 and "8 samples" in str(errors)


def test_which_checkpoint(run):
    best, last = run.model(), run.model(checkpoint="last")
    epoch = min(run.metrics, key=lambda line: line["test"]["16"]["l2"])["epoch"]
    assert best.checkpoint == f"best, epoch {epoch} of {EPOCHS} (by l2)"
    assert last.checkpoint == f"last, epoch {EPOCHS} of {EPOCHS}"
    step = run.metrics[0]["step"]
    assert libtgrad.Model.load(run, checkpoint=step).checkpoint == f"step {step}, epoch 1 of {EPOCHS}"
    with pytest.raises(libtgrad.Error, match="it has no checkpoint of step 7; there are those of steps"):
        run.model(checkpoint=7)


def test_a_file_that_was_trained_on_in_part(tmp_path):
    x, y = libtgrad.generate("darcy", 10, 16, grid=31, folder=tmp_path)
    file = tmp_path / "darcy_train_16.h5"
    run = libtgrad.train({"fno": {"n_modes": [4, 4], "hidden_channels": 4, "n_layers": 1}, "opt": {"n_epochs": 1},
                          "data": {"train_file": str(file), "test_files": str(file), "n_train": 7, "test_skip": 7}},
                         tmp_path / "run", progress=False)
    model = run.model()
    assert model.evaluate(file).l2 == pytest.approx(model.evaluate(x[7:], y[7:]).l2)
    assert model.evaluate(file).l2 == pytest.approx(run.metrics[0]["test"]["16"]["l2"], rel=1e-5)
    assert len(model.evaluate(file, split="train").l2_samples) == 7
    assert len(model.evaluate(file, split="all").l2_samples) == 10
    with pytest.raises(libtgrad.Error, match="'rest' is not train, test or all"):
        model.evaluate(file, split="rest")
    libtgrad.generate("darcy", 2, 16, grid=31, folder=tmp_path, test=True)
    with pytest.raises(libtgrad.Error, match="trained on nothing of"):
        model.evaluate(tmp_path / "darcy_test_16.h5", split="train")


def test_models_go_to_files_and_back(run, tmp_path, data):
    model, x = run.model(), libtgrad.generate("darcy", 8, 16, grid=31, folder=data, test=True).x
    model.save(tmp_path / "model.safetensors")
    again = libtgrad.Model.load(tmp_path / "model.safetensors")
    assert numpy.array_equal(again.predict(x), model.predict(x))
    assert again.settings["fno"]["hidden_channels"] == 8
    for twin in copy.deepcopy(model), pickle.loads(pickle.dumps(run.model(threads=1, backend="ref"))):
        assert numpy.allclose(twin.predict(x), model.predict(x), rtol=1e-4, atol=1e-6)
    assert twin._context.backend == "ref" and twin._context.threads == 1
    weights = model.weights()
    assert weights["fno_blocks.convs.0.weight.tensor"].dtype == numpy.complex64


@pytest.mark.parametrize("x, sentence", [
    (numpy.zeros((1, 2, 16, 16)), r"the model takes \(samples, 1 channel, .*and this is \(1, 2, 16, 16\)"),
    (numpy.zeros(16), r"the model takes \(samples, 1 channel, grid of 2 dimensions\), and this is \(16,\)"),
    (numpy.zeros((1, 1, 16, 16), complex), "the model takes real values"),
    ("text", "no array of numbers"),
    (numpy.array([[1, None]]), "a ndarray of object is no array of numbers"),
])
def test_fields_that_do_not_fit(run, x, sentence):
    with pytest.raises((libtgrad.Error, ValueError), match=sentence):
        run.model().predict(x)


@pytest.mark.parametrize("arguments, sentence", [
    ((numpy.zeros((0, 16, 16)), numpy.zeros((0, 16, 16))), "x: there are no samples"),
    ((numpy.zeros((2, 16, 16)),), "y: the outputs"),
    ((numpy.zeros((2, 16, 16)), numpy.zeros((2, 2, 16, 16))), r"y: the model takes \(samples, 1 channel"),
])
def test_evaluations_that_cannot_be(run, arguments, sentence):
    with pytest.raises(libtgrad.Error, match=sentence):
        run.model().evaluate(*arguments)
    with pytest.raises(libtgrad.Error, match="batch: 0 samples at a time"):
        run.model().evaluate(numpy.zeros((2, 16, 16)), numpy.zeros((2, 16, 16)), batch=0)


def test_places_without_a_model(tmp_path):
    with pytest.raises(libtgrad.Error, match="without checkpoints/best.safetensors"):
        libtgrad.Model.load(tmp_path)
    with pytest.raises(libtgrad.Error, match="nothing.safetensors"):
        libtgrad.Model.load(tmp_path / "nothing.safetensors")
    with pytest.raises(libtgrad.Error, match="holds no run"):
        libtgrad.Run(tmp_path)


class Exporter:
    """An array that speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_arrays_by_dlpack(run):
    x = numpy.random.default_rng(0).random((2, 1, 16, 16), numpy.float32)
    model = run.model()
    assert numpy.array_equal(model.predict(Exporter(x)), model.predict(x))


# ---- plans, analyses, reports ----

def test_a_plan_is_what_the_run_holds(config, run):
    plan = libtgrad.plan(config)
    held = run.metrics[-1]["memory"]
    assert plan.categories == {name: held[name] for name in plan.categories}  # all but "other"
    assert {"weights", "optimizer", "activations"} <= plan.categories.keys() and plan.peak < held["peak"]
    assert plan.missing == "" and "peak" in str(plan) and "training step" in plan._repr_html_()
    assert libtgrad.plan(config, overrides={"fno.hidden_channels": 16}).parameters > plan.parameters


def test_an_analysis_of_an_array_and_of_a_run(run):
    gradient = numpy.random.default_rng(0).standard_normal((6, 7, 8)).astype(numpy.float32)
    found = libtgrad.analyze(gradient, methods=["lowrank", "unstructured"], threads=1)
    errors = {method["name"]: method["relative_error"] for method in found["methods"]}
    assert set(errors) == {"lowrank", "unstructured"} and 0 < errors["unstructured"] < 1
    assert libtgrad.analyze(run)["methods"]
    with pytest.raises(libtgrad.Error, match="no-such"):
        libtgrad.analyze("no-such.npy")


def test_a_report_is_a_page(run, tmp_path):
    page = run.report(title="Darcy & others")
    assert page.html.startswith("<!") and "Darcy &amp; others" in page.html
    assert page._repr_html_().startswith("<iframe srcdoc=") and "<script" not in page.html
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page.html
