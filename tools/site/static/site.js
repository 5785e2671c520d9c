// A box that scrolls can be reached with the keyboard.
function reachable() {
  for (const box of document.querySelectorAll("pre, figure, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);

// Sphinx calls the captions of the contents headings, and not of which level.
for (const caption of document.querySelectorAll(".sidebar-tree .caption")) caption.setAttribute("aria-level", "2");

// The excerpts of a search: the glossary's entry whole, and of other pages prose before code and what it printed.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const excerpt = Search.makeSearchSummary;
  Search.makeSearchSummary = (text, words, anchor) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const entry = anchor && page.querySelector(anchor)?.closest("li");
    if (entry) {
      const made = document.createElement("p");
      made.className = "context";
      made.textContent = entry.textContent;
      return made;
    }
    for (const code of page.querySelectorAll(".highlight, .cell_output")) code.remove();
    const made = excerpt(page.documentElement.outerHTML, words, anchor);
    const said = made ? made.textContent.toLowerCase() : "";
    return [...words].some((word) => said.includes(word)) ? made : excerpt(text, words, anchor);
  };
});
