"""A network of one's own: two namespaces of the kernel, and between them as much delay and as little rate as wanted.

A process that has called `isolate` is in a network namespace of its own, with servers and clients that it starts: the
machine's own network is neither reached nor touched, and the namespaces end with the last process in them, however
that ends. `opened` makes a second namespace, for clients, and joins the two by TUN devices and the process
`forwarder`, for not every kernel can delay packets by itself (`tc netem`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers.address import ClickHouseServer, PostgresServer
from framehaul.servers.forwarder import Carried

CLIENT, SERVER = "10.81.0.1", "10.81.0.2"
"""Addresses in the namespaces, where there are no others."""
MTU = 1500
"""Of Ethernet."""
DEVICE = "framehaul"
# linux/if_tun.h: a device that gives bare packets, whose large ones and checksums are left to whom they are passed on
TUN, NO_PACKET_INFORMATION, OFFLOAD_HEADER = 0x0001, 0x1000, 0x4000
SET_DEVICE, SET_OFFLOAD, CHECKSUMS, LARGE_TCP4, LARGE_TCP6 = 0x4004_54CA, 0x4004_54D0, 1, 2, 4
# linux/sockios.h, linux/if.h
SET_FLAGS, SET_ADDRESS, SET_PEER, SET_MTU, UP, RUNNING = 0x8914, 0x8916, 0x8918, 0x8922, 0x1, 0x40
PING_SECONDS = 5.0
ECHO_REQUEST, ECHO_REPLY = 8, 0


@dataclass(frozen=True)
class Link:
    """A network between a client and a server, as it is asked for."""

    name: str
    rtt_ms: float = 0.0
    """How long a packet is on its way, there and back."""
    mbit_per_s: float = 0.0
    """The rate of each direction; 0: none."""
    loopback: bool = False
    """No network at all: client and server are in one namespace."""


def isolate() -> None:
    """Move this process into a network namespace of its own, as any account where the kernel lets it.

    It must have one thread. Raises UnavailableError with the reason where there is no namespace to be had.
    """
    if not hasattr(os, "unshare"):
        raise UnavailableError("network namespaces are Linux's, and this system has none")
    user, group = os.geteuid(), os.getegid()
    try:
        if user == 0:
            os.unshare(os.CLONE_NEWNET)
        else:
            # An account that is not root has all rights in a user namespace of its own, in which it stays who it is:
            # user_namespaces(7)
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _raise_up("lo")
    except OSError as error:
        raise UnavailableError(
            f"this system gives no network namespace ({error.strerror}): run as root, in a container with "
            "--privileged, or let accounts have user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        ) from None


class Joined:
    """What a process is told and asked that stands in place of a network."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.process_id = process.pid
        """Whose CPU time is not that of any client or server."""

    def use(self, link: Link) -> None:
        """What lies between client and server is like this from here on."""
        self._ask(f"{link.rtt_ms / 2000} {link.mbit_per_s * 1e6 / 8}")

    def carried(self) -> Carried:
        """What has been carried so far."""
        return self._ask("")

    @contextmanager
    def at_client(self) -> Iterator[None]:
        """What this thread, and those that it starts meanwhile, opens in the block is on the client's side."""
        yield

    def _ask(self, line: str) -> Carried:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
        answer = self._process.stdout.readline()
        if not answer:
            raise ServerError(f"what stands in place of a network has ended, with status {self._process.wait()}")
        return Carried(**json.loads(answer))


