// Regions that the reader marks: drag a rectangle, give it a class, export it for QuPath.

import { post } from "./api.js";
import { $, make, rankColor, toast } from "./page.js";

export class Regions {
  constructor(view) {
    this.view = view;
    this.frames = [];
    $("#region-class").append(...view.overview.classes.map((one) => make("option", { value: one.name }, one.shown)));
    $("#region-class").value = view.overview.classes.at(-1).name;
    $("#mark").addEventListener("click", () => this.toggle());
  }

  toggle() { if (this.tracker) this.stop(); else this.start(); }

  start() {
    const { viewer } = this.view;
    if (!viewer) return;
    viewer.setMouseNavEnabled(false);
    $("#stage").classList.add("marking");
    $("#mark").textContent = "Drag on the slide …";
    const point = (event) => viewer.viewport.pointFromPixel(event.position);
    this.tracker = new OpenSeadragon.MouseTracker({
      element: viewer.canvas,
      pressHandler: (event) => { this.from = point(event); this.draft = make("div", { class: "tile-frame" }); },
      dragHandler: (event) => this.stretch(point(event)),
      releaseHandler: (event) => this.finish(point(event)),
    });
  }

  stop() {
    this.tracker?.destroy();
    this.tracker = null;
    this.from = null;
    this.view.viewer?.setMouseNavEnabled(true);
    $("#stage").classList.remove("marking");
    $("#mark").replaceChildren("Mark ", make("kbd", {}, "r"));
  }

  box(to) {
    const from = this.from;
    return new OpenSeadragon.Rect(Math.min(from.x, to.x), Math.min(from.y, to.y), Math.abs(to.x - from.x), Math.abs(to.y - from.y));
  }

  stretch(to) {
    if (!this.from) return;
    this.view.viewer.removeOverlay(this.draft);
    this.view.viewer.addOverlay({ element: this.draft, location: this.box(to) });
  }

  async finish(to) {
    if (!this.from) return;
    const area = this.view.viewer.viewport.viewportToImageRectangle(this.box(to));
    this.view.viewer.removeOverlay(this.draft);
    this.stop();
    if (area.width < 4 || area.height < 4) return;
    await this.send({ action: "region", box: [area.x, area.y, area.width, area.height], class: $("#region-class").value });
  }

  async send(content) {
    const found = await post(`/api/region/${this.view.cases.key[this.view.row]}`, content);
    if (!found.ok) { toast(found.problem ?? "The region was not taken."); return; }
    this.view.info.regions = found.regions;
    this.show();
  }

  show() {
    const { viewer, info, overview, top } = this.view;
    for (const frame of this.frames) viewer.removeOverlay(frame);
    this.frames = info.regions.map((region) => {
      const one = overview.classes.find((item) => item.name === region.class);
      const color = rankColor(one.rank, top);
      const frame = make("div", { class: "region-frame", style: { borderColor: color } }, make("span", { style: { background: color } }, one.shown));
      viewer.addOverlay({ element: frame, location: this.view.rectangle(...region.box) });
      return frame;
    });
    $("#region-list").replaceChildren(...info.regions.map((region) => {
      const shown = overview.classes.find((item) => item.name === region.class).shown;
      const go = make("a", { href: "#", onclick: (event) => { event.preventDefault(); viewer.viewport.fitBounds(this.view.rectangle(...region.box)); } }, shown);
      return make("li", {}, go, make("button", { class: "quiet", title: "Remove", onclick: () => this.send({ action: "unmark", region: region.region }) }, "×"));
    }));
  }
}
