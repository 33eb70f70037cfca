"""One line that says how far a run is: redrawn in place in a terminal and in a notebook, now and then in a log."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal, TextIO

Kind = Literal["terminal", "notebook", "log", "none"]

SECONDS: dict[Kind, float] = {"terminal": 0.2, "notebook": 1.0, "log": 30.0, "none": 3600.0}
"""Time between two updates."""


@dataclass
class Counts:
    """What one process has done on a run so far."""

    total: int = 0
    """Samples asked for."""
    before: int = 0
    """Samples that were through before it began."""
    answered: int = 0
    failed: int = 0
    calls: int = 0
    """Calls that the engine answered."""
    errors: int = 0
    """Requests that the engine failed."""
    replayed: int = 0
    """Calls answered from the store."""
    stale: int = 0
    """Calls whose stored answer was to another prompt or sampling, hence made anew."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


def kind_of(stream: TextIO) -> Kind:
    """How progress is to be shown: as PIMEM_PROGRESS says, else in the notebook this runs in, or on the stream."""
    asked = os.environ.get("PIMEM_PROGRESS")
    if asked in SECONDS:
        return asked
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return "notebook"
    return "terminal" if stream.isatty() else "log"


class Progress:
    """Shows a run's counts. `tick` may be called as often as one likes."""

    def __init__(self, label: str, counts: Counts, *, kind: Kind | None = None, stream: TextIO | None = None):
        self.label = label
        self.counts = counts
        self.stream = stream or sys.stderr
        self.kind: Kind = kind or kind_of(self.stream)
        self.interval = SECONDS[self.kind]
        self._started = self._shown = time.monotonic()
        self._display: Any = None

    def text(self, now: float) -> str:
        """The line: samples, calls, speed and time left, as of the monotonic time `now`."""
        c = self.counts
        seconds = max(now - self._started, 1e-9)
        mine = c.answered + c.failed
        through = c.before + mine
        parts = [f"{self.label}: {through:,}/{c.total:,} samples"]
        if c.failed:
            parts.append(f"{c.failed:,} failed")
        parts.append(f"{c.calls:,} calls" + (f" + {c.replayed:,} replayed" if c.replayed else ""))
        if c.errors:
            parts.append(f"{c.errors:,} errors")
        if c.calls:
            parts.append(f"{(c.prompt_tokens + c.generated_tokens) / seconds:,.0f} tokens/s")
        parts.append(_clock(seconds))
        if mine and through < c.total:
            parts.append(f"{_clock(seconds / mine * (c.total - through))} left")
        return ", ".join(parts)

    def tick(self) -> None:
        """Shows the line if it is time to."""
        now = time.monotonic()
        if now - self._shown >= self.interval:
            self._shown = now
            self._show(self.text(now), last=False)

    def say(self, message: str) -> None:
        """Shows a line of its own that stays."""
        if self.kind == "none":
            return
        try:
            print(f"{self.label}: {message}", file=self.stream, flush=True)
        except (OSError, ValueError):
            self.kind = "none"

    def close(self) -> None:
        """Shows how it ended."""
        self._show(self.text(time.monotonic()), last=True)

    def _show(self, text: str, last: bool) -> None:
        if self.kind == "none":
            return
        if self.kind == "notebook":
            self._show_in_notebook(text)
            return
        if self.kind == "terminal":
            width = shutil.get_terminal_size().columns - 1
            text = "\r\x1b[2K" + text[:width] + ("\n" if last else "")
        else:
            text += "\n"
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            # Nobody is listening any more; that must not end the run.
            self.kind = "none"

    def _show_in_notebook(self, text: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text}
        if self._display is None:
            self._display = display(bundle, raw=True, display_id=True)
        else:
            self._display.update(bundle, raw=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
