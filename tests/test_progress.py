"""Progress in a terminal, in a notebook and in a log."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from pimem.progress import Counts, Progress, kind_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("pimem.progress.time.monotonic", lambda: clock.now)
    return clock


def test_the_line_counts_samples_calls_speed_and_time_left(clock: SimpleNamespace) -> None:
    counts = Counts(
        total=64, before=4, answered=9, failed=1, calls=1500, replayed=20, prompt_tokens=9000, generated_tokens=1000
    )
    progress = Progress("pi_mem on hotpotqa-50", counts, kind="log", stream=io.StringIO())
    assert progress.text(clock.now + 100) == (
        "pi_mem on hotpotqa-50: 14/64 samples, 1 failed, 1,500 calls + 20 replayed, 100 tokens/s, 1:40, 8:20 left"
    )
    assert Progress("x", Counts(total=3, before=3)).text(clock.now) == "x: 3/3 samples, 0 calls, 0:00"
    assert Progress("x", Counts(total=2, calls=1, errors=2)).text(clock.now + 7300).endswith("2 errors, 0 tokens/s, 2:01:40")


def test_a_log_gets_a_whole_line_now_and_then(clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    progress = Progress("run", Counts(total=2), stream=stream)
    for _ in range(70):
        clock.now += 1
        progress.tick()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.rsplit(", ", 1)[1] for line in lines] == ["0:30", "1:00", "1:10"]
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_has_one_line_that_is_redrawn(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    progress = Progress("a label that is longer than the line", Counts(total=2), stream=stream)
    for _ in range(3):
        clock.now += 1
        progress.tick()
    progress.close()
    assert stream.getvalue() == ("\r\x1b[2K" + "a label that is longer"[:19]) * 4 + "\n"


def test_a_notebook_has_one_display_that_is_updated(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython")
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            shown.append(("update", bundle["text/plain"]))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(("display", bundle["text/plain"]))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace(kernel=object()))
    progress = Progress("run", Counts(total=1), stream=Terminal())
    assert progress.kind == "notebook"
    clock.now += 5
    progress.tick()
    progress.tick()
    progress.close()
    assert [kind for kind, _ in shown] == ["display", "update"]
    assert progress.stream.getvalue() == ""  # type: ignore[attr-defined]


def test_what_it_writes_to_decides() -> None:
    assert kind_of(Terminal()) == "terminal"
    assert kind_of(io.StringIO()) == "log"


def test_a_stream_that_is_gone_does_not_end_the_run() -> None:
    stream = Terminal()
    stream.close()
    progress = Progress("run", Counts(total=1), kind="log", stream=stream)
    progress.close()
    assert progress.kind == "none"
