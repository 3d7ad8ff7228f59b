// One-line explanations under the pointer, on focus and on tap; without this script they are plain titles.
"use strict";
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  function show(term, place = term) {
    tip.textContent = term.dataset.tip;
    tip.hidden = false;
    const box = place.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const below = box.bottom + own.height + 8 < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
    tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - own.height - 6)}px`;
  }
  const hide = () => (tip.hidden = true);
  document.querySelectorAll("button.term").forEach((term) => {
    term.dataset.tip = term.title;
    term.setAttribute("aria-description", term.title);
    term.removeAttribute("title");
    for (const kind of ["mouseenter", "focus", "click"]) term.addEventListener(kind, () => show(term));
    for (const kind of ["mouseleave", "blur"]) term.addEventListener(kind, hide);
  });
  // On a narrow screen the heads of a table stand inside its cells, so a tap on a cell explains its column.
  addEventListener("click", (event) => {
    const cell = event.target.closest?.("td[data-label]");
    if (!cell || innerWidth > 640) return;
    const term = cell.closest("table").tHead?.rows[0].cells[cell.cellIndex]?.querySelector("button.term");
    if (term) show(term, cell); else hide();
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true, capture: true });
})();
