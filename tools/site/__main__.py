"""Build the site in build/site, or the slides in build/slides: python -m tools.site [slides]."""

import argparse
import shutil
import sys

from sphinx.cmd.build import build_main

from tools import notebooks

from . import links, pages, slides

BUILD = notebooks.ROOT / "build"
CONF = notebooks.ROOT / "tools" / "site"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the site, or the slides.")
    parser.add_argument("what", nargs="?", choices=["site", "slides"], default="site")
    options = parser.parse_args(argv)
    source, out = BUILD / f"{options.what}_source", BUILD / options.what
    try:
        build(options.what, notebooks.ROOT, source, out)
    except ValueError as error:
        sys.exit(f"{options.what}: {error}")
    print(f"{options.what}: open {(out / 'index.html').relative_to(notebooks.ROOT)}")


def build(what, course, source, out):
    """Write the pages of the course at `course` to `out`.

    Raises ValueError for a notebook that cannot be shown, a Sphinx warning, or a broken link; `out` then stays as it
    was.
    """
    for folder in (source, fresh := out.with_name(f"{out.name}_new")):
        shutil.rmtree(folder, ignore_errors=True)
    (slides if what == "slides" else pages).write(course, source)
    builder = {"site": "html", "slides": "revealjs"}[what]
    arguments = ["-b", builder, "-c", str(CONF), "-d", str(source / ".doctrees"), "-q", "-W", "--keep-going"]
    if (extra := source / "extra").is_dir():  # copied unchanged
        arguments += ["-D", f"html_extra_path={extra}"]
    if build_main([*arguments, str(source), str(fresh)]):
        raise ValueError("Sphinx complains, see above")
    problems = links.problems(fresh)
    if problems:
        raise ValueError("\n  ".join(["these links lead nowhere, or out of here:", *problems]))
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


if __name__ == "__main__":
    main()
