// Small pieces that every view uses: elements, numbers, colors, messages.

export const $ = (selector) => document.querySelector(selector);

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

let hiding;
export function toast(text) {
  const box = $("#toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, 4500);
}
