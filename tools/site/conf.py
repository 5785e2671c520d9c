"""Sphinx's configuration for the site and the slides."""

project = "From One GPU to Many"
html_title = project
copyright = "the course's maintainers. Text and figures CC BY 4.0, code Apache 2.0"
extensions = ["myst_nb", "sphinx-mathjax-offline", "sphinx_revealjs"]
exclude_patterns = [".doctrees"]
suppress_warnings = ["misc.highlighting_failure"]  # cells that are deliberately not Python

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "static/favicon.svg"
highlight_language = "none"  # default: commands and their output
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the outputs are the committed ones
nb_ipywidgets_js = {}  # else every page loads it from a CDN
nb_merge_streams = True
nb_render_error_lexer = "none"  # the course's messages are sentences, not tracebacks

revealjs_static_path = ["static"]
revealjs_css_files = ["slides.css"]
revealjs_style_theme = "white"
revealjs_script_conf = {
    "hash": True,
    "width": 1280,
    "height": 720,
    "margin": 0,
    "transition": "none",
    "slideNumber": True,
}
revealjs_script_plugins = [{"name": "RevealZoom", "src": "revealjs/plugin/zoom/zoom.js"}]


def setup(app):
    """Say of each chapter when it is read and when it is written, since Sphinx is told to be quiet."""
    app.connect("source-read", lambda app, name, source: say("reading", name))
    app.connect("html-page-context", lambda app, name, *rest: say("writing", name))


def say(what, page):
    name = page.split("/")[-1]
    if name[:2].isdigit() and "solutions" not in page:
        print(f"{what} {name}", flush=True)
