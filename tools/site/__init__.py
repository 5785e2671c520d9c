"""The course as static pages and as slides: make site, make slides.

    pages         what Sphinx renders: chapters with outputs, solutions, programs, glossary, docs/, README as front page
    planner_page  the page that plans a job in the browser, from the folder planner/
    slides        the same notebooks' questions, figures and key points
    links         checks that internal links resolve and that no page loads anything from another host

Nothing is run: the outputs are the committed ones. No network is needed but for the planner's page, and for that once.
"""
