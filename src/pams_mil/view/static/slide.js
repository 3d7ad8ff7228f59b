// One case: the slide, the heatmap over it, the tiles that say most, and the reader's verdict.

import { getHeat, getJson, post } from "./api.js";
import { drawLegend, paint, place, shaded, strongest } from "./heat.js";
import { otherCalls } from "./kappa.js";
import { MANY, $, badge, calledSet, chip, explain, make, number, percent, rankColor, shownLabel, toast } from "./page.js";
import { Regions } from "./regions.js";

const STRIP = 12;
const BARS_UM = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

// OpenSeadragon adds an inline style sheet unless it finds one of this name; ours is in app.css, and inline ones are
// forbidden. An element of no known kind answers its question.
const there = document.createElementNS("urn:pams", "style");
there.setAttribute("data-openseadragon-mobile-css", "");
document.head.append(there);

export class SlideView {
  constructor(overview, cases, reviews, hooks) {
    Object.assign(this, { overview, cases, reviews, hooks });
    this.top = Math.max(...overview.classes.map((one) => one.rank));
    this.row = null;
    this.canvas = make("canvas", { class: "heat-canvas" });
    this.frame = make("div", { class: "tile-frame" });
    this.regions = new Regions(this);
    this.fillVerdicts();
    const redraw = () => { this.showHeat(); this.remember(); };
    $("#layer").addEventListener("change", () => { this.followsCall = false; this.chooseLayer(); redraw(); });
    for (const id of ["#opacity", "#threshold"]) $(id).addEventListener("input", redraw);
    $("#heat-on").addEventListener("change", redraw);
    $("#ranks").addEventListener("change", () => { this.chooseLayer(); redraw(); });
    $("#previous").addEventListener("click", () => this.step(-1));
    $("#next").addEventListener("click", () => this.step(1));
    $("#tools").addEventListener("click", (event) => this.tool(event.target.dataset.tool));
    document.addEventListener("visibilitychange", () => this.clock(!document.hidden));
    $("#advance").checked = localStorage.getItem("pams-advance") === "1";
    $("#advance").addEventListener("change", () => localStorage.setItem("pams-advance", $("#advance").checked ? "1" : "0"));
  }

  fillVerdicts() {
    const buttons = this.overview.classes.map((one, index) => make("button", { "data-class": one.name, title: `Read as ${one.shown} (${index + 1})`, onclick: () => this.pick(one.name) },
      make("i", { style: { background: rankColor(one.rank, this.top) } }), one.shown, ...(this.overview.classes.length > MANY ? [] : [" ", make("kbd", {}, String(index + 1))])));
    $("#verdict-classes").append(...buttons);
    if (buttons.length > MANY) { // hundreds of classes: found by typing
      const find = make("input", { type: "search", placeholder: "Find a class", "aria-label": "Find a class" });
      const show = () => buttons.forEach((button, index) => { button.hidden = !find.value || !this.overview.classes[index].shown.toLowerCase().includes(find.value.toLowerCase()); });
      find.addEventListener("input", show);
      $("#verdict-classes").before(find);
      show();
    }
    this.marked = new Set();
    $("#read-marked").hidden = !this.overview.findings.length;
    $("#read-marked").addEventListener("click", () => this.readMarked());
    $("#defer").addEventListener("click", () => this.give({ action: "defer" }));
    $("#undo").addEventListener("click", () => this.give({ action: "undo" }));
  }

  async open(row, settings) {
    if (this.row === row) { this.restore(settings); return; }
    this.leave();
    this.row = row;
    this.marked.clear();
    $("#read-marked").disabled = true;
    const key = this.cases.key[row];
    this.spent = 0;
    this.clock(true);
    $("#slide-name").textContent = this.cases.slide[row];
    const patient = this.cases.patient[row] === this.cases.slide[row] ? "" : this.cases.patient[row];
    $("#slide-patient").replaceChildren(patient, badge(this.cases.seen[row], `seen in ${this.cases.seen[row]}`) ?? "");
    const [position, count] = this.hooks.position(row);
    $("#position").textContent = position ? `${position} of ${count}` : "";
    $("#note").value = this.reviews.get(key)?.note ?? "";
    $("#geojson").href = `/export/${key}.geojson`;
    $("#panel").scrollTop = 0;
    this.showCall();
    this.showVerdict();
    this.showProblem(null);
    const [info, heat] = await Promise.allSettled([getJson(`/api/slide/${key}`), this.readHeat(key)]);
    if (this.row !== row) return;
    if (info.status === "rejected") { this.noPicture(info.reason.message); return; }
    this.info = info.value;
    this.heat = heat.status === "fulfilled" ? heat.value : null;
    if (heat.status === "rejected") this.showProblem(heat.reason.message);
    this.showFacts();
    if (this.info.problem) this.noPicture(this.info.problem); else $("#no-picture").hidden = true;
    this.fillLayers(settings.get("layer"));
    if (this.info.width) this.openViewer(key, settings);
  }

