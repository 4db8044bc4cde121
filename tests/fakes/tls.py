"""TLS in front of a plain server, with certificates that are made for the test."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_A_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority: `ca` is the file to trust it by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"an authority of the tests, {folder.name}")])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.ca = self._write("ca.pem", own.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def certificate(
        self, *names: str, expired: bool = False, unit: str = "", file: str = "", rsa_bits: int = 0
    ) -> tuple[Path, Path]:
        """Files of a certificate for a server with these names or addresses, and of its key. A client's is the same.

        A name may be a URI or an address of e-mail, too; `unit` is the subject's; `file` names the files.
        """
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")])
        if unit:
            subject = x509.Name([*subject, x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = self._builder(subject, key, ended=expired)
        signed = builder.add_extension(alternatives, False).sign(self._key, hashes.SHA256())
        secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return (
            self._write(f"{file or names[0]}.pem", signed.public_bytes(_PEM)),
            self._write(f"{file or names[0]}.key", secret),
        )

    def revoke(self, certificate: Path) -> Path:
        """A file of the authority together with a list that revokes one certificate."""
        now = dt.datetime.now(dt.UTC)
        number = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
        revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        listed = x509.CertificateRevocationListBuilder().issuer_name(self._name).add_revoked_certificate(revoked)
        signed = listed.last_update(now - _A_DAY).next_update(now + _A_DAY).sign(self._key, hashes.SHA256())
        return self._write("ca-with-list.pem", self.ca.read_bytes() + signed.public_bytes(_PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *, ended: bool = False
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _A_DAY)
            .not_valid_after(now - _A_DAY / 2 if ended else now + _A_DAY)
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path


class TlsProxy:
    """Speaks TLS to its clients and forwards to `port` in the clear, until `stop`. With `clients` they need a
    certificate of that authority.
    """

    def __init__(self, port: int, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self._to = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if clients is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(clients)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def start(self) -> None:
        self._accepting.start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        # A client that does not trust us ends the handshake.
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._to)) as server,
        ):
            client.settimeout(0.02)
            server.settimeout(0.02)
            self._forward(client, server)

    @staticmethod
    def _forward(client: ssl.SSLSocket, server: socket.socket) -> None:
        """Forward in one thread: a TLS connection cannot be used by two at once."""
        while True:
            for source, target in ((client, server), (server, client)):
                with contextlib.suppress(TimeoutError):
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    target.settimeout(10)
                    target.sendall(data)
                    target.settimeout(0.02)


_PEM = serialization.Encoding.PEM


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
