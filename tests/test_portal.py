"""The synchronous facade: results, errors, a loop in the calling thread, Ctrl-C, and what is closed at the end."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from pimem.portal import Portal


async def double(x: int, *, plus: int = 0) -> int:
    await asyncio.sleep(0)
    return 2 * x + plus


async def fail() -> None:
    raise ValueError("no")


def test_returns_and_raises_what_the_function_does() -> None:
    with Portal() as portal:
        assert portal.call(double, 4, plus=1) == 9
        with pytest.raises(ValueError, match="no"):
            portal.call(fail)
        assert portal.call(double, 1) == 2


async def test_works_inside_a_thread_that_runs_a_loop() -> None:
    with Portal() as portal:
        assert portal.call(double, 3) == 6


def test_context_variables_reach_the_loop() -> None:
    cell = contextvars.ContextVar("cell", default="none")

    async def read() -> str:
        return cell.get()

    with Portal() as portal:
        cell.set("seventh")
        assert portal.call(read) == "seventh"


def test_leaving_cancels_tasks_then_closes_in_reverse_and_ends_the_thread() -> None:
    log: list[str] = []

    async def left_behind() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("cancelled")

    async def begin() -> None:
        asyncio.get_running_loop().background = asyncio.create_task(left_behind())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    async def close(name: str) -> None:
        log.append(name)
        if name == "second":
            raise OSError("second would not close")

    with pytest.raises(OSError, match="second"), Portal() as portal:  # noqa: PT012
        portal.on_close(lambda: close("first"))
        portal.on_close(lambda: close("second"))
        portal.call(begin)
    assert log == ["cancelled", "second", "first"]
    assert not [t for t in threading.enumerate() if t.name == "pimem-portal"]


def test_interrupt_cancels_the_work_and_still_closes() -> None:
    log: list[str] = []

    async def work() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            log.append("cleaned up")

    async def close() -> None:
        log.append("closed")

    # Started in the background, a process may have been told to ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Portal() as portal:  # noqa: PT012
            portal.on_close(close)
            portal.call(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert log == ["cleaned up", "closed"]


def test_outside_its_block_and_from_its_own_thread_it_refuses() -> None:
    portal = Portal()
    with pytest.raises(RuntimeError, match="between entering and leaving"):
        portal.call(double, 1)

    async def nested(portal: Portal) -> int:
        return portal.call(double, 1)

    with portal, pytest.raises(RuntimeError, match="another thread"):
        portal.call(nested, portal)
    with pytest.raises(RuntimeError, match="between entering and leaving"):
        portal.call(double, 1)