class Network(Joined):
    """The two namespaces of an isolated process, and what lies between them; `opened` gives one."""

    def __init__(self, client: int, server: int, forwarder: subprocess.Popen[bytes]) -> None:
        super().__init__(forwarder)
        self._client, self._server = client, server

    @contextmanager
    def at_client(self) -> Iterator[None]:
        """What this thread, and those that it starts meanwhile, opens in the block is on the client's side."""
        os.setns(self._client, os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(self._server, os.CLONE_NEWNET)

    def far[S: PostgresServer | ClickHouseServer](self, server: S) -> S:
        """The same server, as it is reached from the client's side."""
        return replace(server, host=SERVER)


@contextmanager
def opened() -> Iterator[Network]:
    """A network between this thread's namespace, which must be its own, and a second one for clients.

    Raises UnavailableError where the kernel has no TUN devices.
    """
    with contextlib.ExitStack() as stack:
        server = _namespace(stack)
        try:
            server_device = _device(stack, SERVER, CLIENT)
            os.unshare(os.CLONE_NEWNET)
            stack.callback(os.setns, server, os.CLONE_NEWNET)
            client = _namespace(stack)
            _raise_up("lo")
            client_device = _device(stack, CLIENT, SERVER)
        except OSError as error:
            raise UnavailableError(
                f"this system gives no TUN device ({error.strerror}): give this container /dev/net/tun, or load the "
                "kernel's module tun"
            ) from None
        os.setns(server, os.CLONE_NEWNET)
        command = [sys.executable, "-m", "framehaul.servers.forwarder", str(client_device), str(server_device)]
        forwarder = stack.enter_context(subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
            pass_fds=(client_device, server_device),
        ))  # fmt: skip
        yield Network(client, server, forwarder)


def _namespace(stack: contextlib.ExitStack) -> int:
    """The network namespace of this thread, as a file descriptor; in it TCP forgets connections that have ended."""
    with contextlib.suppress(OSError):  # where a container may not, what TCP learns of one pass is there in the next
        Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")
    number = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    stack.callback(os.close, number)
    return number


def _device(stack: contextlib.ExitStack, address: str, peer: str) -> int:
    """A TUN device in this thread's namespace; it is gone when its last file descriptor is closed."""
    number = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, number)
    flags = TUN | NO_PACKET_INFORMATION | OFFLOAD_HEADER
    fcntl.ioctl(number, SET_DEVICE, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(number, SET_OFFLOAD, CHECKSUMS | LARGE_TCP4 | LARGE_TCP6)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, ip in ((SET_ADDRESS, address), (SET_PEER, peer)):
            wanted = struct.pack("16sH2x4s8x", DEVICE.encode(), socket.AF_INET, socket.inet_aton(ip))
            fcntl.ioctl(any_socket, request, wanted)
        fcntl.ioctl(any_socket, SET_MTU, struct.pack("16si20x", DEVICE.encode(), MTU))
    _raise_up(DEVICE)
    return number


def _raise_up(device: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH22x", device.encode(), UP | RUNNING))


def ping(address: str, count: int) -> list[float]:
    """Round trips, in seconds, of ICMP echo requests, as ping sends them: RFC 792.

    Raises OSError where this process may send none, TimeoutError where no answer comes.
    """
    times = []
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(PING_SECONDS)
        for number in range(1, count + 1):
            body = struct.pack("!HH", os.getpid() & 0xFFFF, number) + bytes(48)
            start = time.perf_counter()
            icmp.sendto(struct.pack("!BBH", ECHO_REQUEST, 0, _checksum(bytes([ECHO_REQUEST, 0]) + body)) + body,
                        (address, 0))  # fmt: skip
            while True:
                packet = icmp.recv(1024)
                answer = packet[4 * (packet[0] & 15) :]
                if answer[0] == ECHO_REPLY and answer[4:8] == body[:4]:
                    break
            times.append(time.perf_counter() - start)
    return times


def _checksum(data: bytes) -> int:
    """https://www.rfc-editor.org/rfc/rfc1071, of bytes that have their checksum left out."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@contextmanager
def sink() -> Iterator[int]:
    """A port of this thread's namespace, on all its addresses, for `bulk` and `echo`, while the block lasts."""
    command = [sys.executable, "-m", "framehaul.servers.sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def echo(address: str, port: int, count: int) -> list[float]:
    """Round trips, in seconds, of a byte to a `sink` and back, where there can be no ping."""
    times = []
    with socket.create_connection((address, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            start = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            times.append(time.perf_counter() - start)
    return times


def bulk(address: str, port: int, total: int) -> float:
    """Bytes per second of a transfer to a `sink`, from the first byte sent to its word that all of them are there."""
    piece = bytes(1 << 18)
    with socket.create_connection((address, port)) as connection:
        start = time.perf_counter()
        for _ in range(0, total, len(piece)):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return total / (time.perf_counter() - start)


def congestion_control() -> str:
    """How the kernel's TCP finds its rate here."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
