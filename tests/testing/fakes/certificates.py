"""A certificate of our own for 127.0.0.1, made by the openssl of this machine."""

import atexit
import shutil
import ssl
import subprocess
import tempfile
from functools import cache
from pathlib import Path


def certificate() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server shows, and what a client trusts."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(trusted(), Path(trusted()).with_name("key.pem"))
    return server, ssl.create_default_context(cafile=trusted())


@cache
def trusted() -> str:
    """The file of the certificate; its key lies beside it. Both go when this process ends."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is not on PATH"
    place = tempfile.mkdtemp(prefix="treadle-certificate-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    key, cert = Path(place, "key.pem"), Path(place, "cert.pem")
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30")
    named = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run((openssl, *made, *named, "-keyout", str(key), "-out", str(cert)), check=True, capture_output=True)
    return str(cert)
