// The worklist: sorted, filtered, grouped, and drawn only where the window looks, so that 20,000 cases stay smooth.

import { otherCalls } from "./kappa.js";
import { $, badge, calledSet, chip, explain, make, meter, number, percent, rankColor, shownLabel } from "./page.js";

const ROW = 56;
const PICTURES = 300;
const STATUS = { agree: "agreed", override: "overruled", defer: "deferred" };

export class Worklist {
  constructor(overview, cases, reviews, open) {
    Object.assign(this, { overview, cases, reviews, open });
    this.count = cases.key.length;
    this.top = Math.max(...overview.classes.map((one) => one.rank));
    this.coarse = overview.boundaries.map((one, index) => ({ ...one, index })).filter((one) => one.coarse).slice(-3);
    this.picked = 0;
    this.lines = [];
    this.pictures = new Map();
    this.index = new Map(cases.key.map((key, row) => [key, row]));
    this.text = cases.key.map((_, row) => `${cases.slide[row]}\n${cases.patient[row]}\n${cases.group[row]}`.toLowerCase());
    this.orders = this.makeOrders();
    this.fillControls();
    const again = () => this.rebuild();
    for (const id of ["#sort", "#call-filter", "#status-filter", "#group"]) $(id).addEventListener("change", again);
    $("#search").addEventListener("input", again);
    $("#thumb-heat").addEventListener("change", () => this.draw(true));
    $("#filters").addEventListener("submit", (event) => event.preventDefault());
    $("#list").addEventListener("scroll", () => this.later());
    new ResizeObserver(() => this.draw(true)).observe($("#list"));
    $("#list").addEventListener("click", (event) => {
      const line = event.target.closest(".case");
      if (line) this.open(Number(line.dataset.row));
    });
  }

  makeOrders() {
    const { cases } = this;
    const blind = this.overview.blind;
    const by = (column, sign) => (row) => (column[row] == null ? Infinity : sign * column[row]);
    this.place = new Map(cases.order.map((row, place) => [row, place]));
    const orders = blind ? [] : [["urgency", "most urgent first", (row) => this.place.get(row)]];
    if (cases.at_least && !blind) {
      for (const bound of this.coarse) orders.push([`b${bound.rank}`, `P(at least ${bound.shown})`, (row) => -(cases.at_least[row]?.[bound.index] ?? -Infinity)]);
      orders.push(["uncertainty", "least certain first", by(cases.uncertainty, -1)]);
    }
    if (cases.agreement && !blind) orders.push(["agreement", "runs disagree first", by(cases.agreement, 1)]);
    orders.push(["arrival", "as in the file", (row) => row], ["slide", "slide", null], ["status", "unread first", (row) => (this.status(row) ? 1 : 0)]);
    return orders;
  }

  fillControls() {
    for (const [key, label] of this.orders) $("#sort").append(make("option", { value: key }, label));
    $("#call-filter").append(make("option", { value: "" }, "all"));
    this.overview.classes.forEach((one, index) => $("#call-filter").append(make("option", { value: index }, one.shown)));
    $("#call-filter").parentElement.hidden = this.overview.blind;
    $("#thumb-heat").parentElement.hidden = this.overview.blind;
    $("#group-label").hidden = !this.overview.grouped;
    document.documentElement.style.setProperty("--bounds", this.coarse.length);
    const heads = [["Picture", "", ""], ["Slide", "slide", ""], ["Call", "urgency", ""]];
    for (const bound of this.coarse) heads.push([`≥ ${bound.shown}`, `b${bound.rank}`, "middle", "at_least"]);
    if (this.cases.certified) heads.push(this.overview.findings.length ? ["Certified set", "urgency", "middle", "certified_set"] : ["Cannot exclude", "urgency", "middle", "certified"]);
    document.documentElement.style.setProperty("--certified", this.cases.certified ? "minmax(120px, 1fr)" : "");
    heads.push(["Severity", "urgency", "middle", "severity"], ["Uncertainty", "uncertainty", "wide", "uncertainty"], ["Runs agree", "agreement", "wide", "agreement"], ["Status", "status", ""]);
    const known = new Set(this.orders.map(([key]) => key));
    $("#list-head").replaceChildren(...heads.map(([label, key, kind, why]) => {
      const head = known.has(key)
        ? make("button", { "data-sort": key, title: why ? null : `Order by ${label}`, onclick: () => { $("#sort").value = key; this.rebuild(); } }, label)
        : make("span", { class: label === "Picture" ? "unseen" : "" }, label);
      return make("span", { class: kind, role: "columnheader" }, why ? explain(head, why) : head);
    }));
  }

  status(row) { return this.reviews.get(this.cases.key[row])?.verdict ?? null; }

