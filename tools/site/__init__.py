"""The course as static pages, and as slides: make site, make slides

    pages     what Sphinx renders: chapters with their outputs, solutions, programs, glossary, docs/, README as the
              front page
    slides    the same notebooks' questions, figures and key points
    links     that every link inside leads somewhere, and that no page asks another host for anything

Nothing is run: the outputs are those that the notebooks were committed with. No network is needed.
"""