  leave() {
    this.clock(false);
    this.regions.stop();
    this.viewer?.destroy();
    this.viewer = null;
    this.row = null;
    this.info = null;
    this.heat = null;
    this.layer = null;
    $("#strip").replaceChildren();
  }

  // Seconds that the case was on the screen.
  clock(runs) {
    if (this.since) this.spent += (performance.now() - this.since) / 1000;
    this.since = runs && this.row != null ? performance.now() : 0;
  }

  readHeat(key) {
    return this.overview.blind && this.cases.call[this.row] == null ? Promise.reject(new Error("Hidden until you have given your reading.")) : getHeat(key);
  }

  openViewer(key, settings) {
    const { width, height, top, tile_px: tile, overlap_px: overlap } = this.info;
    const least = Math.max(0, top - Math.max(0, Math.ceil(Math.log2(Math.max(width, height) / 256))));
    this.viewer = OpenSeadragon({
      element: $("#osd"), showNavigationControl: false, showNavigator: innerWidth > 760, navigatorPosition: "BOTTOM_RIGHT", navigatorAutoFade: false, drawer: "canvas",
      navigatorSizeRatio: 0.16, navigatorDisplayRegionColor: "#1f6fb2", animationTime: 0.6, maxZoomPixelRatio: 4, visibilityRatio: 0.3, crossOriginPolicy: false,
      imageLoaderLimit: 6, maxImageCacheCount: 400, gestureSettingsMouse: { clickToZoom: false }, keyboardNavEnabled: false,
      tileSources: { width, height, tileSize: tile, tileOverlap: overlap, minLevel: least, maxLevel: top, getTileUrl: (level, x, y) => `/tile/${key}/${level}/${x}/${y}` },
    });
    this.viewer.addHandler("open", () => {
      if (this.heat) {
        const area = place(this.heat);
        this.viewer.addOverlay({ element: this.canvas, location: this.rectangle(area.x, area.y, area.width, area.height) });
      }
      this.regions.show();
      this.restore(settings);
      this.showHeat();
      this.scaleBar();
    });
    this.viewer.addHandler("animation", () => this.scaleBar());
    this.viewer.addHandler("animation-finish", () => { this.scaleBar(); this.remember(); });
    this.viewer.addHandler("resize", () => this.scaleBar());
  }

  rectangle(x, y, width, height) { return this.viewer.viewport.imageToViewportRectangle(x, y, width, height); }

  // --- what the model says

  // Classes that are called, the most urgent first: one, or a set of findings.
  called() { return calledSet(this.overview, this.cases, this.row); }

