"""The network inside one machine: the loopback interface and host names."""

import contextlib
import ctypes
import functools


@functools.cache
def loopback():
    """Return the name of the loopback interface, lo on Linux, lo0 on macOS. Raises RuntimeError if there is none."""
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
    """Look up host names in files only in this block (glibc).

    When torch connects, it looks up the host name of 127.0.0.1, for its log. On many laptops the name server is slow or
    does not answer, and a launch would take 5 s or 10 s longer.
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
