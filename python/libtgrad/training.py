"""Training by the library, and runs."""
from __future__ import annotations

import ctypes
import html
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from . import _config
from ._library import Error, c, lib, text
from .models import Model, find_checkpoint, open_context
from .progress import Interrupt, display_of


class Run:
    """A run folder: its settings, metrics, checkpoints and reports."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        if not (self.folder / "config.yaml").exists():
            raise Error(f"{self.folder} holds no run: there is no config.yaml", c.TG_E_IO)

    @property
    def metrics(self) -> list[dict]:
        """What metrics.jsonl has, an entry per epoch."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def settings(self) -> dict:
        """Every setting of the run with its value, by section."""
        settings = _config.Settings(open_context(), self.folder / "config.yaml")
        return _config.as_dict(settings._as_parameter_)

    def model(self, **options: Any) -> Model:
        """The model of the best checkpoint, or of another one; options are those of Model.load."""
        return Model.load(self.folder, **options)

    def report(self, **options: Any):
        """The run's page, see libtgrad.report."""
        from .overview import report
        return report(self, **options)

    def __fspath__(self):
        return os.fspath(self.folder)

    def __repr__(self):
        return f"<libtgrad.Run: {self.folder}, {len(self.metrics)} epochs>"

    def _repr_html_(self):
        rows = "".join(
            f"<tr><td>{line['epoch']}</td><td>{_short(line['train']['loss'])}</td>"
            + "".join(f"<td>{_short(test['l2'])}</td>" for test in line["test"].values()) + "</tr>"
            for line in self.metrics if line["test"])
        grids = next((list(line["test"]) for line in self.metrics if line["test"]), [])
        head = "".join(f"<th>l2 at {html.escape(grid)}</th>" for grid in grids)
        return (f"<b>{html.escape(str(self.folder))}</b><table><tr><th>epoch</th><th>train</th>{head}</tr>"
                f"{rows}</table>")


def _short(value):
    """An error or a loss; JSON has null for those that are not finite."""
    return "not finite" if value is None else f"{value:.4g}"


def _record(epoch) -> dict:
    """An epoch as the callback gets it: like a line of metrics.jsonl, without its memory."""
    tests = {text(test.grid): {"l2": test.l2, "h1": test.h1} for test in epoch.test[:epoch.test_count]}
    return {"epoch": epoch.epoch, "epochs": epoch.epochs, "step": epoch.step, "lr": epoch.learning_rate,
            "train": {"loss": epoch.train_loss}, "test": tests, "step_ms": epoch.step_ms,
            "seconds": epoch.seconds, "skipped": epoch.skipped}


def _watch(display, interrupt, on_epoch):
    """The callbacks of a run; they live as long as the struct that is returned."""
    kinds = dict(c.tg_train_watch._fields_)

    def step(_, progress):
        interrupt.call(display.step, progress.contents)

    def epoch(_, record):
        record = _record(record.contents)
        interrupt.call(display.epoch, record)
        if on_epoch:
            interrupt.call(on_epoch, record)

    return c.tg_train_watch(None, kinds["on_step"](step), kinds["on_epoch"](epoch),
                            kinds["should_stop"](lambda _: interrupt.stops))


def train(config: str | os.PathLike | Mapping | None, run: str | os.PathLike, *,
          overrides: Mapping | None = None, resume: bool | str | os.PathLike = False, force: bool = False,
          init: str | os.PathLike | None = None, seed: int | None = None, backend: str | None = None,
          threads: int = 0, progress: bool | None = None,
          on_epoch: Callable[[dict], Any] | None = None) -> Run:
    """Trains an operator as `tgrad train` does, and returns its run.

        run = libtgrad.train("configs/darcy16.yaml", "runs/darcy", overrides={"opt.n_epochs": 20})
        run = libtgrad.train({"fno": {"n_modes": [16, 16]}, "opt": {..}, "data": {..}}, "runs/own")

    config     a YAML file or a mapping; None: the settings of the run that is resumed
    run        the folder of the run; one that holds a run is refused, unless it is resumed or forced
    overrides  settings over those of config, nested or as "section.key"
    resume     True: go on from the newest good checkpoint of the folder, bit for bit; or a checkpoint
    force      begin anew in a folder that holds a run, whose files are removed
    init       weights to begin with: neuraloperator's, or those of a checkpoint, a model file or a run
    on_epoch   is called after each epoch with a mapping like a line of metrics.jsonl

    A run that has diverged is an Error, which names its last good checkpoint. Ctrl-C, or the interrupt of
    a notebook, ends after the step under way: a checkpoint is saved, then KeyboardInterrupt is raised, and
    `resume=True` goes on.
    """
    context, trainer = open_context(backend, threads), ctypes.c_void_p()
    wanted = dict(_config.flat(overrides or {}))
    if seed is not None:
        wanted["distributed.seed"] = seed
    if init is not None:
        wanted["opt.init"] = find_checkpoint(context, init)
    if config is None:
        if not resume:
            raise Error("config: None is for runs that are resumed", c.TG_E_ARGUMENT)
        config = pathlib.Path(run) / "config.yaml"
    if force and resume:
        raise Error("force and resume exclude each other", c.TG_E_ARGUMENT)
    settings = _config.Settings(context, config, wanted)
    context.check(lib.tg_trainer_create(context, None, settings, os.fspath(run).encode(), trainer))
    try:
        _begin(context, trainer, resume, force)
        _run(context, trainer, display_of(progress), on_epoch)
    finally:
        lib.tg_trainer_destroy(trainer)
    return Run(run)


def _begin(context, trainer, resume, force):
    if resume:
        path = None if resume is True else os.fspath(resume).encode()
        resumed = ctypes.c_bool()
        context.check(lib.tg_trainer_resume(trainer, path, resumed))
        if resumed:
            return
    context.check((lib.tg_trainer_replace if force else lib.tg_trainer_start)(trainer))


def _run(context, trainer, display, on_epoch):
    end = c.tg_train_end()
    with Interrupt() as interrupt:
        try:
            context.check(lib.tg_trainer_run(trainer, _watch(display, interrupt, on_epoch), end))
        finally:
            display.close()
        interrupt.end(None if end.is_finished else
                      f"stopped in epoch {end.epoch}, saved as {text(end.checkpoint)}; resume=True goes on")