  // The rows in the order and choice of the controls; slides of one case stay together when grouped.
  rebuild(keep = null) {
    const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const call = $("#call-filter").value;
    const status = $("#status-filter").value;
    const rows = [];
    for (let row = 0; row < this.count; row += 1) {
      if (call !== "" && this.cases.call[row] !== Number(call)) continue;
      const state = this.status(row);
      if (status && (status === "open" ? state : state !== status)) continue;
      if (words.length && !words.every((word) => this.text[row].includes(word))) continue;
      rows.push(row);
    }
    const [key, , value] = this.orders.find(([name]) => name === $("#sort").value) ?? this.orders[0];
    if (value) {
      const place = new Float64Array(this.count);
      rows.forEach((row) => { place[row] = value(row); });
      rows.sort((a, b) => (place[a] < place[b] ? -1 : place[a] > place[b] ? 1 : a - b));
    } else rows.sort((a, b) => this.cases.slide[a].localeCompare(this.cases.slide[b], undefined, { numeric: true }));
    this.rows = rows;
    this.lines = $("#group").checked ? this.grouped(rows) : rows.map((row) => ({ row }));
    for (const head of $("#list-head").querySelectorAll("[data-sort]")) head.classList.toggle("sorted", head.dataset.sort === key);
    $("#shown").textContent = rows.length === this.count ? `${this.count.toLocaleString("en")} case${this.count === 1 ? "" : "s"}` : `${rows.length.toLocaleString("en")} of ${this.count.toLocaleString("en")} cases`;
    $("#list-space").style.height = `${this.lines.length * ROW}px`;
    if (keep == null) { this.picked = 0; $("#list").scrollTop = 0; }
    this.draw(true);
    this.onchange?.();
  }

  grouped(rows) {
    const members = new Map();
    for (const row of rows) {
      const name = this.cases.group[row];
      if (!members.has(name)) members.set(name, []);
      members.get(name).push(row);
    }
    return [...members].flatMap(([name, slides]) => [{ group: name, count: slides.length }, ...slides.map((row) => ({ row }))]);
  }

