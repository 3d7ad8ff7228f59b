// A layer of values as a canvas with one pixel per tile, laid over the slide by the viewer.

import { ramp } from "./page.js";

const INFERNO = [[0, 0, 4], [22, 11, 57], [66, 10, 104], [106, 23, 110], [147, 38, 103], [188, 55, 84], [221, 81, 58], [243, 120, 25], [252, 165, 10], [246, 215, 70], [252, 255, 164]];
const COOLWARM = [[59, 76, 192], [98, 130, 234], [141, 176, 254], [184, 208, 249], [221, 221, 221], [245, 196, 173], [244, 154, 123], [222, 96, 77], [180, 4, 38]];
const FLAT = [[0, 150, 136], [0, 150, 136]];
const LONGEST = 4096;

const table = (stops) => Uint8ClampedArray.from({ length: 256 * 3 }, (_, place) => ramp(stops, Math.floor(place / 3) / 255)[place % 3]);
const COLORS = { rank: table(INFERNO), sign: table(COOLWARM), flat: table(FLAT), probability: table(INFERNO) };

// Shares of smaller values, as on the server: attention spans orders of magnitude, ranks show all of it.
export function ranked(values) {
  const order = Float64Array.from(values).sort();
  const shares = new Float32Array(values.length);
  const below = new Map();
  order.forEach((value, place) => { if (!below.has(value)) below.set(value, place); });
  const most = Math.max(1, values.length - 1);
  values.forEach((value, index) => { shares[index] = values.length === 1 ? 1 : below.get(value) / most; });
  return shares;
}

// Values as shades in [0, 1], how far each is from saying nothing, and what the ends of the legend mean.
export function shaded(layer, byRank) {
  const { values, kind } = layer;
  if (kind === "flat") return { shades: Float32Array.from(values, () => 1), strength: null, ends: ["", "tiles that were analyzed"] };
  if (kind === "probability") return { shades: values, strength: values, ends: ["probability 0", "1"] };
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  if (kind === "sign") {
    const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
    const shades = Float32Array.from(values, (value) => 0.5 + value / (2 * reach));
    return { shades, strength: Float32Array.from(values, (value) => Math.abs(value) / reach), ends: [`against ${tell(-reach)}`, `for ${tell(reach)}`] };
  }
  const shades = byRank ? ranked(values) : Float32Array.from(values, (value) => (high > low ? (value - low) / (high - low) : 1));
  return { shades, strength: shades, ends: [tell(low), tell(high)] };
}

const tell = (value) => (value === 0 ? "0" : Math.abs(value) >= 0.01 && Math.abs(value) < 1000 ? value.toPrecision(3) : value.toExponential(1));

// Where the canvas lies on the slide, in level-0 pixels.
export function place(heat) {
  if (heat.grid) {
    return { x: heat.grid.x, y: heat.grid.y, width: heat.grid.columns * heat.side, height: heat.grid.rows * heat.side };
  }
  let left = Infinity; let top = Infinity; let right = 0; let bottom = 0;
  for (let tile = 0; tile < heat.n; tile += 1) {
    left = Math.min(left, heat.x[tile]); top = Math.min(top, heat.y[tile]);
    right = Math.max(right, heat.x[tile] + heat.side); bottom = Math.max(bottom, heat.y[tile] + heat.side);
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
}

// Evidence that says little is nearly clear: the tissue shows, and the few tiles that decide stand out.
const clear = (strength) => Math.round(255 * Math.min(1, 2 * strength));

export function paint(canvas, heat, kind, shades, strength, threshold) {
  const colors = COLORS[kind];
  const area = place(heat);
  const shown = (tile) => Number.isFinite(shades[tile]) && (strength === null || strength[tile] >= threshold);
  if (heat.grid) {
    canvas.width = heat.grid.columns;
    canvas.height = heat.grid.rows;
    const picture = new ImageData(canvas.width, canvas.height);
    for (let tile = 0; tile < heat.n; tile += 1) {
      if (!shown(tile)) continue;
      const column = Math.round((heat.x[tile] - area.x) / heat.side);
      const row = Math.round((heat.y[tile] - area.y) / heat.side);
      const color = 3 * Math.round(255 * shades[tile]);
      picture.data.set([colors[color], colors[color + 1], colors[color + 2], kind === "sign" ? clear(strength[tile]) : 255], 4 * (row * canvas.width + column));
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return;
  }
  // tiles off a grid or overlapping: rectangles on a canvas of bounded size, the stronger ones on top
  const scale = Math.min(LONGEST / Math.max(area.width, area.height), 8 / heat.side);
  canvas.width = Math.max(1, Math.ceil(area.width * scale));
  canvas.height = Math.max(1, Math.ceil(area.height * scale));
  const context = canvas.getContext("2d");
  const order = [...shades.keys()].filter(shown).sort((a, b) => (strength ? strength[a] - strength[b] : 0));
  for (const tile of order) {
    const color = 3 * Math.round(255 * shades[tile]);
    const alpha = kind === "sign" ? clear(strength[tile]) / 255 : 1;
    context.fillStyle = `rgb(${colors[color]} ${colors[color + 1]} ${colors[color + 2]} / ${alpha})`;
    context.fillRect((heat.x[tile] - area.x) * scale, (heat.y[tile] - area.y) * scale, Math.max(1, heat.side * scale), Math.max(1, heat.side * scale));
  }
}

export function drawLegend(canvas, kind) {
  const context = canvas.getContext("2d");
  const picture = new ImageData(canvas.width, canvas.height);
  for (let x = 0; x < canvas.width; x += 1) {
    const color = 3 * Math.round((255 * x) / (canvas.width - 1));
    for (let y = 0; y < canvas.height; y += 1) picture.data.set([COLORS[kind][color], COLORS[kind][color + 1], COLORS[kind][color + 2], 255], 4 * (y * canvas.width + x));
  }
  context.putImageData(picture, 0, 0);
}

export function strongest(values, most) {
  return [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, most);
}