  showCall() {
    const { cases, row, overview } = this;
    const call = cases.call[row];
    if (call == null) { $("#call").replaceChildren(make("p", { class: "dim" }, "The model's call is hidden until you have given your reading.")); return; }
    const one = overview.classes[call];
    const parts = [make("div", { class: "big" }, ...this.called().map((index) => chip(rankColor(overview.classes[index].rank, this.top), overview.classes[index].shown)))];
    if (cases.kappa != null) {
      const decided = overview.classes[cases.decided[row]].shown;
      parts.push(make("p", { class: "dim" }, `Called as if a missed urgency cost ${Number(cases.kappa.toPrecision(4))} false alarms${cases.decided[row] === call ? "" : `; as decided: ${decided}`}.`));
    }
    if (cases.probabilities) {
      const all = overview.classes.map((item, index) => [item, cases.probabilities[row][index]]).reverse();
      const least = all.length > MANY ? all.map(([, share]) => share).sort((one, two) => two - one)[9] : 0;
      const likely = all.length > MANY ? all.filter(([, share]) => share >= least).slice(0, 10) : all;
      const bars = likely.flatMap(([item, share]) => [
        make("span", {}, item.shown), make("i", {}, make("b", { style: { width: percent(share).replace(" ", ""), background: rankColor(item.rank, this.top) } })), make("span", {}, percent(share))]);
      parts.push(make("div", { class: "bars" }, ...bars));
      if (likely.length < all.length) parts.push(make("p", { class: "dim" }, `The ${likely.length} most probable of ${all.length} classes, most urgent first.`));
    }
    if (cases.findings) {
      const rows = overview.findings.map((index, place) => [overview.classes[index], cases.findings[row][place]]).reverse();
      parts.push(make("p", { class: "dim" }, `Present: ${rows.map(([item, share]) => `${item.shown} ${percent(share)}`).join(", ")}`));
    }
    const facts = [["Expected severity", `${number(cases.severity[row])} of ${this.top}`, "severity"]];
    overview.boundaries.forEach((bound, index) => { if (cases.at_least && (bound.coarse || overview.boundaries.length <= MANY)) facts.unshift([`At least ${bound.shown}`, percent(cases.at_least[row][index], 1), "at_least"]); });
    if (cases.certified?.[row] != null) {
      const names = cases.certified[row].map((index) => overview.classes[index].shown);
      facts.unshift(overview.findings.length ? ["Certified set", names.join(", "), "certified_set"] : ["Cannot be excluded", names.join(" or "), "certified"]);
    }
    otherCalls(overview, cases, row).forEach(([order, index]) => facts.push([`Called by ${order}`, overview.classes[index].shown, "order"]));
    if (cases.uncertainty) facts.push(["Uncertainty", percent(cases.uncertainty[row]), "uncertainty"]);
    if (cases.agreement) facts.push([`Agreement of ${overview.models.length} models`, percent(cases.agreement[row]), "agreement"]);
    parts.push(make("div", { class: "facts" }, ...facts.flatMap(([what, value, why]) => [explain(make("span", {}, what), why), make("b", {}, value)])));
    if (cases.certified) parts.push(make("p", { class: "dim" }, overview.guarantee));
    $("#call").replaceChildren(...parts);
  }

  // After the operating point moved: the call, what agreeing means, and the evidence for it.
  showCalls() {
    if (this.row == null) return;
    this.showCall();
    this.showVerdict();
    if (this.heat && this.followsCall) { this.fillLayers(null); this.showHeat(); }
  }

  showFacts() {
    const { info } = this;
    const scale = info.mpp ? `${Number(info.mpp.toFixed(4))} µm per pixel` : info.has_picture ? "scale unknown: the file does not state it, so there is no scale bar" : "";
    const size = info.width ? `${info.width.toLocaleString("en")} × ${info.height.toLocaleString("en")} pixels` : "";
    const tiles = this.heat ? `${this.heat.n.toLocaleString("en")} tiles of ${Math.round(this.heat.side)} pixels` : "";
    const notes = this.heat?.notes ?? [];
    $("#facts").replaceChildren(...[size, scale, tiles, ...notes].filter(Boolean).map((text) => make("div", {}, text)));
  }

  noPicture(text) { $("#no-picture").hidden = false; $("#no-picture").textContent = text; }

  showProblem(text) { $("#heat-problem").hidden = !text; $("#heat-problem").textContent = text ?? ""; $("#heat-controls").hidden = Boolean(text); }

  // --- the verdict

  showVerdict() {
    if (this.row == null) return;
    const verdict = this.reviews.get(this.cases.key[this.row]);
    const call = this.cases.call[this.row];
    const shown = (name) => shownLabel(this.overview, name);
    const words = { agree: "Agreed", override: "Overruled", defer: "Deferred" };
    $("#verdict-state").textContent = verdict?.verdict ? `${words[verdict.verdict]}${verdict.class ? `: ${shown(verdict.class)}` : ""}` : "Unread";
    $("#undo").disabled = !verdict?.verdict;
    for (const button of $("#verdict-classes").children) {
      const name = button.dataset.class;
      button.classList.toggle("mine", Boolean(verdict?.class?.split("; ").includes(name)));
      button.setAttribute("aria-pressed", this.marked.has(name));
      button.title = call != null && this.overview.classes[call].name === name ? `Agree with the call (a)` : `Read as ${shown(name)}`;
    }
  }

  read(name) { return this.give({ action: "read", class: name }); }

  // One finding: a click is the reading. Several: clicks mark findings, and Enter or "Read as marked" gives them.
  pick(name) {
    if (!this.overview.findings.length) { this.read(name); return; }
    if (!this.marked.delete(name)) this.marked.add(name);
    $("#read-marked").disabled = !this.marked.size;
    this.showVerdict();
  }

  readMarked() {
    if (!this.marked.size) return;
    this.read([...this.marked].join("; "));
    this.marked.clear();
    $("#read-marked").disabled = true;
  }