  later() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(false); });
  }

  draw(all) {
    const list = $("#list");
    if (!list.offsetParent) return;
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const last = Math.min(this.lines.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 6);
    const space = $("#list-space");
    if (all || !this.lines.length) space.replaceChildren();
    const there = new Map([...space.children].map((line) => [Number(line.dataset.line), line]));
    for (const [position, line] of there) if (position < first || position >= last) line.remove();
    for (let position = first; position < last; position += 1) {
      if (!there.has(position)) space.append(this.line(position));
    }
    if (!this.lines.length) space.append(make("div", { class: "empty" }, "No case matches."));
  }

  line(position) {
    const entry = this.lines[position];
    const style = { top: `${position * ROW}px` };
    if (entry.group != null) {
      return make("div", { class: "group-row", "data-line": position, role: "row", style }, make("span", { role: "cell" }, entry.group), make("small", { class: "dim", role: "cell" }, `${entry.count} slides`));
    }
    const { row } = entry;
    const { cases } = this;
    const state = this.status(row);
    const picked = this.lines[this.picked]?.row === row;
    const line = make("div", { class: `case list-row${picked ? " picked" : ""}${state && state !== "defer" ? " done" : ""}`, "data-line": position, "data-row": row, role: "row", style });
    const picture = this.thumbnail(row);
    const patient = cases.patient[row] === cases.slide[row] ? "" : cases.patient[row];
    line.append(picture, make("span", { class: "name" }, make("b", {}, cases.slide[row]), make("small", {}, patient), badge(cases.seen[row], "seen"), this.disputed(row)), this.callOf(row));
    for (const bound of this.coarse) {
      const share = cases.at_least?.[row]?.[bound.index];
      line.append(make("span", { class: "middle" }, share == null ? "–" : meter(share, percent(share))));
    }
    if (cases.certified) line.append(make("span", { class: "middle" }, this.certifiedOf(row)));
    const severity = cases.severity[row];
    const sure = cases.uncertainty?.[row];
    const agree = cases.agreement?.[row];
    line.append(
      make("span", { class: "middle" }, severity == null ? "–" : meter(severity / this.top, number(severity))),
      make("span", { class: "wide" }, sure == null ? "–" : meter(sure, percent(sure), "plain")),
      make("span", { class: "wide" }, agree == null ? "–" : meter(agree, percent(agree), "cool")),
      this.statusOf(row, state),
    );
    for (const cell of line.children) cell.setAttribute("role", "cell");
    return line;
  }

  // Loaded once per case, however often the list is drawn again.
  thumbnail(row) {
    const heat = $("#thumb-heat").checked && !this.overview.blind;
    const name = `${row} ${heat}`;
    if (!this.pictures.has(name)) {
      if (this.pictures.size >= PICTURES) this.pictures.delete(this.pictures.keys().next().value);
      this.pictures.set(name, this.load(row, heat));
    }
    return this.pictures.get(name);
  }

  // A placeholder, then the slide, then the slide with its heat, which may have to be computed first.
  load(row, heat) {
    const box = make("span", { class: "thumb waiting" });
    const plain = `/thumbnail/${this.cases.key[row]}`;
    const sources = [...(this.cases.has_slide[row] ? [plain] : []), ...(heat ? [`${plain}?heat=1`] : [])];
    const next = () => {
      const source = sources.shift();
      if (!source || !(box.isConnected || box.dataset.new)) { box.classList.toggle("missing", !box.firstChild); box.classList.remove("waiting"); return; }
      delete box.dataset.new;
      const picture = make("img", { alt: "" });
      picture.onload = () => { box.replaceChildren(picture); box.classList.remove("waiting"); next(); };
      picture.onerror = next;
      picture.src = source;
    };
    box.dataset.new = "1";
    next();
    return box;
  }

  // Worn by cases that another order of urgency calls something else.
  disputed(row) {
    const others = otherCalls(this.overview, this.cases, row).filter(([, index]) => index !== this.cases.call[row]);
    const calls = others.map(([order, index]) => `${this.overview.classes[index].shown} by ${order}`);
    return calls.length ? explain(make("span", { class: "badge" }, "disputed"), `Another order of urgency calls this case differently: ${calls.join(", ")}.`) : null;
  }

  callOf(row) {
    const call = this.cases.call[row];
    if (call == null) return make("span", { class: "dim" }, "hidden");
    const one = this.overview.classes[call];
    const decided = this.cases.decided[row];
    const moved = call === decided ? "" : call > decided ? "↑ " : "↓ ";
    const mark = chip(rankColor(one.rank, this.top), `${moved}${one.shown}`);
    if (moved) mark.title = `${one.shown} at this operating point; as decided ${this.overview.classes[decided].shown}`;
    const others = calledSet(this.overview, this.cases, row).slice(1).map((index) => this.overview.classes[index].shown).join(", ");
    return others ? make("span", { class: "set" }, mark, make("small", { title: others }, `with ${others}`)) : mark;
  }

  // What is certified, most urgent first: the class that cannot be excluded, with the least urgent one of an interval; the
  // calls of several orders of urgency; or a set of findings.
  certifiedOf(row) {
    const answer = this.cases.certified[row];
    if (answer == null) return "–";
    const low = this.cases.lowest?.[row];
    const from = low == null || low === this.overview.classes[answer[0]].rank ? "" : `${this.overview.classes.find((item) => item.rank === low)?.shown ?? ""} … `;
    const [top, ...others] = answer.map((index) => this.overview.classes[index]);
    const mark = chip(rankColor(top.rank, this.top), `${from}${top.shown}`);
    if (!others.length) return mark;
    if (!this.overview.findings.length) return make("span", {}, mark, ...others.map((one) => chip(rankColor(one.rank, this.top), one.shown)));
    const rest = others.map((one) => one.shown).join(", ");
    return make("span", { class: "set" }, mark, make("small", { title: rest }, `with ${rest}`));
  }

  statusOf(row, state) {
    const verdict = this.reviews.get(this.cases.key[row]);
    if (!state) return make("span", { class: "status dim" }, "unread");
    const text = state === "override" ? `overruled: ${shownLabel(this.overview, verdict.class ?? "")}` : STATUS[state];
    return make("span", { class: `status ${state}`, title: verdict.note || text }, text);
  }

  pick(step) {
    let next = this.picked;
    do next += step; while (this.lines[next]?.group != null);
    if (this.lines[this.picked]?.group != null && !this.lines[next]) return;
    if (!this.lines[next]) return;
    $("#list-space .picked")?.classList.remove("picked");
    this.picked = next;
    const list = $("#list");
    const top = next * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    this.draw(false);
    $(`#list-space [data-line="${next}"]`)?.classList.add("picked");
  }

  pickedRow() {
    const line = this.lines[this.picked];
    return line?.row ?? this.lines[this.picked + 1]?.row ?? null;
  }

  choose(row) {
    const position = this.lines.findIndex((line) => line.row === row);
    if (position >= 0) this.picked = position;
  }

  neighbor(row, step) {
    const position = this.rows.indexOf(row);
    return position < 0 ? this.rows[0] ?? null : this.rows[position + step] ?? null;
  }

  settings() {
    const found = { sort: $("#sort").value, call: $("#call-filter").value, status: $("#status-filter").value, q: $("#search").value, group: $("#group").checked ? "1" : "" };
    if (found.sort === this.orders[0][0]) found.sort = "";
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value));
  }

  apply(settings) {
    $("#sort").value = this.orders.some(([key]) => key === settings.get("sort")) ? settings.get("sort") : this.orders[0][0];
    $("#call-filter").value = settings.get("call") ?? "";
    $("#status-filter").value = settings.get("status") ?? "";
    $("#search").value = settings.get("q") ?? "";
    $("#group").checked = settings.get("group") === "1";
  }
}
