// The handle on the curve: every number below it follows from the exact path of every slide.
"use strict";
(() => {
  const source = document.getElementById("live-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const SHOWN = 100; // rows of a list at a time
  const AT_ONCE = 2000; // slides whose lists follow every movement
  const by = (id) => document.getElementById(id);
  // As Python rounds: exact halves go to the even digit, so that page and command line print the same.
  function fixed(value, digits) {
    const text = value.toFixed(digits), half = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
    return half && Number(text[text.length - 1]) % 2 ? (Number(text) - Math.sign(value) * 10 ** -digits).toFixed(digits) : text;
  }
  const percent = (part, whole) => (whole ? fixed(100 * (part / whole), 1) : "0.0") + " %";
  const unbroken = (text) => text.replaceAll(" %", "\u00a0%"); // no line break before the sign
  // A count, or a mean of counts with one digit.
  const number = (count) => (Math.abs(count - Math.round(count)) < 1e-6 ? String(Math.round(count)) : fixed(count, 1));
  const make = (tag, text, css) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (css) element.className = css;
    return element;
  };

  // -- numbers -------------------------------------------------------------------------------------------------------
  function unpack(text, kind) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    return new kind(bytes.buffer);
  }
  // Orders of urgency; models are mostly under the same.
  data.orders.forEach((order, number) => {
    const outranks = (a, b) => order.ranks[a] > order.ranks[b], size = order.classes.length, many = order.names.length;
    // By index or by steps of urgency, at least 1; P is the penalty of a miss.
    const gravity = (t, r) => 1 + Math.max(t === r ? 0 : 1, Math.abs(order.places[t] - order.places[r])) + (outranks(t, r) ? data.penalty : 0);
    // Counts of one decision are a row: false alarms, right, missed by true class, and the matrix of classes or groups.
    Object.assign(order, { number, outranks, gravity, size, many, width: 2 + size + many * many });
  });
  // A part of the page that every order has of its own.
  const part = (name, order) => by(order.number ? `${name}-${order.number}` : name);
  function summary(row, all) {
    const end = 2 + all.length, low = row.subarray(2, end), add = (sum, count) => sum + count;
    return { n: all.reduce(add, 0), missed: low.reduce(add, 0), alarms: row[0], right: row[1], low, all, matrix: row.subarray(end) };
  }
  // Counted by rows or, where they weigh differently, by weight; one weight for all is multiplied once.
  function count(own, calls) {
    const { outranks, size, many, groups, width } = own.order, row = new Float64Array(width), each = typeof own.weight !== "number";
    for (let slide = 0; slide < calls.length; slide++) {
      const t = own.target[slide], r = calls[slide], weight = each ? own.weight[slide] : 1;
      if (outranks(t, r)) row[2 + t] += weight;
      else if (outranks(r, t)) row[0] += weight;
      else if (t === r) row[1] += weight;
      if (many) row[2 + size + groups[t] * many + groups[r]] += weight;
    }
    return summary(each ? row : row.map((value) => value * own.weight), own.all);
  }
  function byClass(own) {
    const all = new Float64Array(own.order.size), each = typeof own.weight !== "number";
    own.target.forEach((t, slide) => (all[t] += each ? own.weight[slide] : 1));
    return each ? all : all.map((value) => value * own.weight);
  }

  // A model as the page knows it: points at which any call changes, and the counts at each.
  function open(model, number) {
    const order = data.orders[model.order], { width, outranks } = order;
    const own = { ...model, number, order, slides: null, kappa: null };
    if (model.counts) { // as decided, then at every stop
      const rows = unpack(model.counts, model.weighted ? Float64Array : Uint32Array), all = Float64Array.from(model.all);
      own.decided = summary(rows.subarray(0, width), all);
      if (!model.stops) return own;
      own.kappa = unpack(model.stops, Float64Array);
      own.at = (place) => summary(rows.subarray((place + 1) * width, (place + 2) * width), all);
      const stops = Array.from(own.kappa, (_, place) => own.at(place));
      own.missed = Float64Array.from(stops, (counts) => counts.missed);
      own.alarms = Float64Array.from(stops, (counts) => counts.alarms);
      return own;
    }
    const first = data.models[0];
    own.slides = model.slides || first.slides;
    own.patients = model.slides ? model.patients : first.patients;
    own.pages = model.pages || first.pages;
    own.pictures = model.pictures || first.pictures;
    own.weight = typeof model.weight === "number" ? model.weight : unpack(model.weight, Float64Array);
    own.target = unpack(model.target, Uint16Array);
    own.calls = unpack(model.decided, Uint16Array);
    own.probability = model.probability && unpack(model.probability, Uint16Array);
    own.all = byClass(own);
    own.decided = count(own, own.calls);
    if (!model.path) return own;
    const changes = unpack(model.path.count, Uint16Array);
    const call = unpack(model.path.call, Uint16Array);
    const kappa = unpack(model.path.kappa, Float64Array);
    const start = new Uint32Array(changes.length + 1);
    changes.forEach((some, row) => (start[row + 1] = start[row] + some));
    own.callsAt = (value) => {
      const calls = new Uint16Array(changes.length);
      for (let row = 0; row < calls.length; row++) {
        let place = start[row];
        while (place + 1 < start[row + 1] && kappa[place + 1] <= value) place++;
        calls[row] = call[place];
      }
      return calls;
    };
    // The curve: what changes at each breakpoint, added up in the order of κ.
    const steps = [], each = typeof own.weight !== "number", unit = each ? 1 : own.weight;
    let missed = 0, alarms = 0;
    for (let row = 0; row < changes.length; row++) {
      const t = own.target[row], w = each ? own.weight[row] : 1;
      for (let place = start[row]; place < start[row + 1]; place++) {
        const m = w * outranks(t, call[place]), a = w * outranks(call[place], t);
        if (place === start[row]) { missed += m; alarms += a; continue; }
        steps.push([kappa[place], m - w * outranks(t, call[place - 1]), a - w * outranks(call[place - 1], t)]);
      }
    }
    steps.sort((one, two) => one[0] - two[0]);
    const kappas = [0], misses = [missed], raised = [alarms];
    for (const [value, m, a] of steps) {
      missed += m; alarms += a;
      if (value === kappas[kappas.length - 1]) { misses.pop(); raised.pop(); } else kappas.push(value);
      misses.push(missed); raised.push(alarms);
    }
    own.kappa = Float64Array.from(kappas);
    own.missed = Float64Array.from(misses, (count) => count * unit);
    own.alarms = Float64Array.from(raised, (count) => count * unit);
    return own;
  }

  // The last place whose value is at most `value`; places ascend.
  function lastAtMost(values, value) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  }
  // All κ from a to b make the same calls, so the shortest number among them is shown and copied.
  function roundest(a, b) {
    if (a === Infinity) return a;
    if (a <= 1 && 1 < b) return 1;
    for (let digits = 1; digits < 17; digits++) {
      let number = Number(a.toPrecision(digits));
      if (number < a) number = Number((number + 10 ** (Math.floor(Math.log10(a)) - digits + 1)).toPrecision(digits));
      if (a <= number && number < b) return number;
    }
    return a;
  }
  const kappaAt = (model, place) => {
    const next = place + 1 < model.kappa.length ? model.kappa[place + 1] : Infinity;
    return roundest(model.kappa[place], next);
  };
  const written = (kappa) => (kappa === Infinity ? "inf" : String(kappa));
  const shown = (kappa) => (kappa === Infinity ? "∞" : String(Number(kappa.toPrecision(4))));

  // -- state ---------------------------------------------------------------------------------------------------------
  let models = data.models.map(open);
  // κ of every model; null is the call as decided.
  const state = { model: 0, kappa: models.map(() => null), cell: null, more: SHOWN };
  const placeOf = (model) => lastAtMost(model.kappa, state.kappa[model.number]);
  // The calls and their counts at a model's κ, computed once for all that is drawn of them.
  function decisionOf(model) {
    const kappa = state.kappa[model.number];
    if (kappa === null) return { calls: model.calls, counts: model.decided };
    if (model.last?.kappa !== kappa) {
      const calls = model.slides && model.callsAt(kappa);
      model.last = { kappa, calls, counts: calls ? count(model, calls) : model.at(placeOf(model)) };
    }
    return model.last;
  }
  const countsOf = (model) => decisionOf(model).counts;

  function choose(kappa) {
    const model = models[state.model];
    state.kappa[model.number] = kappa;
    const alarms = countsOf(model).alarms / model.decided.n;
    for (const other of models) {
      if (other === model || !other.kappa) continue;
      if (kappa === null) state.kappa[other.number] = null;
      else if (by("matched")?.checked) {
        // The largest κ that raises no more false alarms.
        const place = lastAtMost(other.alarms, alarms * other.decided.n + 1e-6);
        state.kappa[other.number] = kappaAt(other, Math.max(0, place));
      } else state.kappa[other.number] = other.slides ? kappa : other.kappa[lastAtMost(other.kappa, kappa)];
    }
    draw();
  }
  const choosePlace = (place) => choose(kappaAt(models[state.model], place));

  // -- the curve and its handle --------------------------------------------------------------------------------------
  const plane = JSON.parse(by("live-curve").dataset.plane);
  const svg = by("live-curve").querySelector("svg");
  const handle = document.createElementNS("http://www.w3.org/2000/svg", "g");
  const others = document.createElementNS("http://www.w3.org/2000/svg", "g");
  for (const [radius, css] of [[24, "grip"], [9, "knob"]]) {
    const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    circle.setAttribute("r", radius);
    circle.setAttribute("class", css);
    handle.append(circle);
  }
  svg.setAttribute("role", "group");
  handle.id = "handle";
  for (const [name, value] of [["role", "slider"], ["tabindex", "0"], ["aria-label", "Operating point on the curve"],
    ["aria-valuemin", "0"]]) handle.setAttribute(name, value);
  svg.append(others, handle);
  const put = (model) => {
    const counts = countsOf(model);
    const x = plane.left + ((counts.alarms / counts.n - plane.x[0]) / (plane.x[1] - plane.x[0])) * (plane.width - plane.left - plane.right);
    const y = plane.height - plane.bottom - ((counts.missed / counts.n - plane.y[0]) / (plane.y[1] - plane.y[0])) * (plane.height - plane.top - plane.bottom);
    return [x, y];
  };
  function follow(event) {
    const model = models[state.model], box = svg.getBoundingClientRect();
    if (!model.kappa) return;
    const x = ((event.clientX - box.left) / box.width) * plane.width, y = ((event.clientY - box.top) / box.height) * plane.height;
    const across = (plane.width - plane.left - plane.right) / (plane.x[1] - plane.x[0]) / model.decided.n;
    const up = (plane.height - plane.top - plane.bottom) / (plane.y[1] - plane.y[0]) / model.decided.n;
    let best = 0, least = Infinity;
    for (let place = 0; place < model.kappa.length; place++) {
      const dx = plane.left + model.alarms[place] * across - x, dy = plane.height - plane.bottom - model.missed[place] * up - y;
      const away = dx * dx + dy * dy;
      if (away < least) [best, least] = [place, away];
    }
    choosePlace(best);
  }
  let waiting = null, before = null;
  function later(event) { // one drawing per frame, however fast the pointer is
    if (!waiting) requestAnimationFrame(() => { if (waiting) follow(waiting); waiting = null; });
    waiting = event;
  }
  svg.addEventListener("pointerdown", (event) => {
    if (!models[state.model].kappa) return;
    before = [...state.kappa];
    svg.setPointerCapture(event.pointerId);
    follow(event);
    handle.focus({ preventScroll: true });
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) later(event); });
  // The browser scrolls with this finger: it meant the page, not the curve.
  svg.addEventListener("pointercancel", () => { waiting = null; state.kappa = before; draw(); });
  // Fingers that move the handle are ours: a browser takes their end for a fling, and the next tap only stops that. Up and
  // down beside the handle they scroll the page.
  let down = null;
  svg.addEventListener("touchstart", (event) => (down = event.touches[0]), { passive: true });
  svg.addEventListener("touchmove", (event) => {
    const now = event.touches[0], across = Math.abs(now.clientX - down.clientX) > Math.abs(now.clientY - down.clientY);
    if (event.cancelable && (across || handle.contains(event.target))) event.preventDefault();
  }, { passive: false });
  handle.addEventListener("keydown", (event) => {
    const model = models[state.model];
    if (!model.kappa) return;
    const now = state.kappa[model.number] === null ? lastAtMost(model.kappa, 1) : placeOf(model);
    const far = Math.max(1, Math.round(model.kappa.length / 20)), last = model.kappa.length - 1;
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: far, PageDown: -far, Home: -last, End: last };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choosePlace(Math.min(last, Math.max(0, now + moves[event.key])));
  });

  // -- drawing -------------------------------------------------------------------------------------------------------
  const slides = (count) => `${number(count)} ${data.noun}${number(count) === "1" ? "" : "s"}`;
  function sentence(model, counts) {
    const raised = number(counts.alarms);
    return `${model.name} misses urgency in ${number(counts.missed)} of ${slides(counts.n)} (${percent(counts.missed, counts.n)}) and raises ` +
      `${raised} false ${raised === "1" ? "alarm" : "alarms"} (${percent(counts.alarms, counts.n)})${model.mean_of > 1 ? `, the mean of ${model.mean_of} seeds` : ""}.`;
  }
  function worst(counts, order) {
    for (let t = order.size - 1; t > 0; t--) {
      const all = counts.all[t], low = counts.low[t];
      if (!all || order.ranks[t] === order.ranks[0]) continue;
      return `Of ${slides(all)} with ${order.classes[t]}, the most urgent class here, ${low === 0 ? "none is" : low === 1 ? "1 is" : number(low) + " are"} called less urgent.`;
    }
    return "";
  }
  function cost(counts, { ranks }) { // of every model at the κ of the chosen one, so that costs can be compared
    const kappa = state.kappa[state.model] ?? 1;
    if (kappa === Infinity) return "–";
    const mine = (counts.alarms + kappa * counts.missed) / counts.n;
    const constant = ranks.map((rank) => counts.all.reduce((sum, own, t) =>
      sum + own * (ranks[t] > rank ? kappa : ranks[t] < rank ? 1 : 0), 0) / counts.n);
    const best = Math.min(...constant);
    return fixed(100 * mine, 1) + (best > 0 ? ` (×${fixed(mine / best, 2)})` : "");
  }
  function bounds(kappa) { // whether they are met, by every order
    const several = data.needed.length > 1, short = data.needed.filter(([, least]) => kappa < Number(least));
    if (!short.length) return data.needed.length ? ` Meets the bounds${several ? " of every order" : ""}.` : "";
    const most = Math.max(...short.map(([, least]) => Number(least)));
    return ` Does not meet the bounds${several ? ` under ${short.map(([name]) => name).join(", ")}` : ""}: they need κ = ${shown(most)}.`;
  }

  function draw() {
    const model = models[state.model], counts = countsOf(model), kappa = state.kappa[model.number];
    by("live-sentence").textContent = unbroken(sentence(model, counts));
    by("live-worst").textContent = worst(counts, model.order);
    const [x, y] = put(model);
    handle.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
    handle.setAttribute("class", `handle s${model.number % 6}`);
    if (model.kappa) {
      const place = lastAtMost(model.kappa, kappa ?? 1);
      handle.setAttribute("aria-valuemax", model.kappa.length - 1);
      handle.setAttribute("aria-valuenow", Math.max(0, place));
      handle.setAttribute("aria-valuetext", (kappa === null ? "as decided" : `kappa ${shown(kappa)}`) +
        `: ${percent(counts.missed, counts.n)} missed, ${percent(counts.alarms, counts.n)} false alarms`);
    }
    handle.classList.toggle("fixed", !model.kappa);
    others.replaceChildren(...models.filter((other) => other !== model && other.kappa).map((other) => {
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "circle"), [ox, oy] = put(other);
      for (const [name, value] of [["r", 6], ["cx", ox.toFixed(2)], ["cy", oy.toFixed(2)], ["class", `also s${other.number % 6}`]]) mark.setAttribute(name, value);
      return mark;
    }));
    const field = by("kappa");
    if (document.activeElement !== field) field.value = kappa === null ? "" : written(kappa);
    field.disabled = by("reset").disabled = !model.kappa;
    by("live-state").textContent = !model.kappa ? "This model has no probabilities, so it is one point."
      : kappa === null ? `As decided${model.decided_by ? ` (${model.decided_by})` : ""}.`
        : (kappa === Infinity ? "Everything is called as urgent as possible." : `A missed urgency counts as much as ${shown(kappa)} false ${kappa === 1 ? "alarm" : "alarms"}.`) +
          bounds(kappa);
    for (const other of models) {
      const row = by("live-models").rows[other.number + 1], own = countsOf(other), value = state.kappa[other.number];
      const both = (count) => `${number(count)} (${percent(count, own.n)})`;
      const cells = [value === null ? "as decided" : shown(value), both(own.missed), both(own.alarms), percent(own.right, own.n), cost(own, other.order)];
      cells.forEach((text, column) => (row.cells[column + 1].textContent = unbroken(text)));
    }
    const { order } = model;
    if (data.orders.length > 1) for (const one of data.orders) part("live-order", one).hidden = one !== order;
    drawMatrix(counts, order);
    drawMissed(counts, order, part("live-missed", order), order.ranks.map((_, t) => t), order.classes);
    if (part("live-groups", order)) drawMissed(counts, order, part("live-groups", order), order.groups, order.names);
    drawCopies(model, kappa);
    drawLists(model);
  }
  function drawMatrix(counts, order) { // classes, or groups where classes are too many
    const table = part("live-matrix", order), cells = counts.matrix, { many, groups, names } = order;
    if (!table) return;
    for (let t = 0; t < many; t++) {
      const all = cells.subarray(t * many, (t + 1) * many).reduce((sum, count) => sum + count, 0);
      for (let r = 0; r < many; r++) {
        const cell = table.rows[t + 1].cells[r + 1], count = cells[t * many + r];
        let button = cell.firstElementChild;
        if (!button) {
          button = make("button");
          button.type = "button";
          button.addEventListener("click", () => pick((true_, call) => groups[true_] === t && groups[call] === r, `True ${names[t]}, called ${names[r]}`, button));
          cell.replaceChildren(button);
        }
        button.textContent = number(count);
        button.setAttribute("aria-label", `true ${names[t]}, called ${names[r]}: ${slides(count)}`);
        button.title = `${percent(count, all)} of the true class`;
        cell.className = cell.className.replace(/ ?q\d+| ?none/g, "") + (count ? ` q${Math.round(10 * Math.sqrt(count / all))}` : " none");
      }
    }
  }
  function drawMissed(counts, order, table, groups, names) {
    const low = new Float64Array(names.length), all = new Float64Array(names.length);
    groups.forEach((group, t) => {
      all[group] += counts.all[t];
      low[group] += counts.low[t];
    });
    for (const row of table.tBodies[0].rows) {
      const t = Number(row.dataset.class);
      row.cells[2].textContent = `${number(low[t])} of ${number(all[t])}`;
      row.querySelector("rect.severe").setAttribute("width", `${all[t] ? (100 * low[t]) / all[t] : 0}%`);
      const name = row.cells[0];
      if (!name.firstElementChild) {
        const button = make("button", name.textContent, "plain");
        button.type = "button";
        button.addEventListener("click", () => pick((true_, call) => groups[true_] === t && order.outranks(true_, call), `Missed: ${names[t]}`, button));
        row.querySelector("svg").addEventListener("click", () => button.click());
        name.replaceChildren(button);
      }
    }
  }
  function drawCopies(model, kappa) {
    by("live-apply").hidden = kappa === null;
    if (kappa === null) return;
    const lines = { "copy-command": model.shell && `${model.shell} ${data.rule}${written(kappa)}`,
      "copy-python": model.python.replace("{}", `"kappa=${written(kappa)}"`) };
    for (const [id, text] of Object.entries(lines)) {
      by(id).hidden = !text;
      by(id).querySelector("code").textContent = text;
    }
  }

  // -- slides --------------------------------------------------------------------------------------------------------
  const kinds = ({ outranks }) => ({
    missed: (t, now) => outranks(t, now),
    "newly-missed": (t, now, file) => outranks(t, now) && !outranks(t, file),
    "newly-caught": (t, now, file) => !outranks(t, now) && outranks(t, file),
    "new-alarms": (t, now, file) => outranks(now, t) && !outranks(file, t),
  });
  function rowsWhere(model, calls, test) {
    const rows = [];
    for (let row = 0; row < calls.length; row++) if (test(model.target[row], calls[row], model.calls[row])) rows.push(row);
    return rows;
  }
  // The gravest first, of many rows only as many as are shown: all rows of a pair (true, called) are equally grave.
  function gravest(model, calls, rows, most) {
    const { size, gravity } = model.order;
    const pair = (row) => model.target[row] * size + calls[row], weight = (row) => gravity(model.target[row], calls[row]);
    const order = (one, two) => weight(two) - weight(one) || model.target[two] - model.target[one] || one - two;
    if (rows.length > 4 * most) {
      const seen = new Uint32Array(size * size);
      rows = rows.filter((row) => seen[pair(row)]++ < most);
    }
    return rows.sort(order).slice(0, most);
  }
  function fill(table, model, calls, rows) {
    const body = table.tBodies[0], { classes } = model.order;
    body.replaceChildren(...gravest(model, calls, rows, state.more).map((row) => {
      const line = make("tr"), id = model.slides[row], name = make("td");
      // A name leads to the viewer, a picture to the page of the heatmap; without one, the name does.
      const page = model.pages[id], viewer = model.view && `http://127.0.0.1:${data.port}/open#/slide/${data.keys[id]}${state.kappa[model.number] === null ? "" : `?kappa=${state.kappa[model.number]}`}`;
      const linked = (content, address) => Object.assign(make("a", content), { href: address, target: "_blank", rel: "noopener" });
      if (model.pictures[id]) {
        const picture = make("img", undefined, "thumb"), link = linked("", page);
        Object.assign(picture, { src: model.pictures[id], alt: `Heatmap of ${id}`, loading: "lazy" });
        link.append(picture);
        name.append(link);
      }
      name.append(viewer ? linked(id, viewer) : page ? linked(id, page) : id);
      if (viewer && page && !model.pictures[id]) name.append(" ", linked("heatmap", page));
      if (model.networks) name.append(make("small", model.networks[row]));
      const values = { patient: model.patients ? model.patients[row] : "–", true: classes[model.target[row]], called: classes[calls[row]],
        "as decided": classes[model.calls[row]], "probability of the true class": model.probability ? fixed(model.probability[row] / 1000, 3) : "–" };
      const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
      const cells = heads.map((head, column) => (column ? make("td", values[head]) : name));
      cells.forEach((cell, column) => { cell.dataset.label = heads[column]; if (column < heads.length - 1) cell.className = "text"; });
      line.append(...cells);
      return line;
    }));
    const rest = rows.length - state.more;
    const more = table.parentElement.querySelector("button.more");
    more.hidden = rest <= 0;
    more.textContent = `Show ${Math.min(rest, 1000)} more of ${rows.length}`;
    table.hidden = !rows.length;
  }
  // While the handle moves, rows of many slides wait until it rests; numbers never do.
  let resting = 0;
  function whenResting(atOnce, action) {
    clearTimeout(resting);
    if (atOnce) action(); else resting = setTimeout(action, 80);
  }
  function drawLists(model, atOnce = false) {
    const away = !model.slides;
    by("live-load").hidden = !away || !data.file;
    by("live-lists").hidden = away;
    by("live-view").hidden = away || !model.view;
    if (away) return;
    by("copy-view").querySelector("code").textContent = model.view;
    const { calls } = decisionOf(model);
    const filling = [];
    for (const [kind, test] of Object.entries(kinds(model.order))) {
      const rows = rowsWhere(model, calls, test), list = by(kind);
      list.querySelector(".count").textContent = rows.length + (model.networks ? ` in ${model.mean_of} seeds` : "");
      if (list.open) filling.push([list.querySelector("table"), rows]);
    }
    if (state.cell) {
      const rows = rowsWhere(model, calls, state.cell.test);
      by("picked-name").textContent = `${state.cell.name}: ${slides(rows.length)}`;
      filling.push([by("picked").querySelector("table"), rows]);
    }
    whenResting(atOnce || model.slides.length <= AT_ONCE, () => filling.forEach(([table, rows]) => fill(table, model, calls, rows)));
  }
  function pick(test, name, from) {
    state.cell = { test, name };
    state.more = SHOWN;
    by("picked").hidden = false;
    document.querySelectorAll("[aria-pressed=true]").forEach((button) => button.removeAttribute("aria-pressed"));
    from.setAttribute("aria-pressed", "true");
    if (models[state.model].slides) drawLists(models[state.model]);
    else load();
    by("picked").scrollIntoView({ block: "nearest" });
  }
  by("picked-close").addEventListener("click", () => {
    state.cell = null;
    by("picked").hidden = true;
    const from = document.querySelector("[aria-pressed=true]");
    from?.removeAttribute("aria-pressed");
    from?.focus();
  });
  function load() { // of a large audit the slides are beside the page
    if (by("slides-file") || !data.file) return;
    window.pamsSlides = (more) => {
      Object.assign(data, more);
      models = data.models.map(open);
      draw();
    };
    const script = make("script");
    script.id = "slides-file";
    script.src = data.file;
    script.onerror = () => { by("live-load").querySelector("p").textContent = `${data.file} is not beside this page; write the audit again with --out.`; script.remove(); };
    document.head.append(script);
  }

  // -- wiring --------------------------------------------------------------------------------------------------------
  by("kappa").addEventListener("input", () => {
    const text = by("kappa").value.trim().toLowerCase();
    const value = text === "inf" || text === "∞" ? Infinity : Number(text.replace(",", "."));
    const good = text !== "" && value >= 0;
    by("kappa").setAttribute("aria-invalid", String(!good && text !== ""));
    if (!good) return;
    const model = models[state.model];
    choose(model.slides ? value : model.kappa[lastAtMost(model.kappa, value)]);
  });
  by("kappa").addEventListener("blur", draw);
  by("reset").addEventListener("click", () => choose(null));
  by("matched")?.addEventListener("change", () => choose(state.kappa[state.model]));
  document.querySelectorAll("input[name=live-model]").forEach((radio) => radio.addEventListener("change", () => {
    state.model = Number(radio.value);
    state.cell = null;
    by("picked").hidden = true;
    draw();
  }));
  document.querySelectorAll("#live-lists details").forEach((list) => list.addEventListener("toggle", () => drawLists(models[state.model])));
  document.querySelectorAll("button.more").forEach((button) => button.addEventListener("click", () => { state.more += 1000; drawLists(models[state.model]); }));
  by("live-load").querySelector("button").addEventListener("click", load);
  document.querySelectorAll(".copy").forEach((line) => line.querySelector("button").addEventListener("click", async () => {
    const code = line.querySelector("code");
    let copied = true;
    try { await navigator.clipboard.writeText(code.textContent); } catch {
      getSelection().selectAllChildren(code); // pages on disk may not be allowed the clipboard
      copied = document.execCommand("copy");
    }
    line.querySelector("[role=status]").textContent = copied ? "copied" : "press Ctrl+C";
  }));
  // Paper cannot be opened: everything is, and lists are filled at once, for the picture is taken right after this.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    unfolded.forEach((one) => (one.open = true));
    drawLists(models[state.model], true);
  });
  addEventListener("afterprint", () => unfolded.forEach((one) => (one.open = false)));
  document.querySelectorAll(".live-only").forEach((element) => (element.hidden = false));
  document.documentElement.classList.add("live");
  draw();
})();
