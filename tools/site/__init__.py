"""The course as static pages and as slides: make site, make slides.

    pages     what Sphinx renders: chapters with outputs, solutions, programs, glossary, docs/, README as front page
    slides    the same notebooks' questions, figures and key points
    links     checks that internal links resolve and that no page loads anything from another host

Nothing is run: the outputs are the committed ones. No network is needed.
"""
