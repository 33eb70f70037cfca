"""Calls asynchronous code from synchronous code: one event loop in a thread of its own.

Notebooks run a loop already and a command line none; behind a portal both call the same code the same way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """A context manager around an event loop in a background thread. May be entered from a thread that runs a loop itself.

    Leaving it cancels what still runs, awaits what `on_close` was given, last first, and ends the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="pimem-portal", daemon=True)
        self._closers: list[Callable[[], Awaitable[object]]] = []

    def __enter__(self) -> Portal:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._wait(self._submit(self._wind_up()))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function(*args, **kwargs)` on the loop and returns or raises what it does.

        Ctrl-C cancels it, waits until it has cleaned up after itself, and raises `KeyboardInterrupt`; a second Ctrl-C
        waits no longer. Raises `RuntimeError` from the loop's own thread and outside `with`.
        """
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            raise RuntimeError("a portal is called between entering and leaving it, from another thread than its own")
        return self._wait(self._submit(function(*args, **kwargs)))

    def on_close(self, closer: Callable[[], Awaitable[object]]) -> None:
        """Has `closer()` awaited when the portal is left, whatever else happened: `portal.on_close(engine.close)`."""
        self._closers.append(closer)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> tuple[concurrent.futures.Future[T], Callable[[], None]]:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []
        # A notebook's front end tells by context variables which cell printed text belongs to.
        context = contextvars.copy_context()

        def begin() -> None:
            task = self._loop.create_task(coroutine, context=context)
            tasks.append(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                done.set_exception(concurrent.futures.CancelledError())
            elif error := task.exception():
                done.set_exception(error)
            else:
                done.set_result(task.result())

        def cancel() -> None:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        self._loop.call_soon_threadsafe(begin)
        return done, cancel

    @staticmethod
    def _wait(submitted: tuple[concurrent.futures.Future[T], Callable[[], None]]) -> T:
        done, cancel = submitted
        try:
            return done.result()
        except KeyboardInterrupt:
            if not done.done():
                cancel()
                concurrent.futures.wait([done])
            raise

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        faults = []
        while self._closers:
            try:
                await self._closers.pop()()
            except Exception as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
