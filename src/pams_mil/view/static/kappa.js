// The operating point: calls follow κ, how many false alarms a missed urgency is worth, along each case's exact path.

import { $ } from "./page.js";

const STEPS = 100; // of the slider, per power of ten

// The call at κ: the last class whose threshold is passed. No finite κ passes null.
const lastPassed = (reach, kappa) => reach.filter((threshold) => threshold != null && threshold <= kappa).length - 1;

// What the other orders of urgency call a case at κ, at 1 where calls are as decided: [name of the order, class].
export function otherCalls(overview, cases, row) {
  const reach = cases.other_reach?.[row];
  return reach ? overview.orders.map((order, place) => [order.name, order.classes[lastPassed(reach[place], cases.kappa ?? 1)]]) : [];
}

export class OperatingPoint {
  constructor(cases, changed) {
    Object.assign(this, { cases, changed, kappa: null });
    this.decided = cases.decided = [...cases.call];
    this.agreed = cases.agreement && [...cases.agreement];
    $("#kappa-box").hidden = !cases.reach;
    $("#kappa").addEventListener("change", () => this.set($("#kappa").value));
    $("#kappa-slider").addEventListener("input", () => this.set(10 ** (Number($("#kappa-slider").value) / STEPS)));
    $("#kappa-less").addEventListener("click", () => this.step(-1));
    $("#kappa-more").addEventListener("click", () => this.step(1));
    $("#kappa-reset").addEventListener("click", () => this.set(null));
    this.show();
  }

  callAt(row, kappa) {
    const reach = this.cases.reach?.[row];
    return kappa == null || !reach ? this.decided[row] : lastPassed(reach, kappa);
  }

  // The share of the models whose own call at κ is the call of all; null where the models' paths are not known.
  agreementAt(row, kappa) {
    const members = this.cases.members?.[row];
    if (kappa == null) return this.agreed[row];
    if (!members) return null;
    const same = members.filter((path) => {
      let call = path[1];
      for (let place = 2; place < path.length && path[place] != null && path[place] <= kappa; place += 2) call = path[place + 1];
      return call === this.cases.call[row];
    });
    return same.length / members.length;
  }

  // A number, its text, or null for the calls as decided; anything else changes nothing.
  set(value, quiet = false) {
    const number = value == null || value === "" ? null : Number(String(value).trim().replace(",", "."));
    if (number != null && !(Number.isFinite(number) && number >= 0 && number <= 1e9)) { this.show(); return; }
    if (number === this.kappa || !this.cases.reach) { this.show(); return; }
    this.kappa = this.cases.kappa = number;
    for (let row = 0; row < this.decided.length; row += 1) if (this.decided[row] != null) this.follow(row);
    this.show();
    if (!quiet) this.changed();
  }

  follow(row) {
    this.cases.call[row] = this.callAt(row, this.kappa);
    if (this.agreed) this.cases.agreement[row] = this.agreementAt(row, this.kappa);
  }

  // A blind reader has read the case: its call is known from now on.
  reveal(row) {
    this.decided[row] = this.cases.call[row];
    if (this.agreed) this.agreed[row] = this.cases.agreement[row];
    this.follow(row);
    this.show();
  }

  // To the next κ, up or down, at which some call changes.
  step(sign) {
    const from = this.kappa ?? 1;
    let next = sign > 0 ? Infinity : -Infinity;
    for (const reach of this.cases.reach ?? []) {
      for (const threshold of reach ?? []) {
        if (threshold == null) continue;
        if (sign > 0 ? threshold > from && threshold < next : threshold < from && threshold > next) next = threshold;
      }
    }
    if (Number.isFinite(next)) this.set(next);
  }

  show() {
    const { kappa, decided, cases } = this;
    $("#kappa").value = kappa == null ? "" : String(Number(kappa.toPrecision(4)));
    $("#kappa-slider").value = kappa == null ? 0 : Math.round(STEPS * Math.log10(Math.max(kappa, 1e-9)));
    $("#kappa-reset").disabled = kappa == null;
    let [up, down] = [0, 0];
    decided.forEach((call, row) => { if (cases.call[row] > call) up += 1; else if (cases.call[row] < call) down += 1; });
    const changes = up + down === 0 ? "no call changes" : [up && `${up.toLocaleString("en")} more urgent`, down && `${down.toLocaleString("en")} less urgent`].filter(Boolean).join(", ");
    $("#kappa-state").textContent = kappa == null ? "calls as decided" : `${changes} than as decided`.replace("changes than as decided", "changes");
  }
}
