"""A network that takes its time: a TCP proxy that hands on what it got after a delay, each way, in order.

    python -m benchmarks.delaying --to 127.0.0.1:6379 --ms 15      # prints its address

A request and its answer take twice the delay; what the server sends by itself takes it once. Bandwidth is not bounded,
and how long a connection takes to be made is not delayed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.shaped_s3 import ROOT

_CHUNK_BYTES = 1 << 16


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass one direction of a connection on, each piece `delay_s` later, until its end; then close the writer."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        """Write each queued piece when it is due; close the writer after the empty last one."""
        data = b"any"
        while data:
            due_s, data = await under_way.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            writer.write(data)
            await writer.drain()
        writer.close()

    delivering = asyncio.create_task(deliver())
    data = b"any"
    while data:
        with contextlib.suppress(ConnectionError):
            data = b""
            data = await reader.read(_CHUNK_BYTES)
        under_way.put_nowait((loop.time() + delay_s, data))
    with contextlib.suppress(ConnectionError):
        await delivering


async def run(host: str, port: int, delay_s: float) -> None:
    """Listen on a free port of loopback, print its address, and pass each connection on to `host`, for ever."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, port)
        await asyncio.gather(carry(reader, requests, delay_s), carry(answers, writer, delay_s))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1000)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def delayed(address: str, delay_ms: float) -> Iterator[str]:
    """Run a delaying proxy as a process; yield its address, then end it. Without a delay, yield `address` itself."""
    if not delay_ms:
        yield address
        return
    command = [sys.executable, "-m", "benchmarks.delaying", "--to", address, "--ms", str(delay_ms)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.wait()


def main() -> None:
    """Serve the proxy of the command line until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, help="host:port")
    parser.add_argument("--ms", type=float, required=True, help="each way")
    arguments = parser.parse_args()
    host, _, port = arguments.to.rpartition(":")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(host, int(port), arguments.ms / 1000))


if __name__ == "__main__":
    main()
