// What the order is worth: the pile and the queue, against first in, first out.

import { getJson } from "./api.js";
import { $, MANY, make, number, percent, rankColor } from "./page.js";

const BASIS = {
  labels: "Computed from the labels of the predictions file.",
  verdicts: "There are no labels; your own verdicts are taken for the truth, over the cases you have read.",
  probabilities: "There are neither labels nor verdicts; the model's probabilities are taken at their word, as if they were calibrated.",
  none: "There are neither labels, nor verdicts, nor probabilities, so nothing can be computed yet. Read some cases first.",
};
const SVG = "http://www.w3.org/2000/svg";

export async function showOrder(overview) {
  const found = await getJson("/api/order");
  const page = make("div", {});
  page.append(make("h1", {}, "What the order is worth"), make("p", { class: "dim" }, BASIS[found.basis]));
  if (found.revealed) page.append(make("h2", {}, "What your verdicts reveal"), make("p", {}, found.revealed));
  if (found.piles.length) page.append(...pileSection(overview, found));
  if (found.waits) page.append(...waitSection(overview, found.waits));
  $("#order").replaceChildren(page);
}

// A table whose cells know their heads: on a narrow screen each row is a card, and no column is cut.
function labelled(heads, rows) {
  for (const cells of rows) cells.forEach((cell, column) => { cell.dataset.label = heads[column]; });
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", {}, text)))), make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells))));
}

function pileSection(overview, found) {
  const bounds = new Map(overview.boundaries.filter((one) => one.coarse || overview.boundaries.length <= MANY).map((one) => [one.rank, one]));
  const rows = found.piles.filter((pile) => bounds.has(pile.rank)).map((pile) => {
    const bound = bounds.get(pile.rank);
    const pair = (ours, chance, format) => [make("td", { class: ours !== chance ? "better" : "" }, format(ours)), make("td", { class: "dim" }, format(chance))];
    return [make("td", {}, `at least ${bound.shown}`), make("td", {}, `${pile.urgent} of ${pile.cases}`),
      ...pair(pile.worklist.last, pile.arrival.last, (value) => number(value, 0)),
      ...pair(pile.worklist.first, pile.arrival.first, (value) => percent(value)),
      ...pair(pile.worklist.mean, pile.arrival.mean, (value) => number(value, 1))];
  });
  const head = ["Urgent means", "Cases", "Reads until the last", "without order*", "Within the first 20 %", "without order*", "Mean position", "without order*"];
  return [
    make("h2", {}, "A pile of cases, read from the top"),
    make("div", { class: "table-wrap", role: "region", tabindex: 0, "aria-label": "Cases read from the top" }, labelled(head, rows)),
    make("p", { class: "dim" }, "* expected of an order that says nothing about urgency."),
  ];
}

function waitSection(overview, waits) {
  const slider = make("input", { type: "range", min: 0, max: waits.utilization.length - 1, value: waits.utilization.indexOf(0.8), "aria-label": "Utilization" });
  const shown = make("output", {});
  const chart = make("div", {});
  const table = make("div", { class: "table-wrap", role: "region", tabindex: 0, "aria-label": "Waiting by class" });
  const top = Math.max(...overview.classes.map((one) => one.rank));
  const draw = () => {
    const place = Number(slider.value);
    shown.textContent = `the reader is busy ${percent(waits.utilization[place])} of the time`;
    chart.replaceChildren(plot(overview, waits, place, top));
    const fifo = waits.arrival_order[place];
    const rows = overview.classes.map((one, index) => {
      const wait = waits.by_class[index][place];
      const change = wait == null ? "does not occur" : wait <= fifo ? `${percent(1 - wait / fifo)} shorter` : `${percent(wait / fifo - 1)} longer`;
      return [make("td", {}, one.shown), make("td", {}, number(wait, 1)), make("td", { class: wait != null && wait <= fifo ? "better" : "dim" }, change)];
    }).reverse();
    table.replaceChildren(labelled(["True class", "Mean wait, in reading times", `against ${number(fifo, 1)} in order of arrival`], rows));
  };
  slider.addEventListener("input", draw);
  draw();
  const legend = make("div", { class: "legend" }, ...overview.classes.map((one) => make("span", { class: "chip" }, make("i", { style: { background: rankColor(one.rank, top) } }), one.shown)), make("span", { class: "dim" }, "- - in order of arrival"));
  return [
    make("h2", {}, "Cases that arrive while others are read"),
    make("p", { class: "dim" }, "One reader, who always takes the most urgently called case next and finishes what is begun. Waiting is moved, not removed: what urgent cases gain, others wait longer, and false alarms delay everybody else."),
    make("p", { class: "row" }, slider, shown), ...(overview.classes.length > MANY ? [] : [legend]), chart,
    overview.classes.length > MANY ? make("details", {}, make("summary", {}, `All ${overview.classes.length} classes`), table) : table,
    make("p", { class: "dim" }, "Poisson arrivals and exponential reading times (Cobham's formula), from the confusion matrix."),
  ];
}

function plot(overview, waits, place, top) {
  const [width, height, left, bottom] = [760, 320, 46, 48];
  const most = Math.min(40, Math.max(...waits.arrival_order, ...waits.by_class.flat().filter((value) => value != null)));
  const x = (index) => left + (index / (waits.utilization.length - 1)) * (width - left - 14);
  const y = (value) => 26 + (1 - Math.min(value, most) / most) * (height - bottom - 26);
  const draw = (tag, attributes, text = "") => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "waiting time over utilization" });
  for (let step = 0; step <= 4; step += 1) {
    const value = (most * step) / 4;
    svg.append(draw("line", { x1: left, x2: width - 14, y1: y(value), y2: y(value), class: "grid" }), draw("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value, most < 8 ? 1 : 0)));
  }
  waits.utilization.forEach((load, index) => { if (index % 3 === 0) svg.append(draw("text", { x: x(index), y: height - 30, "text-anchor": "middle" }, percent(load))); });
  svg.append(draw("text", { x: 4, y: 12 }, "Mean wait, in reading times"), draw("text", { x: width - 14, y: height - 10, "text-anchor": "end" }, "Share of the time that the reader is busy"));
  const path = (values) => values.map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  svg.append(draw("path", { d: path(waits.arrival_order), class: "fifo" }));
  waits.by_class.forEach((values, index) => {
    if (values[0] != null) svg.append(draw("path", { d: path(values), stroke: rankColor(overview.classes[index].rank, top) }));
  });
  svg.append(draw("line", { x1: x(place), x2: x(place), y1: 26, y2: height - bottom, class: "now" }));
  return svg;
}
