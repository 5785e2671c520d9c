"""Build the site in build/site: python -m tools.site [--without-solutions], or slides: … slides [09]."""

import argparse
import os
import shlex
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
    parser.add_argument("chapters", nargs="*", metavar="09", help="make slides of these chapters alone")
    parser.add_argument("--without-solutions", action="store_true", help="a site for students")
    options = parser.parse_args(argv)
    if options.chapters and options.what == "site":
        parser.error("a site has all chapters: name some for slides alone")
    source, out = BUILD / f"{options.what}_source", BUILD / options.what
    try:
        build(options.what, notebooks.ROOT, source, out, not options.without_solutions, options.chapters)
    except ValueError as error:
        sys.exit(f"{options.what}: {error}")
    print(how_to_open(options.what, out.relative_to(notebooks.ROOT)))


def how_to_open(what, out):
    """What is said at the end of a build; `out` is relative to the course's folder."""
    index = out / "index.html"
    if what == "slides":
        return f"slides: open {index}; it needs no server"
    python = sys.executable
    if python.startswith(f"{notebooks.ROOT}{os.sep}"):
        python = os.path.relpath(python, notebooks.ROOT)
    return (
        f"site: run  {shlex.quote(python)} -m http.server -b 127.0.0.1 -d {out}  and open  http://127.0.0.1:8000\n"
        f"      {index} opens as a file, too, but without the page that plans a job and the excerpts of a search"
    )


def build(what, course, source, out, solutions=True, chapters=()):
    """Write the pages of the course at `course` to `out`; a site without `solutions` lacks the lecturers' page, too.

    Slides are of all chapters, or of those called `chapters`, such as "09".

    Raises ValueError for a notebook that cannot be shown, a Sphinx warning, or a broken link; `out` then stays as it
    was.
    """
    for folder in (source, fresh := out.with_name(f"{out.name}_new")):
        shutil.rmtree(folder, ignore_errors=True)
    if what == "slides":
        slides.write(course, source, chapters)
    else:
        pages.write(course, source, solutions)
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
