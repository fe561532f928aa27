"""Progress of long calls in terminals and notebooks, and their interruption."""
import html
import signal
import sys
import threading
import time


def in_notebook():
    """Whether the front end can show HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def display_of(wish):
    """A display for a `progress` argument; None: in terminals and notebooks."""
    if wish is False:
        return Display()
    if in_notebook():
        return Notebook()
    return Terminal() if wish or sys.stderr.isatty() else Display()


class Display:
    """Shows nothing."""

    def samples(self, unit, done, total):
        pass

    def step(self, progress):
        pass

    def epoch(self, record):
        pass

    def close(self):
        pass


def _left(seconds):
    if not seconds >= 0.0:  # NaN: not known yet
        return ""
    minutes, rest = divmod(int(seconds), 60)
    return f", {minutes} min left" if minutes else f", {rest} s left"


def _headline(progress):
    return (f"epoch {progress.epoch}/{progress.epochs}, step {progress.batch}/{progress.batches}, "
            f"loss {progress.loss:.4g}, {progress.step_ms:.1f} ms/step{_left(progress.seconds_left)}")


def _errors(record):
    return "  ".join(f"{grid}: l2 {test['l2']:.4g} h1 {test['h1']:.4g}" for grid, test in record["test"].items())


class _Throttled(Display):
    """At most five updates a second."""

    PAUSE = 0.2

    def __init__(self):
        self._next = 0.0

    def _due(self):
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self.PAUSE
        return True


class Terminal(_Throttled):
    """A line that is overwritten, and a permanent one for each epoch."""

    def _write(self, line, end=""):
        sys.stderr.write(f"\r\x1b[K{line}{end}" if sys.stderr.isatty() else line + "\n")
        sys.stderr.flush()

    def samples(self, unit, done, total):
        if self._due() and sys.stderr.isatty():
            self._write(f"{done} of {total} {unit}")

    def step(self, progress):
        if self._due() and sys.stderr.isatty():
            self._write(_headline(progress))

    def epoch(self, record):
        self._write(f"epoch {record['epoch']}  train loss {record['train']['loss']:.4g}  {_errors(record)}", "\n")

    def close(self):
        if sys.stderr.isatty():
            self._write("")


class Notebook(_Throttled):
    """A bar and a table of the last epochs, in one output that is replaced."""

    ROWS = 10

    def __init__(self):
        from IPython.display import HTML, display
        super().__init__()
        self._html, self._rows, self._bar = HTML, [], ""
        self._handle = display(HTML(""), display_id=True)

    def _show(self):
        table = ""
        if self._rows:
            cells = "".join(f"<tr><td>{number}</td><td>{loss:.4g}</td><td>{html.escape(errors)}</td></tr>"
                            for number, loss, errors in self._rows[-self.ROWS:])
            table = f"<table><tr><th>epoch</th><th>train</th><th>test</th></tr>{cells}</table>"
        self._handle.update(self._html(self._bar + table))

    def _set(self, share, line):
        self._bar = f'<progress value="{share:.4f}" max="1"></progress> {html.escape(line)}'
        self._show()

    def samples(self, unit, done, total):
        if self._due() or done == total:
            self._set(done / max(total, 1), f"{done} of {total} {unit}")

    def step(self, progress):
        if self._due():
            done = progress.epoch - 1 + progress.batch / max(progress.batches, 1)
            self._set(done / max(progress.epochs, 1), _headline(progress))

    def epoch(self, record):
        self._rows.append((record["epoch"], record["train"]["loss"], _errors(record)))
        self._show()

    def close(self):
        self._bar = ""
        self._show()


class Interrupt:
    """Ctrl-C during a call of the library: asks it to save and stop, and raises afterwards.

    Exceptions cannot pass through C, so those of callbacks are deferred here, too. A second Ctrl-C has
    its usual effect as soon as Python runs.
    """

    def __init__(self):
        self.stops = False
        self._error = None

    def __enter__(self):
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_):
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number, frame):
        self.stops = True
        signal.signal(signal.SIGINT, self._before)

    def call(self, function, *arguments):
        """A callback of the user's or of a display."""
        try:
            function(*arguments)
        except BaseException as error:  # KeyboardInterrupt is one of them
            self.stops = True
            self._error = self._error or error

    def end(self, sentence):
        """Raises a deferred exception; `sentence` says where the work stopped, None: it did not."""
        if self._error and not isinstance(self._error, KeyboardInterrupt):
            raise self._error
        if sentence and (self.stops or self._error):
            raise KeyboardInterrupt(sentence) from self._error
