"""Pass pip's settings for indexes, proxy and certificate to uv, which reads neither pip's variables nor its files.

An institute's mirror or proxy is configured there. Imports the standard library alone.
"""

import re
import subprocess
from ast import literal_eval
from functools import cache

UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}


@cache
def as_uv_variables(python):
    """The settings of `python`'s pip as uv's variables: {"UV_DEFAULT_INDEX": "https://…"}."""
    listed = subprocess.check_output([python, "-m", "pip", "config", "list"], text=True)
    found = {}
    for section in ("global", "install", ":env:"):  # the last one wins
        for name, value in re.findall(rf"^{section}\.([a-z-]+)=(.+)", listed, re.MULTILINE):
            if name in UV_NAMES:
                found[UV_NAMES[name]] = ("," if name == "find-links" else " ").join(literal_eval(value).split())
    return found
