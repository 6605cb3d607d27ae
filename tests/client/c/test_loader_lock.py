"""A constructor of dlopen(3) runs under the loader's lock: no other thread may await that one under ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.client.c.building import preload_library
from tests.client.c.test_thread import compiled
from tests.integration.conftest import DaemonProcess

PLUG_IN = r"""
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "utracefs.h"

static void *declare(void *unused)
{
	utracefs_declare("c_first u32 n", 0);
	return unused;
}

__attribute__((constructor)) static void begin(void)
{
	const struct timespec moment = {0, 200000000}; /* until that thread waits, if it does */
	pthread_t other;

	if (getenv("OTHER"))
		pthread_create(&other, NULL, declare, NULL);
	else
		declare(NULL);
	nanosleep(&moment, NULL);
	utracefs_declare("c_second u32 n", 0);
	if (getenv("OTHER"))
		pthread_detach(other);
}
"""
HOST = r"""
#include <dlfcn.h>

int main(int argc, char **words)
{
	return argc != 2 || !dlopen(words[1], RTLD_NOW);
}
"""


@pytest.mark.parametrize("other", [False, True], ids=["the client's thread", "another thread"])
@pytest.mark.parametrize("preload", [False, True])
def test_a_constructor_never_waits_for_itself(
    daemon: DaemonProcess, built: Path, tmp_path: Path, other: bool, preload: bool
) -> None:
    (tmp_path / "plug_in.c").write_text(PLUG_IN)
    (tmp_path / "host.c").write_text(HOST)
    plug_in = compiled(tmp_path / "plug_in.c", built, "-shared")
    host = compiled(tmp_path / "host.c", built, "-Wl,--no-as-needed")
    environment = {
        **os.environ,
        "UTRACEFS_DIR": daemon.directory,
        "UTRACEFS_RING_KB": "1024",
        **({"OTHER": "1"} if other else {}),
        **({"LD_PRELOAD": str(preload_library())} if preload else {}),
    }
    done = subprocess.run([host, plug_in], env=environment, timeout=20, check=False)
    assert done.returncode == 0
