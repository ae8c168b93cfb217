"""Makes one call again and again in its main thread, and interrupts it at random moments; see `test_interrupts`.

    interrupted_child.py SEED TIMES CALL...

Prints each call, and how often it was hit. Hangs, if an interrupt has broken what the call needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import sys
import threading
import time
import uuid

from fsspec_cas import Store
from recipes.calls import CALLS, Made, finish

ARMED = [False]  # whether the next signal is to raise


class Hit(Exception):
    """What a signal handler of the user's raises, or another thread sends."""


def main(name: str, seed: int, times: int) -> None:
    chance, call = random.Random(seed), CALLS[name]
    made = Made(Store.from_url(f"memory://{uuid.uuid4().hex}"))
    began_s = time.perf_counter()
    for _ in range(3):
        one(made, name)
    took_s = (time.perf_counter() - began_s) / 3
    hits = 0
    for n in range(times):
        way = WAYS[n % len(WAYS)]
        hits += way(lambda: finish(call(made)), chance.random() * 1.2 * took_s)
        one(made, name)
    sys.stdout.write(f"{name} {hits}\n")
    sys.stdout.flush()


def one(made: Made, name: str) -> None:
    """The same call, to its end, undisturbed."""
    if name == "Queue.claim":
        made.queue.put("for whoever claims")
    if name == "Wal.follow":
        made.log.append(b"for whoever follows")
    finish(CALLS[name](made))


def by_signal(kind):
    def handler(*_):
        if ARMED[0]:
            ARMED[0] = False
            raise kind

    def hit(call, delay_s) -> bool:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            try:
                ARMED[0] = True
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, delay_s))
                call()
            finally:
                was, ARMED[0] = ARMED[0], False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except kind:
            return True
        return not was

    return hit


def from_thread(call, delay_s) -> bool:
    """By an exception that another thread sends, as `Deposed`."""
    out: list[bool] = []
    ready, sent = threading.Event(), threading.Event()

    def run() -> None:
        try:
            ready.set()
            call()
        except Hit:
            out.append(True)
        while not sent.is_set():  # else another thread may have its number when it is sent
            with contextlib.suppress(Hit):
                time.sleep(0.001)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    time.sleep(delay_s)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Hit))
    sent.set()
    thread.join()
    return bool(out)


WAYS = [by_signal(KeyboardInterrupt), by_signal(Hit), from_thread]

if __name__ == "__main__":
    for given in sys.argv[3:]:
        main(given, int(sys.argv[1]), int(sys.argv[2]))
