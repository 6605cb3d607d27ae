"""An authority and certificates for tests, by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.judges import judge


def certificates(folder: Path, *, days: str = "1", name: str = "server") -> None:
    """An authority, ca.pem, and a certificate of 127.0.0.1 by it, NAME.pem and NAME.key."""

    def openssl(*words: str) -> None:
        done = subprocess.run([judge("openssl"), *words], cwd=folder, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    if not (folder / "ca.pem").exists():
        openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    times = (
        ("-days", days)
        if days != "0"
        else ("-not_before", "20200101000000Z", "-not_after", "20200102000000Z")
    )
    words = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    if days == "0":
        (folder / "index").write_text("")
        (folder / "serial").write_text("01")
        (folder / "ca.conf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\n"
            "policy=p\n[p]\ncommonName=supplied\n"
        )
        openssl(
            "ca",
            "-batch",
            "-config",
            "ca.conf",
            "-cert",
            "ca.pem",
            "-keyfile",
            "ca.key",
            "-in",
            f"{name}.csr",
            "-out",
            f"{name}.pem",
            "-startdate",
            "20200101000000Z",
            "-enddate",
            "20200102000000Z",
            "-extfile",
            "names",
            "-notext",
        )
        return
    openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *times, *words)
