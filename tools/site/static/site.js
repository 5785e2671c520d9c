// A box that scrolls can be reached with the keyboard.
function reachable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);

// Sphinx calls the captions of the contents headings, and not of which level.
for (const caption of document.querySelectorAll(".sidebar-tree .caption")) caption.setAttribute("aria-level", "2");
