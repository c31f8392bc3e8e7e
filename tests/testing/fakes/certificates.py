"""A certificate of our own for 127.0.0.1, made by the openssl of this machine."""

import shutil
import ssl
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def certificate() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server shows, and what a client trusts."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is not on PATH"
    with tempfile.TemporaryDirectory() as place:
        key, cert = Path(place, "key.pem"), Path(place, "cert.pem")
        made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
        named = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
        command = (openssl, *made, *named, "-keyout", str(key), "-out", str(cert))
        subprocess.run(command, check=True, capture_output=True)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key)
        client = ssl.create_default_context(cafile=str(cert))
    return server, client
