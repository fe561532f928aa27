"""Plans, analyses of gradients, and reports."""
from __future__ import annotations

import dataclasses
import html
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from . import _arrays, _config
from ._library import Error, c, lib, text
from ._program import find_program
from .models import open_context


def _size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.4g} {unit}"
        count /= 1024


@dataclasses.dataclass(frozen=True)
class Plan:
    """The memory of a run, estimated before training."""

    parameters: int  # real numbers
    peak: int  # bytes, on the backend's device
    categories: dict[str, int]  # the peak of each by itself
    phases: dict[str, int]  # bytes at each time of the run, in order
    missing: str  # a missing data file, whose samples are not counted

    def __str__(self):
        lines = [f"{self.parameters} parameters, peak {_size(self.peak)}"]
        lines += [f"  {name:<14} {_size(count)}" for name, count in self.categories.items()]
        return "\n".join(lines + ([f"not counted: {self.missing}"] if self.missing else []))

    def _repr_html_(self):
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{_size(count)}</td></tr>"
                       for name, count in self.phases.items())
        return (f"{self.parameters} parameters, peak <b>{_size(self.peak)}</b>"
                f"<table><tr><th>phase</th><th>held</th></tr>{rows}</table>")


def plan(config: str | os.PathLike | Mapping, *, overrides: Mapping | None = None, backend: str | None = None,
         threads: int = 0) -> Plan:
    """The memory of a run with these settings, to the byte. Allocates nothing, and reads only headers of data files."""
    context = open_context(backend, threads)
    memory = c.tg_train_memory()
    context.check(lib.tg_train_plan(context, _config.Settings(context, config, overrides), 1, memory))
    place = memory.place
    return Plan(
        parameters=memory.parameters, peak=memory.peak_total[place],
        categories={text(lib.tg_mem_category_name(i)): count
                    for i, count in enumerate(memory.peak[place]) if count},
        phases={text(phase.name): phase.total[place] for phase in memory.phase[:memory.count]},
        missing=text(memory.missing))


def _path(given):
    """A path that cannot be taken for an option."""
    path = os.fspath(given)
    return os.path.join(os.curdir, path) if path.startswith("-") else path


def _program(*arguments):
    """The program's standard output; its sentence as an Error."""
    path = find_program()
    if not path:
        raise Error("the program tgrad, which does this, is not in this installation of libtgrad", c.TG_E_IO)
    done = subprocess.run([path, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Error(done.stderr.strip().removeprefix("tgrad: ") or f"tgrad {arguments[0]} failed")
    return done.stdout


def analyze(gradient: Any, *, tensor: str | None = None, methods: str | list[str] | None = None,
            threads: int = 0) -> dict:
    """The reconstruction errors of compression methods on a gradient: an array, a file, or a run (a
    gradient of its spectral weight). `methods` are names of `tgrad analyze --help`, or "all"."""
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(gradient, (str, os.PathLike)):
            path = _path(gradient)
        else:
            path = os.path.join(folder, "gradient.npy")
            _arrays.write_archive(path, {"data": _arrays.to_numpy(gradient, "gradient")}, open_context())
        words = ["analyze", path, "--json", "--threads", str(threads)]
        if tensor:
            words += ["--tensor", tensor]
        if methods:
            words += ["--methods", methods if isinstance(methods, str) else ",".join(methods)]
        return json.loads(_program(*words))


class Report:
    """A page about runs. Notebooks show it."""

    def __init__(self, page: str):
        self.html = page

    def save(self, path: str | os.PathLike) -> None:
        pathlib.Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self):
        return (f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:40em;border:0">'
                "</iframe>")

    def __repr__(self):
        return f"<libtgrad.Report: {len(self.html)} characters; save(path) writes it>"


def report(*runs: Any, title: str | None = None, samples: int = 2) -> Report:
    """A page that shows and compares runs: errors, curves, memory, times, settings, test samples."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.html"
        words = ["report", *map(_path, runs), "--output", str(path), "--samples", str(samples)]
        _program(*words, *(["--title", title] if title else []))
        return Report(path.read_text(encoding="utf-8"))
