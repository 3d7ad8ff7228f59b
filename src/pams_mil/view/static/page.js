// Small pieces that every view uses: elements, numbers, colors, messages.

export const $ = (selector) => document.querySelector(selector);

// The findings that are called beside a call, most urgent first: for their own probability, and none beyond the call.
export function calledSet(overview, cases, row) {
  const call = cases.call[row];
  if (!overview.findings.length) return [call];
  const top = overview.classes[call].rank;
  const reach = cases.finding_reach?.[row] ?? [];
  const own = overview.findings.filter((index, place) => reach[place] != null && reach[place] <= (cases.kappa ?? 1) && overview.classes[index].rank <= top);
  const set = [...new Set([call, ...own.sort((a, b) => overview.classes[b].rank - overview.classes[a].rank)])];
  return set.length > 1 ? set.filter((index) => overview.findings.includes(index)) : set;  // "nothing" stands alone
}

// A class, or several findings, as people read them: the most urgent first.
export const shownLabel = (overview, label) => label.split("; ").reverse().map((name) => overview.classes.find((one) => one.name === name)?.shown ?? name).join(", ");

// An element with text as text, never as markup: names of slides and classes come from files.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// More classes than this do not fit on a screen: groups and the most probable classes are shown instead.
export const MANY = 40;
export const percent = (value, digits = 0) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);
export const number = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits));

// From calm to alarming, by rank: readable on white and on black, and different for the color-blind.
const RAMP = [[63, 127, 191], [72, 160, 148], [196, 160, 40], [222, 118, 30], [196, 52, 40], [170, 32, 96]];
export function rankColor(rank, top) {
  const [red, green, blue] = ramp(RAMP, top > 0 ? rank / top : 0);
  return `rgb(${red} ${green} ${blue})`;
}

export function ramp(stops, share) {
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((value, channel) => Math.round(value + (place - low) * (stops[low + 1][channel] - value)));
}

export function chip(color, text) {
  return make("span", { class: "chip", title: text }, make("i", { style: { background: color } }), make("span", {}, text));
}

export function meter(value, text, kind = "") {
  const width = `${Math.round(100 * Math.min(1, Math.max(0, value ?? 0)))}%`;
  const bar = value == null ? null : make("i", {}, make("b", { style: { width } }));
  return make("span", { class: `meter ${kind}` }, make("span", {}, text), bar);
}

// What a number means, in a sentence; shown on hover, focus and tap of whatever has `data-why`.
const WHY = {
  "κ": "The cost ratio κ: a case is called as if one missed urgency cost as much as κ false alarms. 1 calls the most probable class; more calls doubtful cases more urgent.",
  severity: "Expected severity: the rank of every class, weighted with its probability. 0 is surely the least urgent class; the list is ordered by it.",
  uncertainty: "How evenly the probability is spread over the classes (entropy): 0 % is one sure class, 100 % all classes equally likely.",
  agreement: "The share of the models whose own call, at the same operating point, is the call shown. Below 100 % they disagree.",
  at_least: "The probability that the case is this urgent or more.",
  certified: "The most urgent class that the certificate cannot exclude at its guaranteed rate of misses.",
  certified_set: "The findings that are called at the certificate's operating point, the most urgent first, of all slides of the patient where the guarantee is by patient.",
  order: "What this order of urgency calls at the same κ (at 1 where calls are as decided).",
  evidence: "What a tile says for (red) and against (blue) a class: its attention times the log probability the model gives it alone, compared with the other classes.",
  attention: "How much of the slide's summary a tile makes up. It tells where the model looked, not what for.",
};

export function explain(element, key) {
  element.dataset.why = key;
  if (!element.matches("a, button, input, select")) element.tabIndex = 0;
  element.setAttribute("aria-describedby", "why");
  return element;
}

// Worn by slides of patients that the model has seen; the sentence says in what.
export function badge(seen, text) {
  return seen ? explain(make("span", { class: "badge" }, text), `The model has seen this patient (${seen}), so its call here says nothing about new patients.`) : null;
}

function showWhy(event) {
  const box = $("#why");
  const about = event.target instanceof Element ? event.target.closest("[data-why]") : null;
  box.hidden = !about;
  if (!about) return;
  box.textContent = WHY[about.dataset.why] ?? about.dataset.why;
  const { left, bottom, top } = about.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = bottom + box.offsetHeight + 12 < innerHeight ? `${bottom + 6}px` : `${Math.max(8, top - box.offsetHeight - 6)}px`;
}

for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, showWhy);
document.addEventListener("focusout", () => { $("#why").hidden = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") $("#why").hidden = true; });

let hiding;
export function toast(text) {
  const box = $("#toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, 4500);
}