  agree() { this.read(this.called().map((index) => this.overview.classes[index].name).join("; ")); }

  async give(content) {
    const { row } = this;
    if (row == null || this.giving) return;
    this.giving = true;
    this.clock(true);
    const key = this.cases.key[row];
    const hidden = this.cases.call[row] == null;
    try {
      const found = await post(`/api/verdict/${key}`, { ...content, note: $("#note").value, seconds: this.spent, kappa: this.hooks.kappa(), seen: this.reviews.get(key)?.last ?? 0 });
      if (!found.ok) toast(found.problem ?? "The verdict was not taken.");
      if (found.verdict) this.hooks.changed(row, found);
      if (found.ok && content.action !== "undo") this.spent = 0;
      if (this.row !== row) return;
      this.showVerdict();
      if (hidden && this.cases.call[row] != null) this.reveal(key);
      else if (found.ok && content.action !== "undo" && $("#advance").checked) this.step(1);
    } catch { toast("The server does not answer; the verdict was not taken."); } finally { this.giving = false; }
  }

  async reveal(key) {
    this.showCall();
    try { this.heat = await getHeat(key); } catch (error) { this.showProblem(error.message); return; }
    this.showProblem(null);
    this.fillLayers(null);
    if (!this.viewer) return;
    const area = place(this.heat);
    this.viewer.addOverlay({ element: this.canvas, location: this.rectangle(area.x, area.y, area.width, area.height) });
    this.showHeat();
  }

  step(by) { const next = this.hooks.neighbor(this.row, by); if (next != null) this.hooks.open(next); }

  // --- the heatmap

  fillLayers(wanted) {
    if (!this.heat) return;
    this.showProblem(null);
    const { layers } = this.heat;
    // The finest classes as people read them; other levels by the name of their layer.
    const shown = new Map(Object.entries(this.heat.evidence).map(([index, name]) => [name, `evidence for ${this.overview.classes[index].shown}`]));
    $("#layer").replaceChildren(...layers.map((layer, index) => make("option", { value: index }, shown.get(layer.name) ?? layer.name)));
    // First the evidence for the call; without it attention.
    const attention = layers.reduce((last, layer, index) => (layer.kind === "rank" ? index : last), 0);
    const evidence = layers.findIndex((layer) => layer.name === this.heat.evidence[this.cases.call[this.row]]);
    const named = layers.findIndex((layer) => layer.name === wanted);
    const first = evidence >= 0 ? evidence : attention;
    this.followsCall = named < 0 || named === first;
    $("#layer").value = String(named >= 0 ? named : first);
    this.chooseLayer();
  }

  chooseLayer() {
    if (!this.heat) return;
    this.layer = this.heat.layers[Number($("#layer").value)];
    this.shading = shaded(this.layer, $("#ranks").checked);
    $("#ranks").parentElement.hidden = this.layer.kind !== "rank";
    explain($("#layer"), this.layer.kind === "sign" ? "evidence" : this.layer.kind === "rank" ? "attention" : "Where tiles were analyzed.");
    drawLegend($("#legend"), this.layer.kind);
    const [low, high] = this.shading.ends;
    $("#legend-numbers").replaceChildren(make("span", {}, low), make("span", {}, this.layer.kind === "rank" && $("#ranks").checked ? "colored by rank" : ""), make("span", {}, high));
    this.topTiles = this.layer.kind === "flat" ? [] : strongest(this.layer.values, STRIP);
    this.current = -1;
    $("#strip").replaceChildren(...this.topTiles.map((tile, index) => this.tileButton(tile, index)));
  }

  tileButton(tile, index) {
    const button = make("button", { title: `Tile ${index + 1}: ${this.layer.values[tile].toPrecision(3)}`, onclick: () => this.fly(index) });
    if (this.info?.has_picture) button.append(make("img", { src: `/patch/${this.cases.key[this.row]}/${tile}`, alt: "", loading: "lazy" }));
    else button.append(String(index + 1));
    return button;
  }

  showHeat() {
    $("#opacity-value").textContent = `${$("#opacity").value} %`;
    $("#threshold-value").textContent = `${$("#threshold").value} %`;
    if (!this.layer) return;
    this.canvas.style.opacity = $("#heat-on").checked ? Number($("#opacity").value) / 100 : 0;
    paint(this.canvas, this.heat, this.layer.kind, this.shading.shades, this.shading.strength, Number($("#threshold").value) / 100);
  }

