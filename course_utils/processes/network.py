"""The network inside one machine, and its names."""

import contextlib
import ctypes
import functools


@functools.cache
def loopback():
    """The loopback interface's name: lo on Linux, lo0 on macOS."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    raise RuntimeError(
        "this machine has no loopback interface (127.0.0.1), which workers need to find each other; "
        "`ip link set lo up` may bring it up"
    )


@contextlib.contextmanager
def names_from_files():
    """Look up host names in files only (glibc).

    As it connects, torch asks for the name of 127.0.0.1, for its log. The name server that is asked is slow or silent
    on many a laptop, and a launch then takes 5 s or 10 s.
    """
    configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)
    if configure is None:
        yield
        return
    try:
        with open("/etc/nsswitch.conf") as file:
            usual = next((line.split(":", 1)[1].strip() for line in file if line.startswith("hosts:")), "files dns")
    except OSError:
        usual = "files dns"
    configure(b"hosts", b"files")
    try:
        yield
    finally:
        configure(b"hosts", usual.encode())
