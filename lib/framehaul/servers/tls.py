"""TLS for servers that a study starts: certificates made for the run, and a process that ends it before a server.

The wheels of both embedded servers are built without TLS on their listeners, so they stand behind that process, as
servers stand behind a load balancer.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers.secret import write_private

LIFE = dt.timedelta(days=2)
"""Longer than any run."""


@dataclass(frozen=True)
class Certificate:
    """The certificate of a server, its key, and that of the authority that clients trust: paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path


def certificate(directory: Path, *addresses: str) -> Certificate:
    """A new authority, and a certificate of its for a server at these IP addresses, in a directory that is there.

    The key of the authority is not kept: it signs nothing else. Raises UnavailableError without `cryptography`.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UnavailableError(
            "cryptography, which makes certificates, is not installed: uv sync --extra network, or "
            "pip install 'framehaul[network]'"
        ) from None

    now = dt.datetime.now(dt.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    names = {
        name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"framehaul {name} of a run")]) for name in keys
    }

    def signed(name: str, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        builder = x509.CertificateBuilder(
            names["authority"], names[name], keys[name].public_key(), x509.random_serial_number(),
            now - dt.timedelta(hours=1), now + LIFE,
        )  # fmt: skip
        # Python 3.13 asks for both: https://docs.python.org/3/library/ssl.html#ssl.VERIFY_X509_STRICT
        identifiers = (
            x509.SubjectKeyIdentifier.from_public_key(keys[name].public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["authority"].public_key()),
        )
        for extension, critical in (*extensions, *((one, False) for one in identifiers)):
            builder = builder.add_extension(extension, critical)
        return builder.sign(keys["authority"], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    made = Certificate(directory / "authority.crt", directory / "server.crt", directory / "server.key")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made.authority.write_bytes(
        signed("authority", (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True))
    )
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(one)) for one in addresses])
    made.certificate.write_bytes(signed("server", (alternatives, False)))
    private = keys["server"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(made.key, private.decode())
    return made


@dataclass(frozen=True)
class Terminator:
    """The process that ends TLS, and its ports, one for each server behind it."""

    process_id: int
    ports: list[int]


@contextmanager
def ended_before(made: Certificate, *ports: int, postgres: tuple[int, ...] = ()) -> Iterator[Terminator]:
    """TLS for the servers at these loopback ports, on all addresses of this namespace, while the block lasts.

    Clients of those that are `postgres`, which come last, ask for TLS in PostgreSQL's own way first. Raises ServerError
    where it cannot be had.
    """
    command = [sys.executable, "-m", "framehaul.servers.tls_terminator", str(made.certificate), str(made.key)]
    with subprocess.Popen(
        [*command, *map(str, ports), *(f"postgres:{port}" for port in postgres)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        listening = process.stdout.readline().split()
        if len(listening) != len(ports) + len(postgres):
            raise ServerError(f"the process that ends TLS did not start: status {process.wait()}")
        yield Terminator(process.pid, [int(port) for port in listening])