  fly(index) {
    const tile = this.topTiles?.[index];
    if (tile == null || !this.viewer) return;
    this.current = index;
    [...$("#strip").children].forEach((button, place_) => button.classList.toggle("here", place_ === index));
    const { heat } = this;
    const [x, y, side] = [heat.x[tile], heat.y[tile], heat.side];
    this.viewer.removeOverlay(this.frame);
    this.viewer.addOverlay({ element: this.frame, location: this.rectangle(x, y, side, side) });
    this.viewer.viewport.fitBounds(this.rectangle(x - 1.5 * side, y - 1.5 * side, 4 * side, 4 * side));
  }

  // --- the viewport and its address

  scaleBar() {
    const viewport = this.viewer?.viewport;
    if (!viewport || !this.info) return;
    const zoom = viewport.viewportToImageZoom(viewport.getZoom(true));
    $("#scale").hidden = !this.info.mpp;
    if (this.info.mpp) {
      const perPixel = this.info.mpp / zoom;
      const length = BARS_UM.filter((um) => um / perPixel <= 160).pop() ?? BARS_UM[0];
      $("#scale i").style.width = `${length / perPixel}px`;
      $("#scale span").textContent = length < 1000 ? `${length} µm` : `${length / 1000} mm`;
    }
    const center = viewport.viewportToImageCoordinates(viewport.getCenter(true));
    $("#where").textContent = `x ${Math.round(center.x)}, y ${Math.round(center.y)} · ${zoom >= 1 ? zoom.toFixed(1) : zoom.toPrecision(2)}×`;
  }

  remember() {
    const viewport = this.viewer?.viewport;
    if (!viewport || this.row == null) return;
    const center = viewport.viewportToImageCoordinates(viewport.getCenter());
    const settings = { x: Math.round(center.x), y: Math.round(center.y), z: viewport.viewportToImageZoom(viewport.getZoom()).toPrecision(4), o: $("#opacity").value, t: $("#threshold").value };
    if (viewport.getRotation()) settings.r = viewport.getRotation();
    if (this.layer) settings.layer = this.layer.name;
    if (!$("#heat-on").checked) settings.off = 1;
    this.hooks.go(this.row, settings);
  }

  restore(settings) {
    const value = (name) => (settings.has(name) && Number.isFinite(Number(settings.get(name))) ? Number(settings.get(name)) : null);
    if (value("o") != null) $("#opacity").value = value("o");
    if (value("t") != null) $("#threshold").value = value("t");
    if (settings.has("x")) $("#heat-on").checked = !settings.has("off");
    const viewport = this.viewer?.viewport;
    if (!viewport || value("x") == null || value("y") == null || !value("z")) return;
    viewport.setRotation(value("r") ?? 0, true);
    viewport.zoomTo(viewport.imageToViewportZoom(value("z")), undefined, true);
    viewport.panTo(viewport.imageToViewportCoordinates(value("x"), value("y")), true);
  }

  tool(name) {
    const viewport = this.viewer?.viewport;
    if (!viewport) return;
    if (name === "in" || name === "out") viewport.zoomBy(name === "in" ? 1.6 : 1 / 1.6);
    if (name === "home") viewport.goHome();
    if (name === "rotate") viewport.setRotation((viewport.getRotation() + 90) % 360);
    if (name === "full") { if (document.fullscreenElement) document.exitFullscreen(); else $("#slide").requestFullscreen(); }
    viewport.applyConstraints();
  }

  onKey(key) {
    const call = this.cases.call[this.row];
    const one = /^[1-9]$/.test(key) ? this.overview.classes[Number(key) - 1] : null;
    if (one) this.pick(one.name);
    else if (key === "Enter" && this.marked.size) this.readMarked();
    else if (key === "a" && call != null) this.agree();
    else if (key === "d") this.give({ action: "defer" });
    else if (key === "u") this.give({ action: "undo" });
    else if (key === "h") { $("#heat-on").checked = !$("#heat-on").checked; this.showHeat(); this.remember(); }
    else if (key === "[" || key === "]") { $("#opacity").value = Number($("#opacity").value) + (key === "]" ? 10 : -10); this.showHeat(); this.remember(); }
    else if (key === "n" || key === "p") this.fly(Math.max(0, Math.min((this.topTiles?.length ?? 1) - 1, this.current + (key === "n" ? 1 : -1))));
    else if (key === "r") this.regions.toggle();
    else if (key === "0") this.tool("home");
    else if (key === "f") this.tool("full");
    else if (key === "+" || key === "-") this.tool(key === "+" ? "in" : "out");
    else return false;
    return true;
  }
}
