// Start, addresses and keys. The address after # says what is shown, so that a link shows the same again.

import { getJson } from "./api.js";
import { OperatingPoint } from "./kappa.js";
import { showOrder } from "./order.js";
import { $, make, toast } from "./page.js";
import { SlideView } from "./slide.js";
import { Worklist } from "./worklist.js";

const KEYS = [
  ["j  k", "next, previous case"], ["Enter", "open the case"], ["Esc", "back to the worklist"], ["/", "search"],
  ["<  >", "operating point: to the next change of a call"], ["a", "agree with the call"], ["1 … 9", "read as this class"], ["d", "defer"], ["u", "undo"],
  ["h", "heatmap on and off"], ["[  ]", "less, more opacity"], ["n  p", "next, previous top tile"],
  ["r", "mark a region"], ["0", "whole slide"], ["f", "full screen"], ["?", "this list"],
];
const state = { reviews: new Map(), revision: -1 };

async function start() {
  const overview = await getJson("/api/overview");
  document.title = `${overview.title} · PAMS view`;
  $("#title").textContent = `${overview.title} · ${overview.order}`;
  $("#title").title = overview.order;
  if (overview.notes.length) {
    $("#notes-button").hidden = false;
    $("#notes-button").textContent = `${overview.notes.length} note${overview.notes.length > 1 ? "s" : ""}`;
    $("#note-list").append(...overview.notes.map((note) => make("li", {}, note)));
    $("#notes-button").addEventListener("click", () => $("#notes").showModal());
  }
  $("#keys").append(...KEYS.flatMap(([key, what]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)]));
  $("#help-button").addEventListener("click", () => $("#help").showModal());
  state.overview = overview;
  state.cases = await getJson("/api/worklist");
  await readReviews();
  state.point = new OperatingPoint(state.cases, () => { state.list.rebuild(true); state.view.showCalls(); });
  state.point.set(route().settings.get("kappa"), true);
  state.list = new Worklist(overview, state.cases, state.reviews, openCase);
  state.view = new SlideView(overview, state.cases, state.reviews, { changed, go: goTo, open: openCase, kappa: () => state.point.kappa, neighbor: (row, step) => state.list.neighbor(row, step), position: (row) => [state.list.rows.indexOf(row) + 1, state.list.rows.length] });
  state.list.onchange = () => { if (route().tab === "worklist") history.replaceState(null, "", address("#/", state.list.settings())); };
  addEventListener("hashchange", show);
  addEventListener("focus", refresh);
  setInterval(refresh, 15000);
  document.addEventListener("keydown", onKey);
  state.list.apply(route().settings);
  state.list.rebuild();
  show();
}

async function readReviews() {
  const found = await getJson("/api/reviews");
  state.revision = found.revision;
  state.reviews.clear();
  for (const [key, verdict] of Object.entries(found.verdicts)) state.reviews.set(key, verdict);
  count();
}

function count() {
  const done = [...state.reviews.values()].filter((one) => one.verdict && one.verdict !== "defer").length;
  const { reviewer, cases, blind } = state.overview;
  const [read, all] = [done.toLocaleString("en"), cases.toLocaleString("en")];
  $("#counts").replaceChildren(make("span", { class: "long" }, `${read} of ${all} read by ${reviewer}${blind ? " · blind" : ""}`), make("span", { class: "short" }, `${read} / ${all}`));
}

async function refresh() {
  if (document.hidden) return;
  try {
    const before = state.revision;
    await readReviews();
    if (state.revision !== before) { state.list.rebuild(true); state.view.showVerdict(); }
  } catch { toast("The server does not answer; was it stopped?"); }
}

// A verdict was given: in blind mode the call comes with it.
function changed(row, found) {
  const key = state.cases.key[row];
  state.reviews.set(key, found.verdict);
  state.revision = found.revision;
  if (found.revealed) {
    for (const [name, value] of Object.entries(found.revealed)) state.cases[name][row] = value;
    state.point.reveal(row);
  }
  count();
}

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const settings = new URLSearchParams(query);
  const [tab, key] = path.split("/");
  if (tab === "slide" && state.list?.index.has(key)) return { tab, row: state.list.index.get(key), settings };
  return { tab: tab === "order" ? "order" : "worklist", settings };
}

// The operating point belongs to every address, so that a link shows the same calls.
function address(path, settings = {}) {
  const query = new URLSearchParams(state.point.kappa == null ? settings : { ...settings, kappa: state.point.kappa }).toString();
  return query ? `${path}?${query}` : path;
}
function openCase(row) { if (row != null) location.hash = address(`#/slide/${state.cases.key[row]}`); }
// Only while its slide is the address: a view that settles just after the reader went elsewhere must not take them back.
function goTo(row, settings) { if (route().row === row) history.replaceState(null, "", address(`#/slide/${state.cases.key[row]}`, settings)); }

function show() {
  const { tab, row, settings } = route();
  if (tab === "worklist" && location.hash.startsWith("#/slide/")) toast("This viewer does not show that slide. Start 'pams view' with the command in the report.");
  if (settings.has("kappa")) state.point.set(settings.get("kappa"));
  for (const id of ["worklist", "slide", "order"]) $(`#${id}`).hidden = id !== tab;
  for (const link of document.querySelectorAll("#bar nav a")) link.classList.toggle("here", link.dataset.tab === (tab === "slide" ? "worklist" : tab));
  $("#back").href = address("#/", state.list.settings());
  if (tab === "slide") { state.list.choose(row); state.view.open(row, settings); return; }
  state.view.leave();
  if (tab === "order") showOrder(state.overview).catch((error) => toast(`What the order is worth could not be computed: ${error.message}`));
  else { state.list.rebuild(true); $("#list").focus(); }
}

function onKey(event) {
  const typing = event.target.closest("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (!document.querySelector("dialog[open]") && route().tab !== "worklist") location.hash = $("#back").hash || "#/";
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "?") { $("#help").showModal(); return; }
  const { tab, row } = route();
  if (event.key === "<" || event.key === ">") { state.point.step(event.key === ">" ? 1 : -1); return; }
  if (tab === "slide" && "jk".includes(event.key)) { openCase(state.list.neighbor(row, event.key === "j" ? 1 : -1)); return; }
  if (tab === "slide" && state.view.onKey(event.key)) { event.preventDefault(); return; }
  if (tab !== "worklist") return;
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (step) { event.preventDefault(); state.list.pick(step); }
  else if (event.key === "Enter") openCase(state.list.pickedRow());
  else if (event.key === "/") { event.preventDefault(); $("#search").focus(); }
}

start().catch((error) => toast(`The viewer could not start: ${error.message}`));
