"""The process that takes bulk transfers; run as `python -m framehaul.servers.sink`.

It says in a line at which port it listens, on all addresses. Of what comes it says that it has all of it, once nothing
more comes; a byte that comes alone is answered at once. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

ANSWER = b"."


def main() -> None:
    """Take transfers until standard input ends."""
    listener = socket.create_server(("", 0))
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # whatever its connections do


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _take(connection: socket.socket) -> None:
    space = bytearray(1 << 20)
    with connection, contextlib.suppress(OSError):  # who has sent it may be gone
        while count := connection.recv_into(space):
            if count == 1:
                connection.sendall(ANSWER)
        connection.sendall(ANSWER)


if __name__ == "__main__":
    main()
